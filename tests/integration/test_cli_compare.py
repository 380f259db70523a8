"""``coadapt compare`` and ``size``: policies side by side, and how much of a cluster is enough."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from coadapt.cli.main import run
from tests.integration.command_line import SMALL, WORKLOAD, Printed, coadapt_command


def test_compare_in_processes_gives_what_one_process_gives(tmp_path: Path) -> None:
    printed = []
    for processes in ("1", "2"):
        arguments = (
            "compare",
            WORKLOAD,
            "--policies",
            "fifo,tiresias",
            "--clusters",
            "4x4",
            "--noise",
            "0.1",
        )
        done = coadapt_command(
            *arguments, "--seeds", "2", "--processes", processes, "--json", "-o", str(tmp_path / processes)
        )
        assert (done.returncode, done.stderr) == (0, "")
        answer = json.loads(done.stdout)
        for row in answer["runs"]:
            del row["cpu_s"], row["decision_ms"]
        printed.append(answer)
    assert printed[0] == printed[1]
    assert [row["seed"] for row in printed[0]["runs"]] == [0, 1, 0, 1]
    assert printed[0]["ratios"]["fifo"]["ratio"] == 1.0
    assert {path.name for path in (tmp_path / "2").iterdir()} == {"compare.json", "runs.csv", "report.html"}


def test_compare_shows_the_answer_and_then_the_replay(capsys: Printed) -> None:
    assert run(["compare", SMALL, "--policies", "fifo,srtf", "--clusters", "2x4", "--processes", "1"]) == 0
    out = capsys.readouterr().out
    table, replay = out.split("Replay of the recorded run on 2x4")
    assert "all 20 jobs could start at their recorded times" in replay
    assert "ratio = average JCT / average JCT of fifo" in table
    rows = {line.split()[0]: line for line in table.splitlines() if line.startswith("  ") and line.strip()}
    assert list(rows)[-3:] == ["recorded", "fifo", "srtf"]
    assert "avg wait" in out
    assert "CPU" not in out


def test_compare_reports_means_over_seeds_and_the_recorded_run(tmp_path: Path, capsys: Printed) -> None:
    arguments = ["compare", SMALL, "--policies", "fifo,srtf", "--clusters", "2x4,3x4", "--seeds", "2"]
    assert run([*arguments, "--processes", "1", "--json", "-o", str(tmp_path / "out")]) == 0
    answer = json.loads(capsys.readouterr().out)
    jobs = list(csv.DictReader(Path(SMALL).read_text().splitlines()))
    waits = [float(job["start_s"]) - float(job["submit_s"]) for job in jobs]
    assert answer["recorded"]["avg_wait_s"] == pytest.approx(sum(waits) / len(waits))
    assert answer["ratios"]["recorded"]["jobs"] == len(jobs)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Replayed on 2x4" in page
    assert "8 and 12 GPUs" in page
    assert "The table shows means over 2 seeds; charts and jobs are those of seed 0." in page
    assert "<caption>Completion</caption>" in page


def test_policies_that_choose_sizes_say_where_there_is_nothing_to_choose(capsys: Printed) -> None:
    assert run(["compare", SMALL, "--policies", "fifo,optimus", "--clusters", "2x4", "--processes", "1"]) == 0
    said = "no job has a profile, so optimus cannot change GPUs or batch sizes; see --unknown-models profiles"
    assert said in capsys.readouterr().err
    assert run(["simulate", SMALL, "--policy", "optimus", "--cluster", "2x4"]) == 0
    assert said in capsys.readouterr().err


def test_size_finds_the_smallest_cluster(capsys: Printed) -> None:
    arguments = ["size", SMALL, "--wait-p90", "30m", "--node", "4"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("7 nodes of 4 GPUs are enough: p90 wait ")
    assert "(goal 30m)\nPolicy coadapt, 20 jobs of one trace, one seed (0).\n" in out
    assert "yes (smallest)" in out
    assert run([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    held = {probe["nodes"]: probe["holds"] for probe in answer["tried"]}
    assert answer["nodes"] == 7
    assert not held[6]
    assert not held[5]


def test_size_without_an_answer_is_exit_code_3_with_the_nearest_figure(capsys: Printed) -> None:
    assert run(["size", SMALL, "--jct-p90", "10m", "--node", "4", "--max-nodes", "9"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert (
        "no cluster of up to 9 nodes of 4 GPUs meets p90 JCT within 10m under coadapt; closest: p90 JCT 2h 3m with"
        in err
    )


@pytest.mark.parametrize("node", ["4x8", "8,8", "many"])
def test_size_names_the_node_that_was_typed(node: str, capsys: Printed) -> None:
    assert run(["size", SMALL, "--wait-p90", "30m", "--node", node]) == 2
    assert f"--node takes GPUS[:TYPE], for example 8 or 8:a100, not {node!r}" in capsys.readouterr().err
