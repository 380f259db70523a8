"""A state with one job in a given phase, made by folding a log as short as possible."""

from __future__ import annotations

from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    AnyEvent,
    DecisionMade,
    JobFinished,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeJoined,
    Placement,
    Record,
    ResizeJob,
    StartJob,
    StopJob,
)
from coadapt.model.snapshot import Phase
from coadapt.scheduler import SchedulerState
from tests.builders import a_cluster, a_job, on

HERE, THERE = on(("n0", 2)), on(("n0", 1), ("n1", 1))


class Told:
    """A state and the records it was made of."""

    def __init__(self) -> None:
        self.state, self.records = SchedulerState(), list[Record]()

    def tell(self, *events: AnyEvent, at: float | None = None) -> Told:
        for event in events:
            now = self.state.now if at is None else at
            record = Record(seq=len(self.records), at=now, event=event)
            self.records.append(record)
            self.state.apply(record)
            self.state.validate()
        return self

    def decide(self, target: Placement, job: str = "a") -> Told:
        return self.tell(DecisionMade(decision=self.state.decisions + 1, targets={job: target}))

    def start(self, placement: Placement, attempt: int, job: str = "a") -> Told:
        action = StartJob(id=self.state.actions + 1, job=job, attempt=attempt, placement=placement)
        return self.tell(ActionsIssued(decision=self.state.decisions, actions=(action,)))

    def resize(self, before: Placement, placement: Placement, attempt: int) -> Told:
        number = self.state.actions + 1
        action = ResizeJob(id=number, job="a", attempt=attempt, before=before, placement=placement)
        return self.tell(ActionsIssued(decision=self.state.decisions, actions=(action,)))

    def stop(self, attempt: int) -> Told:
        action = StopJob(id=self.state.actions + 1, job="a", attempt=attempt, why="pause")
        return self.tell(ActionsIssued(decision=self.state.decisions, actions=(action,)))


def job_in(phase: Phase) -> Told:
    """Job "a", elastic from 1 to 4, in its second attempt (its first was lost); PENDING has none."""
    told = Told()
    for node in a_cluster("2x2").nodes:
        told.tell(NodeJoined(node=node), at=1.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2, at_most=4, retries=0)), at=2.0)
    if phase is Phase.PENDING:
        return told
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1), at=3.0)
    told.tell(JobStopped(job="a", attempt=1, cause="lost"), at=4.0)
    if phase is Phase.PAUSED:
        return told
    told.decide(HERE).start(HERE, 2)
    if phase is Phase.STARTING:
        return told
    told.tell(JobStarted(job="a", attempt=2), at=5.0)
    if phase is Phase.RESIZING:
        told.decide(THERE).resize(HERE, THERE, 2)
    elif phase is Phase.STOPPING:
        told.decide(NOWHERE).stop(2)
    elif phase is not Phase.RUNNING:
        outcome = phase.value.lower()
        told.tell(JobFinished(job="a", attempt=2, outcome=outcome), at=6.0)  # type: ignore[arg-type]
    return told
