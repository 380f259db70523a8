"""What ``simulate`` says of jobs that did not finish, and of deadlines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from coadapt.cli.main import run

Printed = pytest.CaptureFixture[str]


def simulated(path: Path, rows: str, *more: str) -> int:
    path.write_text(rows)
    return run(["simulate", str(path), "--cluster", "1x2", "--restart-time", "0", *more])


def test_jobs_that_never_run_are_named_with_their_reasons(tmp_path: Path, capsys: Printed) -> None:
    rows = "job,submit_s,gpus,duration_s,user\nfree,0,1,60,bob\n"
    rows += "".join(f"held-{number},0,2,60,ada\n" for number in range(5))
    quota = ("--policy-option", "quotas=ada:1")
    assert simulated(tmp_path / "t.csv", rows, *quota) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("5 jobs did not finish.")
    named = lines[at + 1 : at + 5]
    for number, line in enumerate(named[:3]):
        name, _, why = line.strip().partition(": ")
        assert name == f"held-{number}"
        assert len(why) > 10
    assert named[3] == "  and 2 more"
    # the stable keys are for programs
    assert simulated(tmp_path / "t.csv", rows, *quota, "--json") == 0
    assert json.loads(capsys.readouterr().out)["num_unfinished"] == 5


def test_deadlines_are_counted_and_shown_where_there_are_any(tmp_path: Path, capsys: Printed) -> None:
    rows = "job,submit_s,gpus,duration_s,deadline_s\na,0,2,60,100\nb,0,2,60,70\nc,0,2,60,\n"
    assert simulated(tmp_path / "t.csv", rows, "--policy", "fifo", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_deadlines"], found["num_deadlines_missed"]) == (2, 1)
    assert simulated(tmp_path / "t.csv", rows, "--policy", "fifo") == 0
    shown = capsys.readouterr().out
    assert re.search(r"jobs with a deadline +2\n +deadlines missed +1\n", shown)
    without = re.sub(r",(100|70)\n", ",\n", rows)
    assert simulated(tmp_path / "t.csv", without, "--policy", "fifo") == 0
    assert "deadlines missed" not in capsys.readouterr().out


def test_an_error_of_a_policy_names_it_once(tmp_path: Path, capsys: Printed) -> None:
    rows = "job,submit_s,gpus,duration_s\na,0,1,60\n"
    assert simulated(tmp_path / "t.csv", rows, "--policy-option", "hysteresis=7") == 2
    said = capsys.readouterr().err
    assert said.startswith("coadapt: policy 'coadapt': hysteresis must be")
    assert said.count("coadapt:") == 1
