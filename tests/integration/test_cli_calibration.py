"""What was predicted against what happened, and past jobs, as users see both."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from coadapt.cli.main import run
from coadapt.model import DecisionMade, decode
from tests.integration.command_line import WORKLOAD, Printed, coadapt_command


def test_calibration_of_a_simulated_run(tmp_path: Path, capsys: Printed) -> None:
    out = str(tmp_path / "out")
    assert run(["simulate", WORKLOAD, "--cluster", "4x4", "-o", out]) == 0
    capsys.readouterr()
    assert run(["calibration", out, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    with gzip.open(tmp_path / "out" / "events.jsonl.gz") as stream:
        events = [decode(line).event for line in stream]
    made = [len(event.forecasts) for event in events if isinstance(event, DecisionMade)]
    assert sum(made) > 60
    assert answer["judged"] == sum(made)  # all jobs ended, so every forecast is judged
    assert answer["pending"] == answer["stopped"] == 0
    assert 0 < answer["within"] <= 1
    assert answer["rows"][0]["age"] == "0-10%"
    assert run(["calibration", out]) == 0
    shown, err = capsys.readouterr()
    assert err == ""
    assert shown.startswith(
        f"{answer['within']:.0%} of {sum(made)} actual times are within the 80% interval: "
    )
    assert "METHOD" in shown


def test_log_that_was_cut_off_has_pending_forecasts(tmp_path: Path, capsys: Printed) -> None:
    assert run(["simulate", WORKLOAD, "--cluster", "4x4", "-o", str(tmp_path / "out")]) == 0
    with gzip.open(tmp_path / "out" / "events.jsonl.gz") as stream:
        lines = stream.readlines()
    half = tmp_path / "half.jsonl"
    half.write_bytes(b"".join(lines[: len(lines) // 2]))
    capsys.readouterr()
    assert run(["calibration", str(half), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    events = [decode(line).event for line in lines[: len(lines) // 2]]
    made = sum(len(event.forecasts) for event in events if isinstance(event, DecisionMade))
    assert answer["pending"] > 0
    assert answer["judged"] > 0
    assert answer["judged"] + answer["pending"] == made


def test_what_tools_show_is_kept_and_judged_in_real_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "COADAPT_HOME": str(tmp_path / "home")}
    lines = [f"2024-05-01 12:{n // 60:02d}:{n % 60:02d} step {n}/300" for n in range(301)]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines[:100]))
    first = coadapt_command("watch", str(log), "--json", env=environment)
    assert (first.returncode, first.stderr) == (0, "")
    assert json.loads(first.stdout)["prediction_id"] == 1
    log.write_text("\n".join(lines))
    assert coadapt_command("watch", str(log), env=environment).returncode == 0
    done = coadapt_command("calibration", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 evaluated so far: too few to assess")
    assert "watch: pace  25-50%    1" in done.stdout
    assert {path.name for path in (tmp_path / "home").iterdir()} >= {"predictions.db"}


def test_past_jobs_are_known_in_every_process_of_a_comparison(tmp_path: Path) -> None:
    trace, past = tmp_path / "trace.csv", str(tmp_path / "past.json")
    trace.write_text(
        "name,time,application,num_replicas,batch_size\ncifar10-0,0,cifar10,2,256\ncifar10-1,60,cifar10,2,256\n"
    )
    first = coadapt_command("simulate", str(trace), "--cluster", "2x4", "--save-pool", past, "--json")
    assert (first.returncode, first.stderr) == (0, "")
    arguments = ["compare", str(trace), "--policies", "coadapt,fifo", "--clusters", "2x4", "--json"]
    found = []
    for more in (
        ["--processes", "1"],
        ["--processes", "1", "--pool", past],
        ["--processes", "2", "--pool", past],
    ):
        done = coadapt_command(*arguments, *more)
        assert (done.returncode, done.stderr) == (0, "")
        found.append([row["avg_jct_s"] for row in json.loads(done.stdout)["runs"]])
    plain, taught, in_processes = found
    assert taught == in_processes
    assert plain[0] == json.loads(first.stdout)["avg_jct_s"]
    assert taught[0] != plain[0]
    assert taught[1] == plain[1]  # fifo predicts nothing
