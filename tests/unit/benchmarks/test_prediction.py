"""The table that joins all parts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import cells, prediction
from benchmarks.measure import Row


def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, figure: float) -> list[str]:
    """Two parts whose calls are counted."""
    calls: list[str] = []

    def made(name: str) -> SimpleNamespace:
        def rows(quick: bool) -> list[Row]:
            calls.append(name)
            return [Row(name, figure, 2.0, 1.0, "%"), Row(f"{name}, to compare", 99.0, float("inf"))]

        return SimpleNamespace(rows=rows, SOURCES=("errors.py",))

    monkeypatch.setattr(cells, "CELLS", tmp_path)
    monkeypatch.setattr(prediction, "PARTS", {name: made(name) for name in ("layers", "samples")})
    return calls


def test_all_parts_in_one_table_and_nothing_falls_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = parts(monkeypatch, tmp_path, 1.5)
    assert prediction.main(["--quick"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("figure") == 1
    assert "2 of 2 musts hold\n" in shown
    assert calls == ["layers", "samples"]
    # taken up again: nothing is computed twice, but quick rows are not those of the whole
    assert prediction.main(["--quick"]) == 0
    assert len(calls) == 2
    assert prediction.main([]) == 0
    assert len(calls) == 4


def test_must_that_falls_short_is_named_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = parts(monkeypatch, tmp_path, 2.5)
    assert prediction.main(["--only", "samples"]) == 1
    assert "0 of 1 musts hold; not: samples\n" in capsys.readouterr().out
    assert calls == ["samples"]


def test_fresh_computes_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = parts(monkeypatch, tmp_path, 1.5)
    for _ in range(2):
        prediction.main(["--only", "layers", "--fresh"])
    assert calls == ["layers"] * 2


def test_parts_have_what_the_table_needs() -> None:
    for module in prediction.PARTS.values():
        assert callable(module.rows)
        assert module.SOURCES
