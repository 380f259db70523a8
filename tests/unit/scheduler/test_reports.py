"""Reports: stale ones are recorded and ignored, repeated ones change nothing, and the transition table is total."""

from __future__ import annotations

from typing import Any

import pytest

from coadapt.errors import InvariantError
from coadapt.model import (
    NOWHERE,
    AnyEvent,
    CancelRequested,
    Configuration,
    ControllerStarted,
    JobFinished,
    JobHung,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    Measurement,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    PauseRequested,
    QuotaSet,
    ReplicasReleased,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
    Woke,
)
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.scheduler import TRANSITIONS
from coadapt.scheduler.state.transitions import IGNORED, next_phase
from tests.builders import a_cluster, a_job, a_trained_job, on
from tests.properties.digest import state_digest
from tests.unit.scheduler.phases import HERE, THERE, Told, job_in

MEASUREMENT = Measurement(config=Configuration(nodes=1, replicas=2, atomic_batch=8), step_s=1.0, work=64.0)


def reports(attempt: int) -> list[AnyEvent]:
    """One of every kind, about job "a"."""
    return [
        JobStarted(job="a", attempt=attempt),
        ReplicasReleased(job="a", attempt=attempt, placement=THERE),
        JobResized(job="a", attempt=attempt, placement=THERE),
        JobStopped(job="a", attempt=attempt, cause="paused"),
        JobFinished(job="a", attempt=attempt, outcome="succeeded"),
        JobFinished(job="a", attempt=attempt, outcome="failed"),
        JobHung(job="a", attempt=attempt, silent_s=60.0, expected_s=1.0),
        Measured(job="a", attempt=attempt, measurement=MEASUREMENT),
    ]


def digest(told: Told) -> dict[str, Any]:
    """Everything but the number of the last record."""
    return {name: value for name, value in state_digest(told.state).items() if name != "seq"}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("attempt", [0, 1, 3])
def test_report_of_another_attempt_is_ignored(phase: Phase, attempt: int) -> None:
    for report in reports(attempt):
        told = job_in(phase)
        before = digest(told)
        assert digest(told.tell(report)) == before, report


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in HOLDING])
def test_report_about_a_job_that_holds_nothing_is_ignored(phase: Phase) -> None:
    told = job_in(phase)
    for report in reports(told.state.jobs["a"].attempt):
        before = digest(told)
        assert digest(told.tell(report)) == before, report


@pytest.mark.parametrize("phase", sorted(HOLDING))
def test_repeated_report_changes_nothing(phase: Phase) -> None:
    for report in reports(2):
        told = job_in(phase).tell(report)
        before = digest(told)
        assert digest(told.tell(report)) == before, report


def test_repeated_start_report_within_a_resize_changes_nothing() -> None:
    told = job_in(Phase.RESIZING)
    before = digest(told)
    assert digest(told.tell(JobStarted(job="a", attempt=2))) == before


def test_reports_of_an_earlier_resize_do_not_confirm_a_later_one() -> None:
    """Resized to THERE, then under way to another place: a second report about THERE must not free what it takes."""
    told = job_in(Phase.RESIZING).tell(JobResized(job="a", attempt=2, placement=THERE))
    third = on(("n1", 2))
    told.decide(third).resize(THERE, third, 2)
    before = digest(told)
    told.tell(ReplicasReleased(job="a", attempt=2, placement=THERE))
    assert digest(told.tell(JobResized(job="a", attempt=2, placement=THERE))) == before
    assert told.state.jobs["a"].phase is Phase.RESIZING
    assert told.state.all_nodes["n1"].held == 2


REPORTS = ["JobStarted", "ReplicasReleased", "JobResized", "JobStopped", "JobFinished"]


@pytest.mark.parametrize("phase", sorted(HOLDING))
@pytest.mark.parametrize("report", REPORTS)
def test_every_report_in_every_holding_phase_is_either_a_transition_or_ignored(
    phase: Phase, report: str
) -> None:
    key = (phase, report)
    assert (key in TRANSITIONS) != (key in IGNORED)
    told = job_in(phase)
    before = digest(told)
    event = next(event for event in reports(2) if type(event).__name__ == report)
    told.tell(event)
    if key in IGNORED:
        assert digest(told) == before
    else:
        assert told.state.jobs["a"].phase is TRANSITIONS[key]


@pytest.mark.parametrize("phase", Phase)
def test_every_fact_from_outside_is_borne_in_every_phase(phase: Phase) -> None:
    node = a_cluster("2x2").nodes[0]
    facts: list[AnyEvent] = [
        ControllerStarted(version="1"),
        NodeJoined(node=node),
        NodeLost(node="n0"),
        NodeLost(node="nowhere"),
        NodeDrained(node="n0"),
        NodeDrained(node="nowhere"),
        JobSubmitted(job="a", spec=a_job()),
        JobSubmitted(job="b", spec=a_job(after=("a",))),
        CancelRequested(job="a"),
        CancelRequested(job="nobody"),
        SpecChanged(job="a", spec=a_job(2, at_most=4, priority=9)),
        SpecChanged(job="nobody", spec=a_job()),
        JobStarted(job="nobody", attempt=1),
        NodeOpened(node="n0"),
        NodeOpened(node="nowhere"),
        QuotaSet(group="ann", gpus=0),
        PauseRequested(job="a"),
        PauseRequested(job="nobody"),
        ResumeRequested(job="a"),
        ResumeRequested(job="nobody"),
        RetryRequested(job="nobody"),
        JobHung(job="a", attempt=2, silent_s=60.0, expected_s=1.0),
        JobHung(job="nobody", attempt=1, silent_s=60.0, expected_s=1.0),
        Woke(),
    ]
    for fact in facts:
        told = job_in(phase).tell(fact)  # validates
        if phase in ENDED:
            assert told.state.jobs["a"].phase is phase


def test_transition_that_is_not_in_the_table_is_our_mistake() -> None:
    with pytest.raises(InvariantError, match="cannot take ResizeJob"):
        next_phase(Phase.PENDING, "ResizeJob", "a")


def test_only_success_leads_nowhere() -> None:
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - {Phase.SUCCEEDED}
    assert set(TRANSITIONS.values()) | {Phase.FAILED, Phase.PENDING} == set(Phase)


def test_job_that_fails_while_it_is_being_cancelled_is_cancelled() -> None:
    told = job_in(Phase.RUNNING).tell(CancelRequested(job="a")).stop(2)
    told.tell(JobFinished(job="a", attempt=2, outcome="failed", exit_code=143))
    assert told.state.jobs["a"].phase is Phase.CANCELLED


def test_change_cost_is_the_mean_of_changes_that_came_to_their_end() -> None:
    told = Told().tell(NodeJoined(node=a_cluster("1x2").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2)))
    told.decide(HERE).start(HERE, 1).decide(NOWHERE).stop(1)
    told.tell(JobStopped(job="a", attempt=1, cause="paused"), at=7.0)
    told.decide(HERE).start(HERE, 2).tell(JobStarted(job="a", attempt=2), at=17.0)
    told.decide(NOWHERE).stop(2).tell(JobStopped(job="a", attempt=2, cause="paused"), at=20.0)
    told.decide(HERE).start(HERE, 3).tell(JobStarted(job="a", attempt=3), at=40.0)
    assert told.state.jobs["a"].change_cost_s == 15.0


def test_what_processes_do_before_their_first_step_belongs_to_the_change() -> None:
    told = Told().tell(NodeJoined(node=a_cluster("1x2").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2)))
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1), at=1.0)
    config = Configuration(nodes=1, replicas=2, atomic_batch=8)
    first = Measurement(config=config, count=3, step_s=0.1, overheads_s={"setup": 9.0, "checkpoint": 1.0})
    told.tell(Measured(job="a", attempt=1, measurement=first), at=11.0)
    assert told.state.jobs["a"].change_cost_s == 10.0
    told.tell(Measured(job="a", attempt=1, measurement=Measurement(config=config, count=3)), at=21.0)
    assert told.state.jobs["a"].change_cost_s == 10.0


def _losses(*points: tuple[float, float]) -> Told:
    told = Told().tell(*(NodeJoined(node=node) for node in a_cluster("2x4").nodes))
    told.tell(JobSubmitted(job="a", spec=a_trained_job(target="loss<=0.1")))
    told.decide(on(("n0", 1))).start(on(("n0", 1)), 1).tell(JobStarted(job="a", attempt=1))
    config = Configuration(nodes=1, replicas=1, atomic_batch=32)
    for work, loss in points:
        measurement = Measurement(config=config, count=1, step_s=1.0, work=work, metrics={"loss": loss})
        told.tell(Measured(job="a", attempt=1, measurement=measurement))
    return told


def test_course_of_the_target_holds_finite_values_at_growing_work() -> None:
    told = _losses((32.0, 2.0), (64.0, float("nan")), (96.0, float("inf")), (32.0, 9.0), (128.0, 1.0))
    assert told.state.jobs["a"].course == ((32.0, 2.0), (128.0, 1.0))


def test_course_of_the_target_is_thinned_and_not_cut() -> None:
    course = _losses(*((32.0 * n, 1 / n) for n in range(1, 1001))).state.jobs["a"].course
    assert len(course) <= 256
    assert course[0] == (32.0, 1.0)
    assert course[-1] == (32_000.0, 1e-3)
