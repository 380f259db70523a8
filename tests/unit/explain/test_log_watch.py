"""Logs read and followed from Python; what the command shows is in ``tests/unit/cli/test_watch.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coadapt.errors import InfeasibleError, InputError
from coadapt.explain import follow_log, watch_log
from coadapt.explain.log_watch import read_log
from coadapt.store import kept_predictions

LINES = "".join(f"2026-01-01 00:{minute:02d}:00 step {10 * minute}/300 loss 0.5\n" for minute in range(1, 21))


def test_forecast_of_a_log_is_kept_unless_it_shall_not_be(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(LINES)
    unkept = watch_log(log, keep=False)
    assert (unkept.done, unkept.total, unkept.unit, unkept.prediction_id) == (200.0, 300.0, "steps", None)
    assert unkept.eta_s == pytest.approx(600.0)
    assert not unkept.complete
    assert kept_predictions() == []
    assert watch_log(log).prediction_id == 1
    assert [each.subject for each in kept_predictions()] == [str(log)]


def test_total_may_be_given(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(LINES)
    assert watch_log(log, total=200.0).complete
    found = watch_log(log, total=100.0)
    assert (found.eta_s, found.note) == (None, "200 of 100 steps done: the total is wrong")


def test_followed_log_gives_a_forecast_for_every_progress_and_ends_with_the_run(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1/3\nnothing\n")
    forecasts = follow_log(log)
    assert next(forecasts).done == 1.0
    with log.open("a") as stream:
        stream.write("step 3/3\n")
    last = next(forecasts)
    assert (last.done, last.complete, last.to_dict()["total"]) == (3.0, True, 3.0)
    assert list(forecasts) == []


def test_log_without_progress_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("hello\n")
    with pytest.raises(InfeasibleError, match="contains no recognised progress lines"):
        watch_log(log)


@pytest.mark.parametrize("read", [watch_log, read_log, lambda log: next(follow_log(log))])
def test_log_that_cannot_be_read_is_named(read: Callable[[str], object]) -> None:
    """As on a damaged disk: this file can be opened, and every read at its beginning fails with EIO."""
    with pytest.raises(InputError, match=r"^cannot read /proc/self/mem: Input/output error$"):
        read("/proc/self/mem")
