"""The shape of a saved state: every field of ``SchedulerState``, ``JobState`` and ``NodeState`` that does not follow from others.

Whoever adds a field to one of these adds it here (a test says so), last and with a default: then states that an older coadapt
saved can still be loaded, also where the log before them has been forgotten.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coadapt.model import Configuration, Forecast, JobSpec, Node, Placement, Reason
from coadapt.model.actions import Action, StopWhy
from coadapt.model.snapshot import Phase
from coadapt.model.tries import Failure, Tries
from coadapt.predict.adaptive_run import Stretch
from coadapt.predict.history import Pool
from coadapt.predict.noise import NoiseTable
from coadapt.predict.parameter_server import ServerTable
from coadapt.predict.step_time import StepTimeTable


class SavedJob(msgspec.Struct, array_like=True):
    """Every slot of ``JobState``, by its name."""

    # service
    id: str
    spec: JobSpec
    order: int
    submitted_at: float
    held: Placement
    held_gpus: int
    held_since: float
    attained: float
    attained_of_type: dict[str, float]
    waited_before_s: float
    ran_before_s: float
    running_since: float | None
    limit_from_s: float
    # reports
    table: StepTimeTable
    server_table: ServerTable
    grad_sqr: float | None
    grad_var: float | None
    grad_batch: int | None
    noise: NoiseTable
    course: tuple[tuple[float, float], ...]
    work: float | None
    epoch: float | None
    config: Configuration | None
    measured_at: float | None
    ran_reported_s: float
    reported_attempt: int
    progressed: bool
    metrics: dict[str, float]
    goodput: float | None
    stretches: tuple[Stretch, ...]
    # life
    phase: Phase
    attempt: int
    attempt_started_at: float | None
    target: Placement
    target_gpus: int
    in_flight: Action | None
    in_flight_since: float
    started_at: float | None
    changed_at: float | None
    finished_at: float | None
    changes: int
    change_cost_s: float | None
    confirmed: int
    cancelling: bool
    on_hold: bool
    retry_at: float | None
    tries: Tries
    stopped_for: Failure | None
    failure: Failure | None
    stop_why: StopWhy | None
    lost_to: tuple[tuple[str, int], ...]
    resized_from: int
    reason: Reason | None
    reason_at: float | None
    reason_decision: int | None
    forecast: Forecast | None
    forecast_at: float | None
    first_forecast: Forecast | None
    first_forecast_at: float | None
    # since here with values that a state has that was saved before: fields come last, and none ever goes or moves
    share: float | None = None
    share_of: float = 0.0


class SavedNode(msgspec.Struct, array_like=True):
    """Every slot of ``NodeState``."""

    node: Node
    up: bool
    drained: bool
    shrunk: bool
    held: int
    promised: int
    held_other: dict[str, float]
    promised_other: dict[str, float]


class SavedState(msgspec.Struct):
    """Jobs and nodes in full where they are kept, by name in the indices."""

    now: float
    seq: int
    jobs: list[SavedJob]
    active: list[str]
    waiting: list[str]
    placed: list[str]
    unsettled: list[str]
    blocked: dict[str, list[str]]
    dependents: dict[str, list[str]]
    nodes: list[SavedNode]
    gpus: int
    free_gpus: int
    quotas: dict[str, int]
    pool: Pool
    memory: dict[str, Any]
    decisions: int
    actions: int
    decided_at: float | None
    undecided: bool
    policy_wake_at: float | None
    starts: int
    ended: int
