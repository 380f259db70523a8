"""``--lower-bound`` of compare and simulate: a column, a sentence, JSON, and one line for what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import coadapt
from coadapt.cli import main

TRACE = "job,submit_s,gpus,duration_s\na,0,2,600\nb,0,1,300\nc,60,1,900\nd,120,2,300\n"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return str(path)


def run(trace: str, *arguments: str) -> int:
    return main.run(["compare", trace, "--policies", "fifo,srtf", "--processes", "1", *arguments])


def test_every_run_is_shown_relative_to_the_bound(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace, "--clusters", "1x2,1x4", "--lower-bound", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    bounds = {bound["cluster"]: bound for bound in found["bounds"]}
    assert list(bounds) == ["1x2", "1x4"]
    assert bounds["1x4"]["avg_jct_s"] < bounds["1x2"]["avg_jct_s"] <= bounds["1x2"]["relaxed_s"]
    for row in found["runs"]:
        assert row["vs_bound"] == pytest.approx(row["avg_jct_s"] / bounds[row["cluster"]]["avg_jct_s"])
        assert row["vs_bound"] >= 1.0


def test_table_sentence_and_report_show_it(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, "--clusters", "1x2", "--lower-bound", "-o", str(tmp_path / "out")) == 0
    said = capsys.readouterr().out
    assert "vs bound" in said
    assert "No schedule can bring the average JCT of these 4 jobs below" in said
    assert "of that distance may be the bound's own looseness" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert "average JCT / lower bound" in page
    assert "No schedule can bring the average JCT of these 4 jobs below" in page


def test_without_the_option_nothing_is_said_of_it(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(trace, "--clusters", "1x2", "-o", str(tmp_path / "out")) == 0
    assert "bound" not in capsys.readouterr().out
    assert "lower bound" not in (tmp_path / "out" / "report.html").read_text()
    assert "vs_bound" not in (tmp_path / "out" / "runs.csv").read_text()


def test_too_many_jobs_are_refused_before_anything_is_run(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coadapt.simulation.bounds.MOST_JOBS", 3)
    assert run(trace, "--clusters", "1x2", "--lower-bound") == 2
    said = capsys.readouterr()
    assert "a lower bound takes at most 3 jobs, and" in said.err
    assert "avg JCT" not in said.out


def test_simulate_says_it_too(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", trace, "--policy", "fifo", "--cluster", "1x2"]
    assert main.run([*command, "--lower-bound", "-o", str(tmp_path / "out")]) == 0
    assert "No schedule can bring the average JCT of these 4 jobs below" in capsys.readouterr().out
    assert "No schedule can bring" in (tmp_path / "out" / "report.html").read_text()
    kept = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert kept["vs_bound"] == pytest.approx(kept["avg_jct_s"] / kept["bound"]["avg_jct_s"])
    assert main.run([*command, "--json"]) == 0
    assert "vs_bound" not in json.loads(capsys.readouterr().out)


def test_so_do_the_functions(trace: str) -> None:
    result = coadapt.simulate(trace, "srtf", "1x2", bound=True)
    assert result.vs_bound is not None
    assert result.vs_bound >= 1.0
    compared = coadapt.compare(trace, ["srtf"], clusters=["1x2"], bound=True)
    assert compared.vs_bound("srtf") == pytest.approx(result.vs_bound)
    assert coadapt.simulate(trace, "srtf", "1x2").bound is None
