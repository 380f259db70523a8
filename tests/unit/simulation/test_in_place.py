"""A simulated resize in place: training goes on at the old size until the newcomers are ready."""

from __future__ import annotations

import pytest

from coadapt.model import (
    AnyEvent,
    JobFinished,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    Placement,
    ReplicasReleased,
    ResizeJob,
    Slot,
    StartJob,
    StopJob,
)
from coadapt.simulation.engine.simulated_executor import SimulatedExecutor, Timeline, constant
from coadapt.simulation.engine.training_model import TimedTraining

ONE, TWO = (Placement(slots=(Slot(node="n0", replicas=n, gpu_type="t4"),)) for n in (1, 2))


def a_run(*, duration_s: float, ready_s: float | None) -> tuple[Timeline, SimulatedExecutor]:
    """A job that starts at once and is to be resized after two seconds."""
    timeline = Timeline()
    executor = SimulatedExecutor(
        timeline=timeline,
        spec_of=lambda job: JobSpec(name=job),
        train=lambda job, spec: TimedTraining(duration_s),
        change_cost=lambda spec, before, after: 1.0 if before else 0.0,
        ready_s=None if ready_s is None else constant(ready_s),
    )
    executor.apply([StartJob(id=1, job="a", attempt=1, placement=ONE)])
    timeline.at(
        2.0,
        lambda: executor.apply([ResizeJob(id=2, job="a", attempt=1, before=ONE, placement=TWO)]),
    )
    return timeline, executor


def told(timeline: Timeline) -> list[tuple[float, type[AnyEvent]]]:
    found = []
    while (each := timeline.next(None)) is not None:
        found.append((each[0], type(each[1])))
    return found


def test_training_goes_on_while_newcomers_get_ready() -> None:
    timeline, _ = a_run(duration_s=20.0, ready_s=5.0)
    # released at 7, the pause of a second, and the 13 seconds that were left
    assert told(timeline) == [(0, JobStarted), (7, ReplicasReleased), (8, JobResized), (21, JobFinished)]


def test_a_restart_trains_nothing_meanwhile() -> None:
    timeline, _ = a_run(duration_s=20.0, ready_s=None)
    assert told(timeline) == [(0, JobStarted), (2, ReplicasReleased), (3, JobResized), (21, JobFinished)]


@pytest.mark.parametrize("duration_s", [4.0, 20.0])
def test_job_that_ends_or_is_stopped_before_they_are_ready_is_not_resized(duration_s: float) -> None:
    timeline, executor = a_run(duration_s=duration_s, ready_s=5.0)
    timeline.at(6.0, lambda: executor.apply([StopJob(id=3, job="a", attempt=1, why="cancel")]))
    end = (4, JobFinished) if duration_s < 6 else (6, JobStopped)
    assert told(timeline) == [(0, JobStarted), end]
    assert executor.inventory() == []
