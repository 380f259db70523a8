"""What is long past is forgotten, and nothing that somebody may still ask about."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.explain.explanation import Explanation, why
from coadapt.model import Record, Woke
from coadapt.policies.fifo import FifoPolicy
from coadapt.runtime.controller import forget_old
from coadapt.runtime.loop import restore
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state import saved_state
from coadapt.server.lookahead_process import Answers, AskWhy
from coadapt.store import MemoryLog, memory, open_store
from coadapt.store import log as sql_log
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions
from tests.builders import a_cluster, a_job, simulated
from tests.properties.digest import state_digest


@pytest.fixture(autouse=True)
def near_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every 20 records the first snapshot is kept."""
    monkeypatch.setattr(memory, "ANCHOR_EVERY", 20)
    monkeypatch.setattr(sql_log, "ANCHOR_EVERY", 20)


def a_log(*snapshots: int) -> MemoryLog:
    """A record every ten seconds from 0 to 990."""
    log = MemoryLog()
    log.append([Record(seq=seq, at=10.0 * seq, event=Woke()) for seq in range(100)])
    for seq in snapshots:
        log.save_snapshot(seq, b"x")
    return log


def snapshots_of(log: MemoryLog) -> list[int]:
    found, known = log.newest_snapshot(), []
    while found is not None:
        known.append(found[0])
        found = log.newest_snapshot(before=found[0])
    return known


def test_newest_two_and_the_first_of_each_stretch_are_kept() -> None:
    assert snapshots_of(a_log(*range(5, 100, 10))) == [95, 85, 65, 45, 25, 5]


@pytest.mark.parametrize(
    ("before", "firsts"),
    [
        (40.0, []),
        (50.0, [5]),
        (449.0, [5, 25]),
        (450.0, [5, 25, 45]),
        # the newest is never all there is
        (5000.0, [5, 25, 45, 65, 85]),
    ],
)
def test_log_goes_stretch_by_stretch_up_to_a_snapshot_that_is_older(before: float, firsts: list[int]) -> None:
    log, seen = a_log(*range(5, 100, 10)), []
    while forget_old(log, before):
        seen.append(log.first())
        assert snapshots_of(log)[-1] == log.first()
    assert seen == firsts
    assert [record.seq for record in log.read(log.first() - 1)] == list(range(log.first(), 100))


@pytest.mark.parametrize("snapshots", [(), (60,)])
def test_one_snapshot_is_not_enough(snapshots: tuple[int, ...]) -> None:
    log = a_log(*snapshots)
    assert forget_old(log, 5000.0) == 0
    assert log.first() == 0


def test_past_within_the_time_kept_can_be_asked_about_and_the_state_is_the_same(tmp_path: Path) -> None:
    jobs = [(20.0 * number, f"j{number}", a_job(2, duration_s=100.0)) for number in range(12)]
    records, _ = simulated(jobs, a_cluster("1x4"), FifoPolicy())
    home, options = Home(tmp_path / "home"), ServeOptions()
    home.make()
    home.write_options(options)
    state, asked = SchedulerState(), list[tuple[AskWhy, Explanation]]()
    with closing(open_store(home.store(options), synchronous="OFF").log()) as log:
        for number, record in enumerate(records):
            log.append([record])
            state.apply(record)
            if number % 10 == 9:
                log.save_snapshot(record.seq, saved_state.save(state))
            last = number + 1 == len(records) or records[number + 1].at > record.at
            asked += [(AskWhy(job=job, at=state.now), why(state, job)) for job in state.jobs if last]
        middle = records[len(records) // 2].at
        while forget_old(log, middle):
            pass
        assert log.first() > 20
        answers = Answers(home)
        kept = 0
        for question, said in asked:
            if question.at >= middle:
                assert answers.of(question) == said
                kept += 1
        assert kept > 20
        with pytest.raises(InputError, match="has been deleted"):
            answers.of(asked[0][0])
        again = restore(log, saved_state)
        assert again is not None
        for record in log.read(again.seq):
            again.apply(record)
        assert state_digest(again) == state_digest(state)
