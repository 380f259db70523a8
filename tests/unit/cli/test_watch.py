from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from coadapt.cli.main import run
from coadapt.model.interval import Interval
from coadapt.store.prediction_ledger import Kept, Prediction, Predictions, default_file


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
    assert "3m 21s (80% interval " in out
    assert "step lines (200); times from timestamps" in out


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
    assert "no recognised progress lines" in captured.err


def test_watch_refuses_what_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"\x7fELF" + b"\0" * 64)
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
    assert "remaining" not in captured.out
    assert "loss is not a number" in captured.out
    assert run(["watch", log, "--total", "149"]) == 0
    assert "10.0s (80% interval " in capsys.readouterr().out


def test_watch_of_one_line_with_a_time_says_that_too_little_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["watch", a_log(tmp_path, STEPS[5:6])]) == 0
    captured = capsys.readouterr()
    assert "too little is done to tell the pace" in captured.err
    assert "remaining" not in captured.out
    assert run(["watch", a_log(tmp_path, ["step 5/400 loss=0.5"])]) == 0
    assert "the log tells no time; use --follow to measure it" in capsys.readouterr().err


def test_watch_says_that_a_few_lines_make_a_wide_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["watch", a_log(tmp_path, STEPS[:3])]) == 0
    captured = capsys.readouterr()
    assert "2 steps timed at the present pace" in captured.err
    assert "the interval is wide" in captured.err
    assert "remaining" in captured.out
    assert run(["watch", a_log(tmp_path, STEPS[:4])]) == 0
    assert capsys.readouterr().err == ""


def test_watch_names_a_total_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", a_log(tmp_path, STEPS), "--total", "100"]) == 0
    captured = capsys.readouterr()
    assert "the total is wrong" in captured.err
    assert "remaining" not in captured.out


def test_watch_follows_until_the_run_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_log(tmp_path, [f"step {n}/20 time 0.5" for n in range(21)] + [""])
    assert run(["watch", log, "--follow", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["done"], last["eta_s"]) == (20, 0.0)


# -- what was shown is kept, and judged -------------------------------------------------------------------------------


def timed(steps: int, of: int = 400, *, step_s: float = 1.0) -> list[str]:
    """Lines of a run with timestamps."""
    clock = [int(step_s * n) for n in range(steps)]
    return [
        f"2024-05-01 {12 + s // 3600}:{s // 60 % 60:02d}:{s % 60:02d} step {n}/{of} loss=0.5"
        for n, s in enumerate(clock)
    ]


def kept() -> list[Prediction]:
    with Predictions() as store:
        return store.all()


def watch(folder: Path, lines: list[str], capsys: pytest.CaptureFixture[str]) -> int | None:
    """The id of what a look at these lines kept."""
    assert run(["watch", a_log(folder, lines), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    number = json.loads(captured.out)["prediction_id"]
    assert number is None or isinstance(number, int)
    return number


def test_watch_keeps_the_first_look_and_every_new_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = [10, 12, 30, 50, 60, 150, 190, 250, 310, 390]
    found = [watch(tmp_path, timed(steps), capsys) for steps in looks]
    assert found == [1, None, None, 2, None, 3, None, 4, 5, 6]
    first = kept()[0]
    assert (first.tool, first.method, first.subject) == (
        "watch",
        "pace",
        str((tmp_path / "train.log").resolve()),
    )
    assert first.done == pytest.approx(9 / 400)
    assert first.value_s == pytest.approx(391, rel=0.01)
    assert first.low_s < first.value_s < (first.high_s or 0.0)


def test_watch_judges_all_it_said_when_the_log_is_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps in (10, 101, 301):
        watch(tmp_path, timed(steps), capsys)
    assert [each.actual_s for each in kept()] == [None, None, None]
    # by the log's clock: from step 9, 100 and 300 to 400, whenever we look
    assert watch(tmp_path, timed(401), capsys) is None
    assert [each.actual_s for each in kept()] == [391.0, 300.0, 100.0]
    assert run(["calibration"]) == 0
    assert "3 evaluated so far" in capsys.readouterr().out
    # once more changes nothing
    assert watch(tmp_path, timed(401), capsys) is None
    assert [each.actual_s for each in kept()] == [391.0, 300.0, 100.0]


def test_watch_does_not_judge_one_run_by_another_in_the_same_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watch(tmp_path, timed(101), capsys) == 1
    # the same lines at another pace: neither the age nor the end of the first run is this one's
    assert watch(tmp_path, timed(121, step_s=3.0), capsys) == 2
    watch(tmp_path, timed(401, step_s=3.0), capsys)
    assert [each.actual_s for each in kept()] == [None, 840.0]


def test_watch_of_two_logs_keeps_them_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert watch(tmp_path, timed(101), capsys) == 1
    assert watch(other, timed(101), capsys) == 2
    watch(other, timed(401), capsys)
    assert [each.actual_s for each in kept()] == [None, 300.0]


def test_watch_that_can_tell_no_end_keeps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    untimed = [f"step {n}/400 loss=0.5" for n in range(100)]
    assert run(["watch", a_log(tmp_path, untimed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction_id"] is None
    assert watch(tmp_path, timed(401), capsys) is None  # done: nothing is left to foretell
    assert kept() == []


def test_watch_that_follows_keeps_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert watch(tmp_path, timed(101), capsys) == 1
    assert run(["watch", a_log(tmp_path, [*timed(401), ""]), "--follow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["prediction_id"] is None
    assert [each.actual_s for each in kept()] == [300.0]


def test_watch_goes_on_where_nothing_can_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(tmp_path, STEPS)
    assert run(["watch", log]) == 0
    shown = capsys.readouterr().out
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COADAPT_HOME", str(tmp_path / "file" / "home"))
    assert run(["watch", log]) == 0
    out, err = capsys.readouterr()
    assert out == shown
    assert err.startswith("note: predictions are not stored: ")
    assert "is not a directory; set COADAPT_HOME to a directory for coadapt's data" in err
    assert err.count("\n") == 1


def test_what_cannot_be_kept_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    tool, left = Kept("watch"), Interval(value=2.0, low=1.0, high=3.0)
    assert tool.keep("a", "pace", left, done=0.1) == 1
    monkeypatch.setattr(Predictions, "add", full)
    assert tool.keep("a", "pace", left, done=0.2) is None
    assert tool.keep("a", "pace", left, done=0.3) is None
    assert tool.waiting("a") == []
    tool.learn({1: 5.0})
    assert capsys.readouterr().err == "note: predictions are not stored: database or disk is full\n"
    assert [each.actual_s for each in kept()] == [None]


def test_end_that_may_never_come_is_kept_as_such() -> None:
    Kept("watch").keep("a", "pace", Interval(value=2.0, low=1.0, high=float("inf")), done=None)
    (only,) = kept()
    assert (only.high_s, only.done) == (None, None)


def test_truth_of_a_prediction_that_has_gone_is_no_error_of_the_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch(tmp_path, timed(101), capsys)
    default_file().unlink()
    Kept("watch").learn({1: 5.0})
    assert "predictions are not stored: there is no prediction 1" in capsys.readouterr().err
