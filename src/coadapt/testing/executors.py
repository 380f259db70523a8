"""Conformance suite of executors, with simulated or real processes.

A ``Bench`` stands for the loop: it prepares jobs, applies actions and takes events, in virtual time or in
real time. The suite never waits by itself.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal, Protocol
from unittest import SkipTest

from coadapt.model import (
    AnyEvent,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    NodeJoined,
    Placement,
    ReplicasReleased,
    ResizeJob,
    StartJob,
    StopJob,
)
from coadapt.runtime import Cursor, Executor, LoopExecutor

Behaviour = Literal["ends", "runs"]


class Bench(Protocol):
    """One executor with at least two GPUs, and the operations that a test needs."""

    @property
    def executor(self) -> LoopExecutor: ...

    def add(self, job: str, behaviour: Behaviour) -> None:
        """Makes a job known: one that soon succeeds by itself, or one that runs until it is stopped."""

    def placement(self, replicas: int) -> Placement:
        """Some placement of one or two replicas."""

    def next(self) -> AnyEvent:
        """Waits for the next event about a job; fails the test if none comes. Events are taken as logged."""

    def rest(self) -> list[AnyEvent]:
        """All events about jobs that come without another action, while jobs that run keep running."""

    def another_controller(self) -> bool:
        """The controller dies and another takes its place; False where the executor dies with it."""

    def close(self) -> None:
        """Leaves nothing behind."""


class LiveBench(Bench, Protocol):
    """One executor of real machines, with a place for checkpoints."""

    @property
    def executor(self) -> Executor: ...

    def add_writer(self, job: str, text: str, checkpoint: str) -> None:
        """Makes a job known whose first replica prints ``text``, saves a file called ``checkpoint``, and succeeds."""

    def take(self) -> tuple[Cursor, AnyEvent]:
        """Waits for the next event, about jobs or nodes, and does not acknowledge it."""


class ExecutorConformance:
    """Requirements of the loop on every executor, simulated or real. Subclass and implement ``bench``."""

    def bench(self, directory: Path) -> Bench:
        """A new executor with nothing running."""
        raise NotImplementedError

    def test_job_starts_then_succeeds(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "ends")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            _finished(bench.next(), "a", 1)
            assert bench.rest() == []
            assert list(bench.executor.inventory()) == []

    def test_inventory_names_what_runs(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "runs")
            bench.add("b", "runs")
            bench.executor.apply([_start(bench, 1, "a"), _start(bench, 2, "b", attempt=3)])
            assert {bench.next(), bench.next()} == {
                JobStarted(job="a", attempt=1),
                JobStarted(job="b", attempt=3),
            }
            held = {(r.job, r.attempt): r.placement for r in bench.executor.inventory()}
            assert held == {("a", 1): bench.placement(1), ("b", 3): bench.placement(1)}

    def test_action_applied_twice_is_applied_once(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "ends")
            start = _start(bench, 1, "a")
            bench.executor.apply([start, start])
            bench.executor.apply([start])
            assert bench.next() == JobStarted(job="a", attempt=1)
            _finished(bench.next(), "a", 1)
            bench.executor.apply([start])
            assert bench.rest() == []

    def test_stopped_attempt_ends_exactly_once(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "runs")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            stop = StopJob(id=2, job="a", attempt=1, why="pause")
            bench.executor.apply([stop, StopJob(id=3, job="a", attempt=1, why="pause")])
            assert bench.next() == JobStopped(job="a", attempt=1, cause="paused")
            bench.executor.apply([stop, StopJob(id=4, job="a", attempt=1, why="cancel")])
            assert bench.rest() == []
            assert list(bench.executor.inventory()) == []

    def test_stopped_job_starts_again_as_a_new_attempt(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "runs")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
            assert bench.next() == JobStopped(job="a", attempt=1, cause="paused")
            bench.executor.apply([_start(bench, 3, "a", attempt=2)])
            assert bench.next() == JobStarted(job="a", attempt=2)
            assert [(r.job, r.attempt) for r in bench.executor.inventory()] == [("a", 2)]

    def test_stop_of_unknown_or_stale_attempt_does_nothing(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "runs")
            bench.executor.apply([StopJob(id=1, job="never-seen", attempt=1, why="cancel")])
            bench.executor.apply([_start(bench, 2, "a", attempt=2)])
            assert bench.next() == JobStarted(job="a", attempt=2)
            bench.executor.apply([StopJob(id=3, job="a", attempt=1, why="pause")])
            bench.executor.apply([StopJob(id=-1, job="a", attempt=1, why="cancel")])
            assert bench.rest() == []
            assert [(r.job, r.attempt) for r in bench.executor.inventory()] == [("a", 2)]

    def test_resize_releases_before_it_is_done(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "runs")
            one, two = bench.placement(1), bench.placement(2)
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            bench.executor.apply([ResizeJob(id=2, job="a", attempt=1, before=one, placement=two)])
            assert bench.next() == ReplicasReleased(job="a", attempt=1, placement=two)
            assert bench.next() == JobResized(job="a", attempt=1, placement=two)
            assert [r.placement for r in bench.executor.inventory()] == [two]

    def test_end_that_nobody_heard_is_taken_to_the_next_controller(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "ends")
            start = _start(bench, 1, "a")
            bench.executor.apply([start])
            if not bench.another_controller():
                raise SkipTest("dies with its controller")
            bench.executor.apply([start])
            # the attempt stays in the inventory until its end is taken; else the loop would consider it lost
            assert [(r.job, r.attempt) for r in bench.executor.inventory()] == [("a", 1)]
            assert bench.next() == JobStarted(job="a", attempt=1)
            _finished(bench.next(), "a", 1)
            assert bench.rest() == []


class LiveExecutorConformance(ExecutorConformance):
    """The whole contract of ``runtime.ports.Executor``. Subclass and implement ``bench``."""

    def bench(self, directory: Path) -> LiveBench:
        """A new executor with nothing running."""
        raise NotImplementedError

    def test_executor_says_itself_which_nodes_there_are(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            wanted = {slot.node for slot in bench.placement(2).slots}
            joined: set[str] = set()
            while not wanted <= joined:
                _, event = bench.take()
                assert isinstance(event, NodeJoined), event
                joined.add(event.node.name)

    def test_cursors_of_a_source_grow(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "ends")
            bench.executor.apply([_start(bench, 1, "a")])
            last: dict[str, int] = {}
            ended = False
            while not ended:
                cursor, event = bench.take()
                assert cursor.number > last.get(cursor.source, -1)
                last[cursor.source] = cursor.number
                ended = isinstance(event, JobFinished)

    def test_what_is_acknowledged_is_not_taken_again_and_the_rest_is(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "ends")
            bench.executor.apply([_start(bench, 1, "a")])
            taken: list[tuple[Cursor, AnyEvent]] = []
            while not taken or not isinstance(taken[-1][1], JobFinished):
                taken.append(bench.take())
            started = next(index for index, (_, event) in enumerate(taken) if isinstance(event, JobStarted))
            bench.executor.acknowledge(taken[started][0])
            bench.another_controller()
            assert [(r.job, r.attempt, r.ended) for r in bench.executor.inventory()] == [("a", 1, True)]
            again = bench.take()
            while not isinstance(again[1], JobFinished):
                assert again[1] != JobStarted(job="a", attempt=1)
                again = bench.take()
            assert again == taken[-1]
            bench.executor.acknowledge(again[0])
            bench.another_controller()
            assert list(bench.executor.inventory()) == []

    def test_closing_leaves_alone_what_runs(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "runs")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            bench.another_controller()
            assert [(r.job, r.attempt, r.ended) for r in bench.executor.inventory()] == [("a", 1, False)]
            assert bench.rest() == []

    def test_shutdown_ends_what_runs_and_tells_the_next_controller(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add("a", "runs")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            bench.executor.shutdown()
            bench.another_controller()
            stopped = bench.next()
            assert isinstance(stopped, JobStopped)
            assert (stopped.job, stopped.attempt, stopped.cause) == ("a", 1, "shutdown")
            assert list(bench.executor.inventory()) == []

    def test_output_is_read_in_parts_also_after_the_end(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            bench.add_writer("a", "hello world", "step-7.pt")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            _finished(bench.next(), "a", 1)
            read, offset = b"", 0
            while True:
                part = bench.executor.read_log("a", 1, 0, "out", offset, 4)
                assert part is not None
                assert len(part.data) <= 4
                read, offset = read + part.data, part.offset
                if part.at_end:
                    break
            assert read.decode().strip() == "hello world"
            tail = bench.executor.read_log("a", 1, 0, "out", -len(read), 100)
            assert tail is not None
            assert tail.data == read
            assert bench.executor.read_log("a", 1, 7, "out", 0, 100) is None
            assert bench.executor.read_log("never-seen", 1, 0, "out", 0, 100) is None

    def test_checkpoints_are_listed(self, tmp_path: Path) -> None:
        with closing(self.bench(tmp_path)) as bench:
            assert list(bench.executor.checkpoints("a")) == []
            bench.add_writer("a", "hello", "step-7.pt")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            _finished(bench.next(), "a", 1)
            (found,) = bench.executor.checkpoints("a")
            assert (found.name, found.step, found.whole) == ("step-7.pt", 7, True)
            assert list(bench.executor.checkpoints("b")) == []


def _start(bench: Bench, number: int, job: str, attempt: int = 1) -> StartJob:
    return StartJob(id=number, job=job, attempt=attempt, placement=bench.placement(1))


def _finished(event: AnyEvent, job: str, attempt: int) -> None:
    assert isinstance(event, JobFinished), event
    assert (event.job, event.attempt, event.outcome) == (job, attempt, "succeeded")
