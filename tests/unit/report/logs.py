"""Builds event logs by hand: ``Log`` numbers the records and keeps attempts and actions consistent."""

from __future__ import annotations

from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    AnyEvent,
    Batch,
    CancelRequested,
    Configuration,
    DecisionMade,
    JobFinished,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    Measurement,
    Node,
    NodeJoined,
    NodeLost,
    Placement,
    Reason,
    Record,
    ReplicasReleased,
    ResizeJob,
    Slot,
    StartJob,
    StopJob,
)
from coadapt.model.events import Outcome
from tests.builders import a_job


def on(**replicas: int) -> Placement:
    """``on(n0=4, n1=2)``: four workers on node n0, two on n1."""
    return Placement(slots=tuple(Slot(node=node, replicas=count) for node, count in replicas.items()))


def a_job_without_length(name: str = "job", **fields: object) -> JobSpec:
    """A job that asks for one GPU and declares no length, unless ``fields`` say otherwise."""
    return a_job(**{"name": name, "duration_s": None, **fields})  # type: ignore[arg-type]


def an_adaptive_job(name: str = "job", initial: int = 128) -> JobSpec:
    """A job with a reference batch size, so that its efficiency can be known."""
    return JobSpec(
        name=name, batch=Batch(initial=initial, max=100 * initial, per_gpu_min=1, per_gpu_max=1 << 16)
    )


class Log:
    """A log that grows by one call per event; ``nodes`` x ``gpus`` join at ``begin``."""

    def __init__(self, nodes: int = 2, gpus: int = 4, *, begin: float = 0.0) -> None:
        self.records: list[Record] = []
        self._actions = 0
        self._decisions = 0
        self._attempt: dict[str, int] = {}
        self._held: dict[str, Placement] = {}
        for number in range(nodes):
            self.event(begin, NodeJoined(node=Node(name=f"n{number}", gpus=gpus)))

    def event(self, at: float, event: AnyEvent) -> None:
        self.records.append(Record(seq=len(self.records), at=at, event=event))

    def submit(self, at: float, job: str, spec: JobSpec | None = None) -> None:
        self.event(at, JobSubmitted(job=job, spec=spec or a_job_without_length(job)))

    def decide(self, at: float, job: str, why: str) -> None:
        self._decisions += 1
        self.event(at, DecisionMade(decision=self._decisions, reasons={job: Reason(code="x", text=why)}))

    def start(self, at: float, job: str, placement: Placement, *, took: float = 0.0) -> None:
        """Starts the job at ``at``; it trains ``took`` seconds later."""
        self._attempt[job] = self._attempt.get(job, 0) + 1
        self._held[job] = placement
        self._act(at, StartJob(id=self._next(), job=job, attempt=self._attempt[job], placement=placement))
        self.event(at + took, JobStarted(job=job, attempt=self._attempt[job]))

    def resize(
        self, at: float, job: str, placement: Placement, *, took: float = 0.0, release: float = 0.0
    ) -> None:
        """Holds both placements for ``release`` seconds and trains ``took`` seconds after ``at``."""
        before, attempt = self._held[job], self._attempt[job]
        self._held[job] = placement
        self._act(
            at, ResizeJob(id=self._next(), job=job, attempt=attempt, before=before, placement=placement)
        )
        self.event(at + release, ReplicasReleased(job=job, attempt=attempt, placement=placement))
        self.event(at + took, JobResized(job=job, attempt=attempt, placement=placement))

    def pause(self, at: float, job: str, *, took: float = 0.0) -> None:
        attempt = self._attempt[job]
        self._act(at, StopJob(id=self._next(), job=job, attempt=attempt, why="pause"))
        self.event(at + took, JobStopped(job=job, attempt=attempt, cause="paused"))
        self._held[job] = NOWHERE

    def measure(
        self, at: float, job: str, *, batch: int, phi_over_m0: float | None, epoch: float = 1.0
    ) -> None:
        """A report at total batch size ``batch``; gradient statistics with var / sqr = phi / M0."""
        sqr, var = (None, None) if phi_over_m0 is None else (1.0, phi_over_m0)
        config = Configuration(nodes=1, replicas=1, atomic_batch=batch)
        measurement = Measurement(config=config, grad_sqr=sqr, grad_var=var, epoch=epoch)
        self.event(at, Measured(job=job, attempt=self._attempt[job], measurement=measurement))

    def finish(self, at: float, job: str, outcome: Outcome = "succeeded") -> None:
        self.event(at, JobFinished(job=job, attempt=self._attempt[job], outcome=outcome))
        self._held[job] = NOWHERE

    def cancel(self, at: float, job: str) -> None:
        self.event(at, CancelRequested(job=job))

    def lose(self, at: float, node: str) -> None:
        self.event(at, NodeLost(node=node))

    def _act(self, at: float, action: StartJob | ResizeJob | StopJob) -> None:
        self.event(at, ActionsIssued(decision=self._decisions, actions=(action,)))

    def _next(self) -> int:
        self._actions += 1
        return self._actions


def two_jobs(nodes: int = 2) -> Log:
    """Eight GPUs (or more, unused); worked out on paper in the tests.

    a: submitted 0, on n0 x 4 from 10 (changing until 20), resized at 50 to n0 x 2 (changing until 60),
       finished 100.
    b: submitted 30, on n1 x 4 from 50 (changing until 55), finished 80.
    """
    log = Log(nodes=nodes)
    log.submit(0, "a", a_job_without_length("alpha", requested=4, duration_s=60.0))
    log.start(10, "a", on(n0=4), took=10)
    log.submit(30, "b", a_job_without_length("beta", requested=4, duration_s=25.0))
    log.resize(50, "a", on(n0=2), took=10)
    log.start(50, "b", on(n1=4), took=5)
    log.finish(80, "b")
    log.finish(100, "a")
    log.records = [r for _, r in sorted(enumerate(log.records), key=lambda pair: (pair[1].at, pair[0]))]
    return log
