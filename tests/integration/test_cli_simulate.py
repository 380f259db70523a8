"""``coadapt simulate``: whole runs and the files they write."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path

import msgspec
import pytest

from coadapt.cli.main import run
from coadapt.model import decode
from coadapt.report import History, Summary, summarise
from coadapt.report.output_files import FILES
from tests.integration.command_line import SMALL, WORKLOAD, Printed, coadapt_command


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
        done = coadapt_command(*arguments, "-o", str(out), env={**os.environ, "PYTHONHASHSEED": hash_seed})
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
    assert run([*arguments, "--policy-option", "oracle=true"]) == 0
    true = json.loads(capsys.readouterr().out)
    assert fitted["num_unfinished"] == true["num_unfinished"] == 0
    assert fitted["avg_jct_s"] != true["avg_jct_s"]


def test_published_setting_fixes_ncf_under_pollux(tmp_path: Path, capsys: Printed) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "name,time,application,num_replicas,batch_size\nncf-0,0,ncf,1,32768\ncifar10-1,0,cifar10,2,256\n"
    )
    arguments = [
        "simulate",
        str(trace),
        "--policy",
        "pollux",
        "--cluster",
        "2x4",
        "--policy-option",
        "generations=5",
    ]
    assert run([*arguments, "--pollux-setup", "-o", str(tmp_path / "out")]) == 0
    rows = {
        row["job"]: row for row in csv.DictReader((tmp_path / "out" / "jobs.csv").read_text().splitlines())
    }
    assert float(rows["ncf-0"]["gpus_mean"]) == 1.0
    assert float(rows["cifar10-1"]["gpus_mean"]) > 1.0
    assert float(rows["ncf-0"]["finish_s"]).is_integer()
