"""The loop: write-ahead, a clock that never goes back, and putting a state right with what is running."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from coadapt.errors import InputError
from coadapt.model import (
    Action,
    ActionsIssued,
    AnyEvent,
    ControllerStarted,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    Placement,
    Record,
    StartJob,
    StopJob,
)
from coadapt.model.snapshot import HOLDING, Phase
from coadapt.placement.packed import PackedPlacer
from coadapt.policies.fifo import FifoPolicy
from coadapt.runtime import Loop, Running
from coadapt.scheduler import Scheduler, SchedulerState
from coadapt.scheduler.state import saved_state
from coadapt.store import MemoryLog
from tests.builders import a_cluster, a_job, on
from tests.unit.scheduler.phases import HERE, THERE, job_in


class FakeExecutor:
    """Remembers what it was asked, runs what it is told it runs."""

    def __init__(self, *running: Running) -> None:
        self.running, self.applied, self.calls = running, list[Action](), 0

    def apply(self, actions: Sequence[Action]) -> None:
        self.calls += 1
        self.applied += actions

    def inventory(self) -> Sequence[Running]:
        return self.running


class FakeFeed:
    """Gives what it was given, with whatever times a broken clock had."""

    def __init__(self, *events: tuple[float, AnyEvent], now: float = 10.0) -> None:
        self.events, self._now = deque(events), now

    def next(self, until: float | None) -> tuple[float, AnyEvent] | None:
        return self.events.popleft() if self.events else None

    def now(self) -> float:
        return self._now


def a_loop(executor: FakeExecutor, feed: FakeFeed | None = None, records: Sequence[Record] = ()) -> Loop:
    log = MemoryLog()
    log.append(records)
    return Loop(Scheduler(FifoPolicy(), PackedPlacer()), executor, feed or FakeFeed(), log)


def taken_over(phase: Phase, *running: Running) -> tuple[Loop, FakeExecutor, list[AnyEvent]]:
    """A new controller over a log that leaves job "a" in ``phase``; and the events it added."""
    executor, records = FakeExecutor(*running), job_in(phase).records
    loop = a_loop(executor, records=records)
    loop.start(ControllerStarted(version="2"))
    loop.scheduler.state.validate()
    return loop, executor, [record.event for record in loop.events.read(len(records) - 1)]


def found(attempt: int, placement: Placement = HERE, job: str = "a", *, ended: bool = False) -> Running:
    return Running(job=job, attempt=attempt, placement=placement, ended=ended)


def test_clock_that_jumps_back_is_clamped() -> None:
    nodes = a_cluster("3x1").nodes
    times = (10.0, 4.0, 11.0)
    feed = FakeFeed(*((at, NodeJoined(node=node)) for at, node in zip(times, nodes, strict=True)))
    loop = a_loop(FakeExecutor(), feed)
    for _ in nodes:
        loop.step()
    joined = [record.at for record in loop.events.read() if isinstance(record.event, NodeJoined)]
    assert joined == [10.0, 10.0, 11.0]


def test_actions_are_in_the_log_before_they_are_applied() -> None:
    class Watching(FakeExecutor):
        def apply(self, actions: Sequence[Action]) -> None:
            logged = [r.event for r in loop.events.read() if isinstance(r.event, ActionsIssued)]
            assert logged[-1].actions == tuple(actions)
            super().apply(actions)

    executor = Watching()
    loop = a_loop(executor)
    loop.take(1.0, NodeJoined(node=a_cluster("1x4").nodes[0]))
    loop.take(1.0, JobSubmitted(job="a", spec=a_job()))
    loop.step()
    assert [type(action) for action in executor.applied] == [StartJob]


def test_running_job_that_nobody_runs_is_lost_and_starts_as_a_new_attempt() -> None:
    loop, executor, added = taken_over(Phase.RUNNING)
    assert added[1:] == [JobStopped(job="a", attempt=2, cause="lost")]
    assert executor.applied == []
    loop.step()  # the decision
    assert [(a.job, a.attempt) for a in executor.applied if isinstance(a, StartJob)] == [("a", 3)]


def test_running_job_that_runs_is_adopted() -> None:
    loop, executor, added = taken_over(Phase.RUNNING, found(2))
    assert len(added) == 1
    assert executor.applied == []
    assert loop.scheduler.state.jobs["a"].phase is Phase.RUNNING


def test_job_whose_end_is_on_its_way_is_left_to_the_feed() -> None:
    _, executor, added = taken_over(Phase.RUNNING, found(2, ended=True))
    assert len(added) == 1
    assert executor.applied == []


def test_start_under_way_is_applied_again_once() -> None:
    loop, executor, added = taken_over(Phase.STARTING)
    assert len(added) == 1
    assert executor.applied == [loop.scheduler.state.jobs["a"].in_flight]


def test_start_that_happened_unheard_is_confirmed() -> None:
    loop, executor, added = taken_over(Phase.STARTING, found(2))
    assert added[1:] == [JobStarted(job="a", attempt=2)]
    assert [type(action) for action in executor.applied] == [StartJob]
    assert loop.scheduler.state.jobs["a"].phase is Phase.RUNNING


def test_resize_under_way_is_applied_again_once() -> None:
    loop, executor, added = taken_over(Phase.RESIZING, found(2, HERE))
    assert len(added) == 1
    assert executor.applied == [loop.scheduler.state.jobs["a"].in_flight]


def test_resize_that_happened_unheard_is_confirmed() -> None:
    _, _, added = taken_over(Phase.RESIZING, found(2, THERE))
    assert added[1:] == [JobResized(job="a", attempt=2, placement=THERE)]


def test_stop_under_way_is_applied_again_once() -> None:
    loop, executor, added = taken_over(Phase.STOPPING, found(2))
    assert len(added) == 1
    assert executor.applied == [loop.scheduler.state.jobs["a"].in_flight]


@pytest.mark.parametrize("phase", [Phase.RESIZING, Phase.STOPPING])
def test_change_of_an_attempt_that_nobody_knows_ends_it(phase: Phase) -> None:
    loop, _, added = taken_over(phase)
    assert JobStopped(job="a", attempt=2, cause="lost") in added
    assert loop.scheduler.state.jobs["a"].phase is Phase.PAUSED


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in HOLDING])
def test_attempt_that_should_not_run_is_stopped(phase: Phase) -> None:
    attempt = job_in(phase).state.jobs["a"].attempt
    _, executor, added = taken_over(phase, found(attempt))
    assert executor.applied == [StopJob(id=-1, job="a", attempt=attempt, why="cancel")]
    assert len(added) == 1


@pytest.mark.parametrize("unknown", [found(1), found(7), found(1, job="stranger")])
def test_unknown_attempt_is_stopped_and_the_known_one_adopted(unknown: Running) -> None:
    _, executor, added = taken_over(Phase.RUNNING, found(2), unknown)
    assert executor.applied == [StopJob(id=-1, job=unknown.job, attempt=unknown.attempt, why="cancel")]
    assert len(added) == 1


def test_actions_are_applied_again_in_the_order_they_were_issued() -> None:
    """An executor may remember no more than the newest id: a later one first would hide the earlier."""
    told = job_in(Phase.PENDING)
    told.tell(JobSubmitted(job="b", spec=a_job()))
    told.decide(on("n0"), "b").start(on("n0"), 1, "b")
    told.decide(on(("n1", 2))).start(on(("n1", 2)), 1)
    executor = FakeExecutor()
    a_loop(executor, records=told.records).start(ControllerStarted(version="2"))
    assert [(action.id, action.job) for action in executor.applied] == [(1, "b"), (2, "a")]


class CountingSaver:
    """Saves as the product does; remembers how often, and may be told to fail."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken, self.saves = broken, 0

    def save(self, state: SchedulerState) -> bytes:
        self.saves += 1
        return saved_state.save(state)

    def load(self, data: bytes) -> SchedulerState:
        if self.broken:
            raise ValueError("not today")
        return saved_state.load(data)


def a_loop_that_saves(log: MemoryLog, saver: CountingSaver, every: int = 4) -> Loop:
    scheduler = Scheduler(FifoPolicy(), PackedPlacer())
    return Loop(scheduler, FakeExecutor(), FakeFeed(), log, saver=saver, snapshot_every=every)


def a_log_with_snapshots(records: int = 11) -> tuple[MemoryLog, Loop]:
    log, saver = MemoryLog(), CountingSaver()
    loop = a_loop_that_saves(log, saver)
    for node in a_cluster(f"{records}x1").nodes:
        loop.take(1.0, NodeJoined(node=node))
    assert saver.saves == records // 4
    return log, loop


def test_snapshot_is_saved_every_so_many_records() -> None:
    log, _ = a_log_with_snapshots(11)
    newest = log.newest_snapshot()
    assert newest is not None
    assert newest[0] == 7
    assert saved_state.load(newest[1]).seq == 7


def test_start_folds_only_what_came_after_the_snapshot() -> None:
    log, before = a_log_with_snapshots()
    log.forget(7)
    loop = a_loop_that_saves(log, CountingSaver())
    loop.start(ControllerStarted(version="2"))
    assert loop.scheduler.state.nodes.keys() == before.scheduler.state.nodes.keys()
    assert loop.scheduler.state.starts == 1
    loop.scheduler.state.validate()


def test_snapshot_that_cannot_be_loaded_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    log, before = a_log_with_snapshots()
    loop = a_loop_that_saves(log, CountingSaver(broken=True))
    loop.start(ControllerStarted(version="2"))
    assert loop.scheduler.state.nodes.keys() == before.scheduler.state.nodes.keys()
    assert "passed over" in caplog.text
    assert "not today" in caplog.text


def test_older_snapshot_does_where_the_newest_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    log, before = a_log_with_snapshots()
    log.save_snapshot(9, b"nonsense")
    log.forget(7)
    loop = a_loop_that_saves(log, CountingSaver())
    loop.start(ControllerStarted(version="2"))
    assert loop.scheduler.state.nodes.keys() == before.scheduler.state.nodes.keys()
    assert "record 9" in caplog.text


def test_snapshot_of_another_moment_than_it_says_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    log, before = a_log_with_snapshots()
    newest = log.newest_snapshot()
    assert newest is not None
    log.save_snapshot(9, newest[1])
    loop = a_loop_that_saves(log, CountingSaver())
    loop.start(ControllerStarted(version="2"))
    assert loop.scheduler.state.nodes.keys() == before.scheduler.state.nodes.keys()
    assert "it is of record 7" in caplog.text


@pytest.mark.parametrize("error", [OverflowError("int too large"), OSError("away"), RuntimeError("odd")])
def test_state_that_cannot_be_saved_does_not_stop_the_loop(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(CountingSaver):
        def save(self, state: SchedulerState) -> bytes:
            super().save(state)
            raise error

    told: list[Exception | None] = []
    log, saver = MemoryLog(), Failing()
    loop = Loop(
        Scheduler(FifoPolicy(), PackedPlacer()),
        FakeExecutor(),
        FakeFeed(),
        log,
        saver=saver,
        snapshot_every=4,
        on_snapshot=told.append,
    )
    for node in a_cluster("9x1").nodes:
        loop.take(1.0, NodeJoined(node=node))
    assert (log.last(), saver.saves, told) == (8, 2, [error, error])
    assert "the log is complete without it" in caplog.text


def test_store_that_takes_no_snapshot_does_not_stop_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryLog):
        def save_snapshot(self, seq: int, data: bytes) -> None:
            raise InputError("the disk is full")

    log, saver = Full(), CountingSaver()
    loop = a_loop_that_saves(log, saver)
    for node in a_cluster("9x1").nodes:
        loop.take(1.0, NodeJoined(node=node))
    assert log.last() == 8
    assert saver.saves == 2
    assert "the disk is full" in caplog.text
