"""The history of one job as the log records it, and the intervals in which it held GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from coadapt.model import NOWHERE, JobSpec, Measurement, Placement, Reason
from coadapt.model.events import Outcome
from coadapt.model.retry import Failure, Tries
from coadapt.model.snapshot import Phase


class Stay(NamedTuple):
    """A stretch of time in which a job held the same GPUs, training or changing."""

    start: float
    end: float
    gpus: float
    #: False while starting, resizing or stopping: the GPUs are held and nothing is learned.
    training: bool
    placement: Placement


class Progress(NamedTuple):
    """What a report said: total batch size, statistical efficiency at it, epochs done."""

    at: float
    batch: int
    efficiency: float | None
    epoch: float | None


@dataclass(slots=True)
class JobHistory:
    """One job. Sums run up to the last change of its allocation; ``History.settle`` brings them up to now."""

    id: str
    spec: JobSpec
    submitted_at: float
    phase: Phase = Phase.PENDING
    #: When nothing it waits for (``after``) was left; None: not yet.
    ready_at: float | None = None
    #: When it first got GPUs.
    started_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    attempt: int = 0
    changes: int = 0
    tries: Tries = field(default_factory=Tries)
    #: What its present attempt is being stopped for, when that came to train, and whether it did anything.
    stopped_for: Failure | None = None
    attempt_started_at: float | None = None
    progressed: bool = False
    work: float | None = None
    cancelling: bool = False
    held: Placement = NOWHERE
    gpus: float = 0
    held_gpu_s: float = 0.0
    changing_gpu_s: float = 0.0
    #: Seconds since submission without GPUs.
    waited_s: float = 0.0
    #: Training time whose statistical efficiency is known, in GPU-seconds, and its efficiency-weighted sum.
    rated_gpu_s: float = 0.0
    useful_gpu_s: float = 0.0
    efficiency: float | None = None
    noise_scale: float | None = None
    #: Why it has what it has, as last said.
    reason: Reason | None = None
    #: Kept with ``detail`` only.
    stays: list[Stay] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    reasons: list[tuple[float, Reason]] = field(default_factory=list)
    #: When its allocation last changed; up to when, and from when not, its training has an efficiency.
    since: float = 0.0
    rated_until: float = 0.0
    unrated_since: float = 0.0
    unrated_gpu_s: float = 0.0

    @property
    def jct_s(self) -> float | None:
        """Submission to finish, of a job that succeeded."""
        if self.outcome != "succeeded" or self.ended_at is None:
            return None
        return self.ended_at - self.submitted_at

    @property
    def missed_deadline(self) -> bool:
        """True if it has a deadline and did not succeed by then."""
        deadline_s, jct_s = self.spec.deadline_s, self.jct_s
        return deadline_s is not None and (jct_s is None or jct_s > deadline_s)

    @property
    def restarts(self) -> int:
        """Changes after the first start."""
        return max(self.changes - 1, 0)

    @property
    def mean_efficiency(self) -> float | None:
        """Statistical efficiency over its training, weighted by GPU time; None where it is not known."""
        return self.useful_gpu_s / self.rated_gpu_s if self.rated_gpu_s > 0 else None

    @property
    def mean_gpus(self) -> float | None:
        """GPUs held on average while it held any."""
        if self.started_at is None:
            return None
        held_s = (
            (self.ended_at if self.ended_at is not None else self.since) - self.submitted_at - self.waited_s
        )
        return self.held_gpu_s / held_s if held_s > 0 else None

    def measure(self, measurement: Measurement) -> int:
        """Takes the efficiency from a report, (phi + M0) / (phi + M) with phi = M0 var / sqr; returns M.

        A report without gradient statistics keeps the noise scale last known; where there never was
        one, or the job has no reference batch size, the efficiency stays unknown.
        """
        batch = measurement.config.batch
        if self.spec.batch is None:
            return batch
        initial = self.spec.batch.initial
        if measurement.grad_sqr is not None and measurement.grad_var is not None:
            sqr, var = max(measurement.grad_sqr, 0.0), max(measurement.grad_var, 0.0)
            self.noise_scale = initial * var / sqr if sqr > 0 else (float("inf") if var > 0 else 0.0)
        phi = self.noise_scale
        if phi is not None:
            self.efficiency = 1.0 if phi == float("inf") else (phi + initial) / (phi + batch)
        return batch
