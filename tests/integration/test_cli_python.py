"""The same from Python: ``coadapt.simulate`` and its results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import coadapt
from coadapt.cli.main import run
from coadapt.errors import InputError
from coadapt.policies import FifoPolicy
from tests.integration.command_line import SMALL, Printed


def test_python_simulate_gives_what_the_command_gives(tmp_path: Path, capsys: Printed) -> None:
    result = coadapt.simulate(SMALL, "fifo", "2x4", options={"backfill": False})
    arguments = [
        "simulate",
        SMALL,
        "--policy",
        "fifo",
        "--cluster",
        "2x4",
        "--policy-option",
        "backfill=false",
    ]
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
