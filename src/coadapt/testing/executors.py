"""What every executor must do, whether its processes are simulated or real.

A ``Bench`` stands for the loop: it prepares jobs, applies actions and takes events, in virtual time or in
real time. The suite never waits by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol
from unittest import SkipTest

from coadapt.model import (
    AnyEvent,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Placement,
    ReplicasReleased,
    ResizeJob,
    StartJob,
    StopJob,
)
from coadapt.runtime import Executor

Behaviour = Literal["ends", "runs"]


class Bench(Protocol):
    """One executor with at least two GPUs, and what a test needs around it."""

    @property
    def executor(self) -> Executor: ...

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


class ExecutorConformance:
    """Subclass, and say how a bench is made."""

    def bench(self, directory: Path) -> Bench:
        """A new executor with nothing running."""
        raise NotImplementedError

    def test_job_starts_then_succeeds(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        try:
            bench.add("a", "ends")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            _finished(bench.next(), "a", 1)
            assert bench.rest() == []
            assert list(bench.executor.inventory()) == []
        finally:
            bench.close()

    def test_inventory_names_what_runs(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        try:
            bench.add("a", "runs")
            bench.add("b", "runs")
            bench.executor.apply([_start(bench, 1, "a"), _start(bench, 2, "b", attempt=3)])
            assert {bench.next(), bench.next()} == {
                JobStarted(job="a", attempt=1),
                JobStarted(job="b", attempt=3),
            }
            held = {(r.job, r.attempt): r.placement for r in bench.executor.inventory()}
            assert held == {("a", 1): bench.placement(1), ("b", 3): bench.placement(1)}
        finally:
            bench.close()

    def test_action_applied_twice_is_applied_once(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        try:
            bench.add("a", "ends")
            start = _start(bench, 1, "a")
            bench.executor.apply([start, start])
            bench.executor.apply([start])
            assert bench.next() == JobStarted(job="a", attempt=1)
            _finished(bench.next(), "a", 1)
            bench.executor.apply([start])
            assert bench.rest() == []
        finally:
            bench.close()

    def test_stopped_attempt_ends_exactly_once(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        try:
            bench.add("a", "runs")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            stop = StopJob(id=2, job="a", attempt=1, why="pause")
            bench.executor.apply([stop, StopJob(id=3, job="a", attempt=1, why="pause")])
            assert bench.next() == JobStopped(job="a", attempt=1, cause="paused")
            bench.executor.apply([stop, StopJob(id=4, job="a", attempt=1, why="cancel")])
            assert bench.rest() == []
            assert list(bench.executor.inventory()) == []
        finally:
            bench.close()

    def test_stopped_job_starts_again_as_a_new_attempt(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        try:
            bench.add("a", "runs")
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
            assert bench.next() == JobStopped(job="a", attempt=1, cause="paused")
            bench.executor.apply([_start(bench, 3, "a", attempt=2)])
            assert bench.next() == JobStarted(job="a", attempt=2)
            assert [(r.job, r.attempt) for r in bench.executor.inventory()] == [("a", 2)]
        finally:
            bench.close()

    def test_stop_of_unknown_or_stale_attempt_does_nothing(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        try:
            bench.add("a", "runs")
            bench.executor.apply([StopJob(id=1, job="never-seen", attempt=1, why="cancel")])
            bench.executor.apply([_start(bench, 2, "a", attempt=2)])
            assert bench.next() == JobStarted(job="a", attempt=2)
            bench.executor.apply([StopJob(id=3, job="a", attempt=1, why="pause")])
            bench.executor.apply([StopJob(id=-1, job="a", attempt=1, why="cancel")])
            assert bench.rest() == []
            assert [(r.job, r.attempt) for r in bench.executor.inventory()] == [("a", 2)]
        finally:
            bench.close()

    def test_resize_releases_before_it_is_done(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        try:
            bench.add("a", "runs")
            one, two = bench.placement(1), bench.placement(2)
            bench.executor.apply([_start(bench, 1, "a")])
            assert bench.next() == JobStarted(job="a", attempt=1)
            bench.executor.apply([ResizeJob(id=2, job="a", attempt=1, before=one, placement=two)])
            assert bench.next() == ReplicasReleased(job="a", attempt=1, placement=two)
            assert bench.next() == JobResized(job="a", attempt=1, placement=two)
            assert [r.placement for r in bench.executor.inventory()] == [two]
        finally:
            bench.close()

    def test_end_that_nobody_heard_is_told_to_the_next_controller(self, tmp_path: Path) -> None:
        bench = self.bench(tmp_path)
        try:
            bench.add("a", "ends")
            start = _start(bench, 1, "a")
            bench.executor.apply([start])
            if not bench.another_controller():
                raise SkipTest("dies with its controller")
            bench.executor.apply([start])
            # until its end is taken the attempt is in the inventory, or the loop would think it lost
            assert [(r.job, r.attempt) for r in bench.executor.inventory()] == [("a", 1)]
            assert bench.next() == JobStarted(job="a", attempt=1)
            _finished(bench.next(), "a", 1)
            assert bench.rest() == []
        finally:
            bench.close()


def _start(bench: Bench, number: int, job: str, attempt: int = 1) -> StartJob:
    return StartJob(id=number, job=job, attempt=attempt, placement=bench.placement(1))


def _finished(event: AnyEvent, job: str, attempt: int) -> None:
    assert isinstance(event, JobFinished), event
    assert (event.job, event.attempt, event.outcome) == (job, attempt, "succeeded")
