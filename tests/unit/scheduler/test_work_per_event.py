"""An event costs in proportion to what it changes: guarded by counts, with 10,000 jobs waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coadapt.model import (
    CancelRequested,
    Configuration,
    JobFinished,
    JobStarted,
    JobSubmitted,
    Measured,
    Measurement,
    NodeJoined,
    Record,
    Woke,
)
from coadapt.placement import PackedPlacer
from coadapt.policies import FifoPolicy
from coadapt.scheduler import Scheduler
from tests.builders import a_cluster, a_job

WAITING = 10_000


class Counted(dict[str, Any]):
    """Counts how many entries are walked over."""

    walked = 0

    def _walk(self, entries: Any) -> Iterator[Any]:
        for entry in entries:
            Counted.walked += 1
            yield entry

    def __iter__(self) -> Iterator[Any]:
        return self._walk(super().keys())

    def keys(self) -> Any:
        return self._walk(super().keys())

    def values(self) -> Any:
        return self._walk(super().values())

    def items(self) -> Any:
        return self._walk(super().items())


class Crowded:
    """A full cluster of 4 GPUs, and a long queue."""

    def __init__(self) -> None:
        self.scheduler, self.seq = Scheduler(FifoPolicy(), PackedPlacer()), 0
        self.handle(NodeJoined(node=a_cluster("1x4").nodes[0]))
        for i in range(4):
            self.handle(JobSubmitted(job=f"running-{i}", spec=a_job()))
        self.handle(Woke())
        for i in range(4):
            self.handle(JobStarted(job=f"running-{i}", attempt=1))
        for i in range(WAITING):
            self.handle(JobSubmitted(job=f"waiting-{i}", spec=a_job()))
        state = self.scheduler.state
        for name in ("jobs", "active", "waiting", "placed", "unsettled", "blocked", "all_nodes", "nodes"):
            setattr(state, name, Counted(getattr(state, name)))

    def handle(self, event: Any) -> list[Any]:
        out = self.scheduler.handle(Record(seq=self.seq, at=float(self.seq), event=event))
        self.seq += 1 + len(out)
        return out

    def walked(self, *events: Any) -> int:
        Counted.walked = 0
        for event in events:
            self.handle(event)
        return Counted.walked


@pytest.fixture(scope="module")
def crowded() -> Crowded:
    return Crowded()


def test_submission_walks_over_nothing(crowded: Crowded) -> None:
    assert crowded.walked(JobSubmitted(job="new", spec=a_job())) == 0


def test_decision_with_a_full_cluster_does_not_walk_the_queue(crowded: Crowded) -> None:
    assert crowded.scheduler.state.free_gpus == 0
    assert crowded.walked(JobSubmitted(job="newer", spec=a_job()), Woke()) == 0


def test_reports_cancels_and_ends_walk_over_what_is_unsettled_only(crowded: Crowded) -> None:
    config = Configuration(nodes=1, replicas=1, atomic_batch=8)
    measured = Measured(job="running-0", attempt=1, measurement=Measurement(config=config, step_s=1.0))
    ended = JobFinished(job="running-1", attempt=1, outcome="succeeded")
    assert crowded.walked(measured) == 0
    assert crowded.walked(CancelRequested(job="waiting-17")) == 0
    assert crowded.walked(ended) == 0
    assert crowded.walked(CancelRequested(job="running-0")) == 1  # itself: it is to be stopped


def test_chain_of_dependents_may_be_longer_than_a_stack_is_deep() -> None:
    scheduler = Scheduler(FifoPolicy(), PackedPlacer())
    events = [JobSubmitted(job="0", spec=a_job())]
    events += [JobSubmitted(job=str(i), spec=a_job(after=(str(i - 1),))) for i in range(1, 5000)]
    for seq, event in enumerate([*events, CancelRequested(job="0")]):
        scheduler.state.apply(Record(seq=seq, at=0.0, event=event))
    assert not scheduler.state.blocked
    assert {job.phase for job in scheduler.state.jobs.values()} == {"CANCELLED"}
