from __future__ import annotations

import pytest

from coadapt.cluster.tidy import forget_old
from coadapt.model import Record, Woke
from coadapt.store import MemoryLog


def a_log(*snapshots: int) -> MemoryLog:
    """A record every ten seconds from 0 to 990."""
    log = MemoryLog()
    log.append([Record(seq=seq, at=10.0 * seq, event=Woke()) for seq in range(100)])
    for seq in snapshots:
        log.save_snapshot(seq, b"x")
    return log


@pytest.mark.parametrize(
    ("before", "first"),
    [(0.0, 0), (-50.0, 0), (5.0, 1), (10.0, 1), (11.0, 2), (399.0, 40), (5000.0, 60)],
)
def test_what_is_older_and_in_both_snapshots_goes(before: float, first: int) -> None:
    log = a_log(60, 90)
    assert forget_old(log, before) == first
    assert log.first() == first
    assert [record.seq for record in log.read(first - 1)] == list(range(first, 100))


@pytest.mark.parametrize("snapshots", [(), (60,)])
def test_one_snapshot_is_not_enough(snapshots: tuple[int, ...]) -> None:
    log = a_log(*snapshots)
    assert forget_old(log, 5000.0) == 0
    assert log.first() == 0


def test_again_and_again_forgets_only_what_is_new() -> None:
    log = a_log(60, 90)
    assert forget_old(log, 200.0) == 20
    assert forget_old(log, 200.0) == 0
    assert forget_old(log, 300.0) == 10
