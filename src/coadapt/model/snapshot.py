"""The view of the cluster that policies and placers get: the scheduler's state at one moment, read-only.

The scheduler keeps the view up to date event by event; nothing is copied for a decision. A policy or placer reads
the snapshot during the call; it must neither change nor keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Protocol

from coadapt.model.allocation import Placement
from coadapt.model.job_spec import JobSpec
from coadapt.model.measurement import Configuration
from coadapt.model.resources import Node


class Phase(StrEnum):
    """The phases of a job as the log stores them. STOPPING still holds its GPUs; PAUSED has run, holds nothing, will run
    again. Users see ``ShownState``.
    """

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    STOPPING = "STOPPING"
    PAUSED = "PAUSED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


#: A job in one of these has ended and holds nothing.
ENDED = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED})
#: A job in one of these holds GPUs.
HOLDING = frozenset({Phase.STARTING, Phase.RUNNING, Phase.RESIZING, Phase.STOPPING})


class ShownState(StrEnum):
    """The states of a job as users see them: in the API, the command line, the dashboard, events, webhooks and reports."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    STOPPING = "STOPPING"
    PREEMPTED = "PREEMPTED"
    PAUSED = "PAUSED"
    QUARANTINED = "QUARANTINED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


#: A job in one of these has not ended and holds nothing.
WAITING = frozenset({ShownState.QUEUED, ShownState.PREEMPTED, ShownState.PAUSED, ShownState.QUARANTINED})


def shown_state(
    phase: Phase, *, on_hold: bool = False, ended_itself: bool = False, quarantined: bool = False
) -> ShownState:
    """Returns the state that users see.

    Args:
        phase: the stored phase.
        on_hold: a user paused the job and has not resumed it.
        ended_itself: its last attempt failed or was cancelled, and it waits to be run again: it is back in the queue.
        quarantined: decisions leave the job out until ``coadapt retry``.
    """
    if phase not in (Phase.PENDING, Phase.PAUSED):
        return ShownState(phase.value)
    if quarantined:
        return ShownState.QUARANTINED
    if on_hold:
        return ShownState.PAUSED
    return ShownState.QUEUED if phase is Phase.PENDING or ended_itself else ShownState.PREEMPTED


class JobView(Protocol):
    """One active job, as a policy sees it."""

    @property
    def id(self) -> str: ...
    @property
    def order(self) -> int:
        """Rank by submission, unique."""

    @property
    def spec(self) -> JobSpec: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def submitted_at(self) -> float: ...
    @property
    def started_at(self) -> float | None:
        """When it first got GPUs."""

    @property
    def changed_at(self) -> float | None:
        """When its target last changed."""

    @property
    def target(self) -> Placement:
        """What the last decision promised the job; policies build on this, not on ``held``."""

    @property
    def target_gpus(self) -> int: ...
    @property
    def held(self) -> Placement:
        """What the job's processes hold right now."""

    @property
    def changes(self) -> int:
        """Number of starts and resizes."""

    @property
    def change_cost_s(self) -> float | None:
        """Mean time its changes took so far, as measured."""

    @property
    def work(self) -> float | None:
        """Work done, as last reported."""

    @property
    def measured_at(self) -> float | None:
        """When ``work`` was last reported."""

    @property
    def epoch(self) -> float | None: ...
    @property
    def course(self) -> tuple[tuple[float, float], ...]:
        """(work, value) of the metric that the job's target names, as reported so far."""

    @property
    def config(self) -> Configuration | None:
        """The configuration last reported."""

    def attained_gpu_s(self, now: float) -> float:
        """GPU-seconds held so far (service in the sense of least-attained service)."""

    def attained_by_type(self, now: float) -> Mapping[str, float]: ...

    def waited_s(self, now: float) -> float:
        """Seconds since submission without GPUs."""

    @property
    def limit_at(self) -> float | None:
        """When it reaches its time limit if it goes on training; None without one, or while it does not train."""


class NodeView(Protocol):
    """One node that takes replicas (up and not drained)."""

    @property
    def node(self) -> Node: ...
    @property
    def promised(self) -> int:
        """GPUs that targets have taken."""

    @property
    def promised_other(self) -> Mapping[str, float]:
        """What targets have taken besides GPUs, by name."""


class Snapshot(Protocol):
    """All that a decision may know, besides curves and the policy's own memory."""

    @property
    def now(self) -> float: ...
    @property
    def active(self) -> Mapping[str, JobView]:
        """Jobs that may run: dependencies met, not cancelled or ended, not on hold, not backing off after a failure; in
        the order they became so."""

    @property
    def waiting(self) -> Mapping[str, JobView]:
        """Active jobs without a target; not ordered."""

    @property
    def placed(self) -> Mapping[str, JobView]:
        """Active jobs with a target; not ordered."""

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """Nodes that take replicas, in cluster order."""

    @property
    def gpus(self) -> int:
        """GPUs of those nodes."""

    @property
    def free_gpus(self) -> int:
        """GPUs of those nodes that no target has taken."""

    @property
    def quotas(self) -> Mapping[str, int]:
        """Most GPUs that jobs of a user or team may have together, where that is limited."""

    @property
    def priorities(self) -> Mapping[str, int]:
        """Priority up to which jobs of a user or team come before those of others, where one was granted."""

    def fits(self, node: str, spec: JobSpec, role: str, replicas: int, free_gpus: int) -> bool:
        """Whether ``replicas`` more replicas of ``role`` of ``spec`` fit ``node``: its CPU, memory and extras, and
        ``free_gpus`` GPUs.
        """

    def __iter__(self) -> Iterator[JobView]: ...
