from __future__ import annotations

import json
from pathlib import Path

import pytest

from coadapt.cli.main import run


def a_log(folder: Path, lines: list[str]) -> str:
    path = folder / "train.log"
    path.write_text("\n".join(lines))
    return str(path)


STEPS = [f"2024-05-01 12:{n // 60:02d}:{n % 60:02d} step {n}/400 loss={1 / (n + 1):.3f}" for n in range(200)]


def test_watch_tells_progress_rate_and_time_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", a_log(tmp_path, STEPS)]) == 0
    out = capsys.readouterr().out
    assert "199 of 400 steps (49.8%)" in out
    assert "1 steps/s" in out
    assert "3m 21s (8 in 10: " in out
    assert "step lines (200); time by timestamps" in out


def test_watch_json_is_data_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", a_log(tmp_path, STEPS), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["done"], answer["total"], answer["unit"]) == (199, 400, "steps")
    assert answer["eta_s"] == pytest.approx(201, rel=0.01)
    assert answer["eta_low_s"] < 201 < answer["eta_high_s"]


@pytest.mark.parametrize("lines", [[], ["hello", "world"], ["x" * 100_000]])
def test_watch_of_a_log_without_progress_is_a_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str]
) -> None:
    assert run(["watch", a_log(tmp_path, lines)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "no line that tells progress" in captured.err


def test_watch_refuses_what_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"step 1/2\n\0\1\2")
    assert run(["watch", str(binary)]) == 2
    assert "binary file" in capsys.readouterr().err
    assert run(["watch", str(tmp_path)]) == 2
    assert run(["watch", str(tmp_path / "none.log")]) == 2
    assert run(["watch", a_log(tmp_path, STEPS), "--total", "-3"]) == 2


def test_watch_needs_a_total_where_the_log_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = a_log(tmp_path, [f"iter {n}: loss nan, time 100ms" for n in range(50)])
    assert run(["watch", log]) == 0
    captured = capsys.readouterr()
    assert "--total" in captured.err
    assert "left" not in captured.out
    assert "loss is not a number" in captured.out
    assert run(["watch", log, "--total", "149"]) == 0
    assert "10.0s (8 in 10: " in capsys.readouterr().out


def test_watch_names_a_total_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", a_log(tmp_path, STEPS), "--total", "100"]) == 0
    captured = capsys.readouterr()
    assert "the total is wrong" in captured.err
    assert "left" not in captured.out


def test_watch_follows_until_the_run_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_log(tmp_path, [f"step {n}/20 time 0.5" for n in range(21)] + [""])
    assert run(["watch", log, "--follow", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["done"], last["eta_s"]) == (20, 0.0)
