"""The helper every figure goes through, and the cells that make benchmarks resumable."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import cells
from benchmarks.measure import Figure, Row, measure, show


def test_measure_interleaves_alternatives():
    order: list[str] = []
    figures = measure({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert order == ["a", "b"] * 3
    assert len(figures["a"].cpu_s) == 3


def test_figure_is_noisy_when_its_repeats_disagree():
    steady = Figure(cpu_s=[1.0, 1.01, 0.99, 1.0], wall_s=[1.0] * 4, load=[0.1] * 4)
    jumpy = Figure(cpu_s=[1.0, 1.5, 0.7, 1.2], wall_s=[1.0] * 4, load=[0.1] * 4)
    busy = Figure(cpu_s=[1.0] * 4, wall_s=[1.0] * 4, load=[100.0] * 4)
    assert (steady.noisy, jumpy.noisy, busy.noisy) == (False, True, True)


def test_show_is_false_when_a_must_falls_short(capsys: pytest.CaptureFixture[str]):
    good, bad = Row("fast", 1.0, 2.0, aim=0.5), Row("share", 0.8, 0.9, at_least=True)
    assert show("t", [good])
    assert not show("t", [good, bad])
    assert "XX share" in capsys.readouterr().out


def test_cell_is_computed_once_until_its_sources_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cells, "CELLS", tmp_path)
    calls: list[int] = []

    def compute() -> dict[str, int]:
        calls.append(1)
        return {"value": len(calls)}

    assert cells.cell("c", {"x": 1}, "s1", compute)["value"] == 1
    assert cells.cell("c", {"x": 1}, "s1", compute)["value"] == 1
    assert cells.cell("c", {"x": 1}, "s2", compute)["value"] == 2
    assert cells.cell("c", {"x": 2}, "s2", compute)["value"] == 3


def test_source_hash_depends_on_the_named_files_only():
    assert cells.source_hash(["units.py"]) != cells.source_hash(["errors.py"])
    assert cells.source_hash(["units.py"]) == cells.source_hash(["units.py"])


def test_source_hash_depends_on_code_and_not_on_its_description(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "ROOT", tmp_path)
    source = tmp_path / "src" / "coadapt" / "a.py"
    source.parent.mkdir(parents=True)

    def hash_of(text):
        source.write_text(text)
        return cells.source_hash(["a.py"])

    original = hash_of('"""One."""\n\n\ndef f():\n    """Two."""\n    return 1  # three\n')
    assert original == hash_of('"""Other."""\ndef f():\n    return 1\n')
    assert original != hash_of("def f():\n    return 2\n")
