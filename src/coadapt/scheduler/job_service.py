"""What a job has been given: GPU-seconds, waiting, seconds of training."""

from __future__ import annotations

from collections.abc import Mapping

from coadapt.model import NOWHERE, JobSpec, Placement, gpus_of

_NO_SERVICE: dict[str, float] = {}


class JobService:
    """Who the job is and what it holds, with sums over time."""

    __slots__ = (
        "attained",
        "attained_of_type",
        "held",
        "held_gpus",
        "held_since",
        "id",
        "limit_from_s",
        "order",
        "ran_before_s",
        "running_since",
        "spec",
        "submitted_at",
        "waited_before_s",
    )

    def __init__(self, job: str, spec: JobSpec, order: int, at: float) -> None:
        self.id = job
        self.spec = spec
        self.order = order
        self.submitted_at = at
        #: What the processes hold; in a resize the union of old and new until the old is released.
        self.held: Placement = NOWHERE
        self.held_gpus = 0
        # sums up to ``held_since``, and up to the present stretch of training
        self.held_since = at
        self.attained = 0.0
        self.attained_of_type = _NO_SERVICE
        self.waited_before_s = 0.0
        self.ran_before_s = 0.0
        self.running_since: float | None = None
        #: Seconds it had trained when its time limit began to count: a retry has all of it again.
        self.limit_from_s = 0.0

    def attained_gpu_s(self, now: float) -> float:
        """GPU-seconds held so far."""
        return self.attained + self.held_gpus * (now - self.held_since)

    def attained_by_type(self, now: float) -> Mapping[str, float]:
        """GPU-seconds held so far, by GPU type."""
        if not self.held_gpus:
            return self.attained_of_type
        kind = self.held.gpu_type
        grown = self.attained_of_type.get(kind, 0.0) + self.held_gpus * (now - self.held_since)
        return {**self.attained_of_type, kind: grown}

    def waited_s(self, now: float) -> float:
        """Seconds since submission without GPUs."""
        return self.waited_before_s + (0.0 if self.held_gpus else now - self.held_since)

    def ran_s(self, now: float) -> float:
        """Seconds it trained, at whatever size, without those whose outcome was lost with a node."""
        return self.ran_before_s + (0.0 if self.running_since is None else now - self.running_since)

    @property
    def limit_at(self) -> float | None:
        """When its time limit is reached if it goes on training; None without one, or while it does not train."""
        if self.spec.time_limit_s is None or self.running_since is None:
            return None
        left_s = self.spec.time_limit_s - (self.ran_before_s - self.limit_from_s)
        return self.running_since + max(left_s, 0.0)

    def hold(self, placement: Placement, at: float) -> None:
        """From ``at`` on the job's processes hold ``placement``."""
        if self.held_gpus:
            self.attained_of_type = dict(self.attained_by_type(at))
            self.attained = self.attained_gpu_s(at)
        else:
            self.waited_before_s = self.waited_s(at)
        self.held_since = at
        self.held = placement
        self.held_gpus = gpus_of(placement, self.spec)

    def stop_running(self, at: float, *, lost: bool) -> None:
        """It does not train any more; ``lost``: what it did since it last began is gone."""
        if not lost:
            self.ran_before_s = self.ran_s(at)
        self.running_since = None
