"""The command line as users meet it: whole runs, files, and every kind of bad input."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

import coadapt
from coadapt.cli.main import run
from coadapt.cli.output import FILES
from coadapt.errors import InputError
from coadapt.model import DecisionMade, decode
from coadapt.policies import FifoPolicy
from coadapt.report import History, Summary, summarise

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL, WORKLOAD = str(EXAMPLES / "small.csv"), str(EXAMPLES / "workload.csv")
HEADER = "job,submit_s,gpus,duration_s\n"
Printed = pytest.CaptureFixture[str]


def _coadapt(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own."""
    command = [sys.executable, "-m", "coadapt.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload, no-any-return]


# -- bad input: one line, exit code 2, nothing written ----------------------------------------------------------


def _text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


def _truncated(path: Path) -> None:
    packed = gzip.compress((HEADER + "".join(f"j{n},{n},1,100\n" for n in range(3000))).encode())
    path.write_bytes(packed[: len(packed) // 2])


BAD_TRACES: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (_text(""), "is empty"),
    "header only": (_text(HEADER), "has no jobs"),
    "wrong columns": (_text("name,when,howmany\na,1,2\n"), "no known trace begins with"),
    "unknown column": (_text("job,submit_s,gpus,duraton_s\na,0,1,5\n"), "did you mean 'duration_s'"),
    "negative time": (_text(HEADER + "a,-5,1,100\n"), ":2: column 'submit_s'"),
    "negative duration": (_text(HEADER + "a,5,1,-100\n"), ":2: column 'duration_s'"),
    "no number": (_text(HEADER + "a,0,1,100\nb,0,two,100\n"), ":3: column 'gpus'"),
    "not UTF-8": (
        lambda path: path.write_bytes(HEADER.encode() + b"\xff\xfe,0,1,100\n") and None,
        "is not UTF-8",
    ),
    "truncated gzip": (_truncated, "ends too early"),
    "unknown profile": (_text("job,submit_s,gpus,profile\na,0,1,gpt\n"), "unknown profile 'gpt'"),
    "missing": (lambda path: None, "cannot open the trace"),
}


@pytest.mark.parametrize("command", ["simulate", "compare", "size", "info"])
@pytest.mark.parametrize("kind", BAD_TRACES)
def test_bad_trace_is_one_line_and_nothing_is_written(
    kind: str, command: str, tmp_path: Path, capsys: Printed
) -> None:
    make, said = BAD_TRACES[kind]
    trace, home = tmp_path / "trace.csv", tmp_path / "home"
    home.mkdir()
    make(trace)
    out = ["-o", str(home / "out")]
    arguments = {
        "simulate": ["simulate", str(trace), "--policy", "fifo", *out],
        "compare": ["compare", str(trace), "--policies", "fifo", *out],
        "size": ["size", str(trace), "--wait-p90", "1h"],
        "info": ["trace", "info", str(trace)],
    }
    _is_refused(arguments[command], said, home, capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "tiresais"], "unknown policy 'tiresais'; did you mean 'tiresias'?"),
        (["--cluster", "sixteen"], "'sixteen' is not a group of nodes"),
        (["--cluster", "0x4"], "is not a group of nodes"),
        (["--cluster", "1x4"], "job 'big-1' does not fit: it asks for 8 GPUs and the cluster 1x4 has 4"),
        (["--placement", "packd"], "unknown placement 'packd'; did you mean 'packed'?"),
        (["--format", "slrum"], "unknown trace format 'slrum'; did you mean 'slurm'?"),
        (["--set", "queues"], "is not NAME=VALUE"),
        (["--policy", "tiresias", "--set", "quees=2"], "did you mean 'queues'?"),
        (
            ["--policy", "tiresias", "--set", "queues=two"],
            "tiresias option 'queues': 'two' is not a whole number",
        ),
        (["--policy", "tiresias", "--set", "queues=9"], "queues need"),
        (["--set", "growth=0"], "coadapt: policy 'coadapt': growth must be a number from 1 to 1e+09; got 0"),
        (["--interference", "1"], "interference 1 is not possible"),
        (["--interference", "0.5", "--links"], "choose one"),
        (["--profiles", "/no/such/place"], "is not a directory of measured tasks"),
        (["--policy", "pollux", "--cluster", "2x8:t4,2x8:a100"], "knows one GPU type"),
    ],
)
def test_bad_option_is_one_line_and_nothing_is_written(
    arguments: list[str], said: str, tmp_path: Path, capsys: Printed
) -> None:
    _is_refused(
        ["simulate", SMALL, "--cluster", "2x4", *arguments, "-o", str(tmp_path / "out")],
        said,
        tmp_path,
        capsys,
    )


def test_gpu_type_that_the_cluster_lacks_is_refused(tmp_path: Path, capsys: Printed) -> None:
    trace, home = tmp_path / "trace.csv", tmp_path / "home"
    home.mkdir()
    trace.write_text("job,submit_s,gpus,duration_s,gpu_type\na,0,1,100,\nb,0,1,100,v100\n")
    arguments = ["simulate", str(trace), "--policy", "fifo", "--cluster", "1x4:t4"]
    _is_refused(
        [*arguments, "-o", str(home / "out")], "job 'b' does not fit: it asks for v100 GPUs", home, capsys
    )
    assert run([*arguments, "--any-gpu-type", "--json"]) == 0


def test_directory_with_other_files_is_refused_before_anything_runs(tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert run(["simulate", SMALL, "--cluster", "2x4", "-o", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "not ours (thesis.tex)" in err
    assert "by --force" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def _is_refused(arguments: list[str], said: str, home: Path, capsys: Printed) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("coadapt: ")
    assert err.count("\n") == 1
    assert "bug" not in err
    assert list(home.iterdir()) == []


def test_bad_input_in_a_real_process_has_no_traceback(tmp_path: Path) -> None:
    done = _coadapt("simulate", SMALL, "--policy", "tiresais", "-o", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "coadapt: unknown policy 'tiresais'; did you mean 'tiresias'?\n"


def test_skip_bad_goes_on_and_says_what_it_skipped(tmp_path: Path, capsys: Printed) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADER + "a,0,1,100\nb,0,x,100\nc,0,64,100\n")
    assert run(["simulate", str(trace), "--policy", "fifo", "--cluster", "1x4", "--skip-bad", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["num_jobs"] == 1
    assert "skipped 1 bad row" in err
    assert "dropped 1 job without a place on the cluster; the first: 'c'" in err


# -- simulate -----------------------------------------------------------------------------------------------------


def test_simulate_prints_a_summary_in_human_units(capsys: Printed) -> None:
    assert run(["simulate", SMALL, "--policy", "fifo", "--cluster", "2x4"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    lines = [line.split() for line in out.splitlines()]
    assert ["average", "JCT", "2h", "5m"] in lines
    assert ["restarts", "0"] in lines


def test_json_is_the_summary_and_nothing_else(capsys: Printed) -> None:
    assert run(["simulate", SMALL, "--policy", "fifo", "--cluster", "2x4", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == [field.name for field in msgspec.structs.fields(Summary)]
    assert printed["num_jobs"] == printed["num_finished"] == 20
    assert run(["simulate", SMALL, "--policy", "fifo", "--cluster", "2x4", "--csv"]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert list(row) == list(printed)
    assert float(row["avg_jct_s"]) == printed["avg_jct_s"]


def test_output_holds_every_file_and_they_agree(tmp_path: Path, capsys: Printed) -> None:
    out = tmp_path / "out"
    assert run(["simulate", SMALL, "--cluster", "2x4", "-o", str(out)]) == 0
    assert f"open {out / 'report.html'}" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert names == {"summary.json", "jobs.csv", "events.jsonl.gz", "report.html", "trace.json"}
    assert names <= FILES
    summary = json.loads((out / "summary.json").read_text())
    with gzip.open(out / "events.jsonl.gz") as stream:
        replayed = summarise(History.of(decode(line) for line in stream))
    assert summary["avg_jct_s"] == replayed.avg_jct_s
    jobs = list(csv.DictReader((out / "jobs.csv").read_text().splitlines()))
    assert sum(float(job["jct_s"]) for job in jobs) / len(jobs) == pytest.approx(summary["avg_jct_s"])
    assert summary["policy"] == "coadapt"  # unless somebody says otherwise
    assert "traceEvents" in json.loads((out / "trace.json").read_text())
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert run(["simulate", SMALL, "--policy", "fifo", "--cluster", "2x4", "-o", str(out)]) == 0
    assert json.loads((out / "summary.json").read_text())["policy"] == "fifo"


def test_same_seed_gives_the_same_event_log_in_other_processes(tmp_path: Path) -> None:
    logs = []
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed
        arguments = (
            "simulate",
            WORKLOAD,
            "--cluster",
            "8x4",
            "--noise",
            "0.1",
            "--stragglers",
            "0.1",
            "--seed",
            "5",
        )
        done = _coadapt(*arguments, "-o", str(out), env={**os.environ, "PYTHONHASHSEED": hash_seed})
        assert (done.returncode, done.stderr) == (0, "")
        logs.append((out / "events.jsonl.gz").read_bytes())
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    "policy", ["coadapt", "fifo", "srtf", "fair-share", "drf", "tiresias", "gittins", "optimus", "recorded"]
)
def test_every_policy_finishes_the_small_workload(policy: str, capsys: Printed) -> None:
    assert run(["simulate", SMALL, "--policy", policy, "--cluster", "2x4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_unfinished"] == 0


@pytest.mark.parametrize("placement", ["packed", "tidy", "most-free", "aware", "skew"])
def test_every_placement_finishes_the_small_workload(placement: str, capsys: Printed) -> None:
    assert run(["simulate", SMALL, "--cluster", "2x4", "--placement", placement, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_unfinished"] == 0


def test_oracle_of_optimus_takes_the_truth(capsys: Printed) -> None:
    arguments = [
        "simulate",
        WORKLOAD,
        "--policy",
        "optimus",
        "--cluster",
        "8x4",
        "--interval",
        "300",
        "--json",
    ]
    assert run(arguments) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert run([*arguments, "--set", "oracle=true"]) == 0
    true = json.loads(capsys.readouterr().out)
    assert fitted["num_unfinished"] == true["num_unfinished"] == 0
    assert fitted["avg_jct_s"] != true["avg_jct_s"]


def test_published_setting_fixes_ncf_under_pollux(tmp_path: Path, capsys: Printed) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "name,time,application,num_replicas,batch_size\nncf-0,0,ncf,1,32768\ncifar10-1,0,cifar10,2,256\n"
    )
    arguments = ["simulate", str(trace), "--policy", "pollux", "--cluster", "2x4", "--set", "generations=5"]
    assert run([*arguments, "--published", "-o", str(tmp_path / "out")]) == 0
    rows = {
        row["job"]: row for row in csv.DictReader((tmp_path / "out" / "jobs.csv").read_text().splitlines())
    }
    assert float(rows["ncf-0"]["gpus_mean"]) == 1.0
    assert float(rows["cifar10-1"]["gpus_mean"]) > 1.0
    assert float(rows["ncf-0"]["finish_s"]).is_integer()


# -- what was predicted against what happened; past jobs -----------------------------------------------------------------


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
    assert shown.startswith(f"Intervals hold {answer['within']:.0%} of {sum(made)} predictions: ")
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
    first = _coadapt("watch", str(log), "--json", env=environment)
    assert (first.returncode, first.stderr) == (0, "")
    assert json.loads(first.stdout)["prediction_id"] == 1
    log.write_text("\n".join(lines))
    assert _coadapt("watch", str(log), env=environment).returncode == 0
    done = _coadapt("calibration", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 judged so far: too few to tell")
    assert "watch: pace  25-50%  1" in done.stdout
    assert {path.name for path in (tmp_path / "home").iterdir()} >= {"predictions.db"}


def test_past_jobs_are_known_in_every_process_of_a_comparison(tmp_path: Path) -> None:
    trace, past = tmp_path / "trace.csv", str(tmp_path / "past.json")
    trace.write_text(
        "name,time,application,num_replicas,batch_size\ncifar10-0,0,cifar10,2,256\ncifar10-1,60,cifar10,2,256\n"
    )
    first = _coadapt("simulate", str(trace), "--cluster", "2x4", "--save-pool", past, "--json")
    assert (first.returncode, first.stderr) == (0, "")
    arguments = ["compare", str(trace), "--policies", "coadapt,fifo", "--clusters", "2x4", "--json"]
    found = []
    for more in (["--jobs", "1"], ["--jobs", "1", "--pool", past], ["--jobs", "2", "--pool", past]):
        done = _coadapt(*arguments, *more)
        assert (done.returncode, done.stderr) == (0, "")
        found.append([row["avg_jct_s"] for row in json.loads(done.stdout)["runs"]])
    plain, taught, in_processes = found
    assert taught == in_processes
    assert plain[0] == json.loads(first.stdout)["avg_jct_s"]
    assert taught[0] != plain[0]
    assert taught[1] == plain[1]  # fifo predicts nothing


# -- compare, size, policies, trace ----------------------------------------------------------------------------------


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
        done = _coadapt(
            *arguments, "--seeds", "2", "--jobs", processes, "--json", "-o", str(tmp_path / processes)
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


def test_compare_starts_with_the_recorded_run(capsys: Printed) -> None:
    assert run(["compare", SMALL, "--policies", "fifo,srtf", "--clusters", "2x4", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Replay of the recorded run on 2x4")
    assert "all 20 jobs could start when they did" in out
    assert "ratios of average JCT to fifo" in out
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ") and line.strip()}
    assert list(rows)[-3:] == ["recorded", "fifo", "srtf"]
    assert "avg wait" in out
    assert "CPU" not in out


def test_compare_reports_means_over_seeds_and_the_recorded_run(tmp_path: Path, capsys: Printed) -> None:
    arguments = ["compare", SMALL, "--policies", "fifo,srtf", "--clusters", "2x4,3x4", "--seeds", "2"]
    assert run([*arguments, "--jobs", "1", "--json", "-o", str(tmp_path / "out")]) == 0
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
    assert run(["compare", SMALL, "--policies", "fifo,optimus", "--clusters", "2x4", "--jobs", "1"]) == 0
    said = "no job has a profile: optimus cannot change GPUs or batch sizes here; see --map profiles"
    assert said in capsys.readouterr().err
    assert run(["simulate", SMALL, "--policy", "optimus", "--cluster", "2x4"]) == 0
    assert said in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupt_ends_all_processes_and_writes_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "coadapt.cli.main",
        "compare",
        WORKLOAD,
        "--policies",
        "pollux,pollux:p=0",
    ]
    command += ["--clusters", "4x4", "--jobs", "2", "-o", str(tmp_path / "out")]
    # a shell that started us in the background has SIGINT ignored, and children inherit that
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listening
    )
    while not any(tmp_path.iterdir()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "coadapt: interrupted; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_size_finds_the_smallest_cluster(capsys: Printed) -> None:
    arguments = ["size", SMALL, "--wait-p90", "30m", "--node", "4"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("7 nodes of 4 GPUs are enough: p90 wait ")
    assert "(goal 30m)\nUnder coadapt, with the 20 jobs of one trace and one seed (0).\n" in out
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
        "no cluster of up to 9 nodes of 4 GPUs holds p90 JCT within 10m under coadapt; nearest: p90 JCT 2h 3m with"
        in err
    )


@pytest.mark.parametrize("node", ["4x8", "8,8", "many"])
def test_size_names_the_node_that_was_typed(node: str, capsys: Printed) -> None:
    assert run(["size", SMALL, "--wait-p90", "30m", "--node", node]) == 2
    assert f"--node takes GPUS[:TYPE], for example 8 or 8:a100, not {node!r}" in capsys.readouterr().err


def test_policies_lists_every_policy_with_its_options(capsys: Printed) -> None:
    assert run(["policies"]) == 0
    out = capsys.readouterr().out
    for text in (
        "fifo\n",
        "fair-share (also drf)",
        "thresholds=57600",
        "oracle=false",
        "p=-1",
        "gittins=true",
        "GPU-seconds received at which a job moves to the next queue",
    ):
        assert text in out
    assert run(["policies", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)][:2] == ["coadapt", "fifo"]


def test_trace_info_convert_and_generate(tmp_path: Path, capsys: Printed) -> None:
    made = tmp_path / "made.csv"
    assert (
        run(
            [
                "trace",
                "generate",
                "--seed",
                "1",
                "--jobs",
                "60",
                "--hours",
                "3",
                "--no-long-jobs",
                "-o",
                str(made),
            ]
        )
        == 0
    )
    assert made.read_text() == Path(WORKLOAD).read_text()
    capsys.readouterr()
    assert run(["trace", "generate", "-o", str(made)]) == 2
    assert "exists" in capsys.readouterr().err
    packed = tmp_path / "packed.jsonl.gz"
    assert run(["trace", "convert", str(made), str(packed)]) == 0
    capsys.readouterr()
    assert run(["trace", "convert", str(packed), "-"]) == 0
    assert capsys.readouterr().out == made.read_text()
    assert run(["trace", "info", str(packed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 60
    assert run(["trace", "info", SMALL]) == 0
    assert "recorded starts      yes" in capsys.readouterr().out
    assert run(["trace", "convert", SMALL, str(tmp_path / "x.txt")]) == 2


def test_map_profiles_makes_models_of_recorded_jobs(capsys: Printed) -> None:
    assert run(["trace", "info", SMALL, "--map", "profiles", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["profiles"]
    recorded_h = sum(
        int(job["gpus"]) * (float(job["end_s"]) - float(job["start_s"])) / 3600
        for job in csv.DictReader(Path(SMALL).read_text().splitlines())
    )
    assert f"--map profiles changes the workload: {recorded_h:.0f} GPU-hours were recorded" in err


def test_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "coadapt.cli.main", "policies"]
    # a shell that started us in the background has SIGINT ignored, and children inherit that
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listening
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == 141


# -- the same from Python ----------------------------------------------------------------------------------------------


def test_python_simulate_gives_what_the_command_gives(tmp_path: Path, capsys: Printed) -> None:
    result = coadapt.simulate(SMALL, "fifo", "2x4", options={"backfill": False})
    arguments = ["simulate", SMALL, "--policy", "fifo", "--cluster", "2x4", "--set", "backfill=false"]
    assert run([*arguments, "--json", "-o", str(tmp_path / "command")]) == 0
    assert json.loads(capsys.readouterr().out)["avg_jct_s"] == result.summary.avg_jct_s
    written = result.write(tmp_path / "python")
    for name in ("jobs.csv", "events.jsonl.gz"):
        assert (written / name).read_bytes() == (tmp_path / "command" / name).read_bytes()


def test_python_write_says_how_python_would_force_it(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    result = coadapt.simulate(SMALL, "fifo", "2x4")
    with pytest.raises(InputError, match=r"write beside them by force=True$"):
        result.write(tmp_path)
    result.write(tmp_path, force=True)
    assert (tmp_path / "summary.json").exists()


def test_python_simulate_takes_an_instance_of_a_policy() -> None:
    named = coadapt.simulate(SMALL, policy="fifo", cluster="2x4", keep_events=False)
    assert coadapt.simulate(SMALL, FifoPolicy(), "2x4").summary.avg_jct_s == named.summary.avg_jct_s
    assert named.records is None


def test_python_simulate_refuses_what_it_does_not_know() -> None:
    with pytest.raises(InputError, match="did you mean 'interval_s'"):
        coadapt.simulate(SMALL, intervall_s=60)
    with pytest.raises(InputError, match="seed -1"):
        coadapt.simulate(SMALL, "fifo", "2x4", seed=-1)


def test_python_results_become_data_frames() -> None:
    pytest.importorskip("pandas")
    result = coadapt.simulate(SMALL, "fifo", "2x4")
    assert result.to_pandas()["jct_s"].mean() == pytest.approx(result.summary.avg_jct_s)
    comparison = coadapt.compare(SMALL, ["fifo", FifoPolicy(backfill=False)], clusters=["2x4"])
    assert list(comparison.to_pandas()["name"]) == ["fifo", "FifoPolicy"]


def test_data_frames_without_pandas_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    result = coadapt.simulate(SMALL, "fifo", "2x4")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'coadapt\[frames\]'"):
        result.to_pandas()


# -- what the documentation shows ----------------------------------------------------------------------------------------

ROOT = EXAMPLES.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "cli.md"]


def _blocks(page: Path, *languages: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for language, text in blocks if language in languages]


def _shown_commands() -> list[str]:
    lines = [
        line.removeprefix("$ ")
        for page in PAGES
        for block in _blocks(page, "", "console", "bash")
        for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith("coadapt ")]


@pytest.fixture
def beside_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a copy of the examples, in which nothing starts processes."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    return tmp_path


def test_documentation_uses_files_that_exist() -> None:
    shown = _shown_commands()
    assert len(shown) >= 8
    named = {name for line in shown for name in re.findall(r"\S+/\S+\.csv", line)}
    assert named == {"examples/small.csv", "examples/workload.csv", "examples/runs.csv"}
    assert [line for line in shown if " -o out " in f"{line} " or " -o out/ " in f"{line} "] == []


#: Too long for here, or run with real scripts and processes by test_plan_cli, test_torch_rehearsal and test_platform_story.
_ELSEWHERE = ("workload.csv", "--profile ", "test-resize")
_LIVE = ("serve", "submit", "ps", "why", "down")


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in _shown_commands()
        if not any(word in line for word in _ELSEWHERE) and line.split()[1] not in _LIVE
    ],
)
def test_command_of_the_documentation_runs(line: str, beside_examples: Path, capsys: Printed) -> None:
    arguments = shlex.split(line, comments=True)[1:]
    for other in _shown_commands():
        # a command that reads what another one wrote comes after it
        if any(f" -o {name}" in other for name in arguments if name.startswith("out/")) and other != line:
            assert run(shlex.split(other, comments=True)[1:]) == 0
    if arguments[0] == "predict":
        pytest.importorskip("torch", reason="tracing a model needs PyTorch")
    assert run(arguments) == 0, capsys.readouterr().err
    if "-o" in arguments:
        assert (beside_examples / arguments[arguments.index("-o") + 1]).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_the_documentation_runs(page: Path, beside_examples: Path) -> None:
    pytest.importorskip("pandas")
    blocks = _blocks(page, "python")
    assert blocks
    exec("\n".join(blocks), {"__name__": "documentation"})


# -- streams, signals and names -----------------------------------------------------------------------------------------


def _shell(script: str) -> subprocess.CompletedProcess[str]:
    """``coadapt`` in a shell that has its own ideas about standard output."""
    named = script.replace("coadapt ", f"{shlex.quote(sys.executable)} -m coadapt.cli.main ")
    return subprocess.run(["sh", "-c", named], capture_output=True, text=True, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    "arguments", ["--help", "policies", f"simulate {SMALL} --policy fifo --cluster 2x4 --json"]
)
def test_full_disk_behind_standard_output_is_said(arguments: str) -> None:
    done = _shell(f"coadapt {arguments} >/dev/full")
    said = "coadapt: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.skipif(os.name != "posix", reason="shell")
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("coadapt policies >&-", 0),
        ("coadapt policies 2>&-", 0),
        ("coadapt policies >&- 2>&-", 0),
        ("coadapt simulate nowhere.csv 2>&-", 2),
    ],
)
def test_closed_streams_are_no_error(script: str, code: int) -> None:
    done = _shell(script)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("option", [[], ["-o"], ["--profiles"]])
def test_name_that_is_too_long_is_one_line(option: list[str], capsys: Printed) -> None:
    assert run(["simulate", SMALL, *option, "x" * 5000] if option else ["simulate", "x" * 5000]) == 2
    err = capsys.readouterr().err
    assert "too long" in err
    assert err.count("\n") == 1
    assert len(err) < 400


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_terminate_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coadapt.cli.main", "simulate", WORKLOAD, "--policy", "pollux"]
    command += ["-o", str(tmp_path / "out")]
    # a shell that started us in the background has SIGINT ignored, and children inherit that
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listening
    )
    while not any(tmp_path.iterdir()):
        time.sleep(0.05)
    process.terminate()
    _, err = process.communicate()
    assert (process.returncode, err) == (143, "coadapt: terminated; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_trace_alone_shows_its_help(capsys: Printed) -> None:
    assert run(["trace"]) == 2
    out, err = capsys.readouterr()
    assert "convert" in out
    assert err == ""
