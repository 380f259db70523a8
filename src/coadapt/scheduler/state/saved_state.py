"""Saved states: the whole state as versioned plain data. ``save(state) -> bytes``, ``load(data) -> SchedulerState``.

A saved state together with the rest of the log replaces the whole log. It holds every field of ``SchedulerState``,
``JobState`` and ``NodeState`` that does not follow from others; derived fields (moments, open nodes) are rebuilt,
everything else is kept exactly: floats bit by bit and every index in its order. The encoding is MessagePack, because
floats are exact and decoding is typed, and it is deflated, because jobs are much alike.

A field that is added to one of these classes must be added here too (a test checks this), last and with a default, so
that states saved by an older coadapt can still be loaded, also where the log before them has been forgotten.

The first bytes name the version and a fingerprint of all fields. After an upgrade that knows more fields, these have
their declared defaults. A state that does not decode, or is of another version, raises ``SavedStateError``, and the
log is folded instead. Raise ``VERSION`` when the meaning of a field changes.
"""

from __future__ import annotations

import hashlib
import lzma
import zlib
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from coadapt.errors import SavedStateError
from coadapt.model import Configuration, Forecast, JobSpec, Node, Placement, Reason, charged_gpus
from coadapt.model.actions import Action, StopWhy
from coadapt.model.retry import Failure, Tries
from coadapt.model.snapshot import Phase
from coadapt.prediction.gradient_noise import NoiseTable
from coadapt.prediction.parameter_server import ServerTable
from coadapt.prediction.remaining.adaptive_run import Stretch
from coadapt.prediction.remaining.past_jobs import Pool
from coadapt.prediction.step_time.step_table import EMPTY_TABLE, StepTimeTable
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.node_state import Group, NodeState
from coadapt.scheduler.state.state import SchedulerState


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
    until: float | None = None


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
    #: ``JobState.quarantine`` of the jobs that have one.
    quarantined: dict[str, str] = {}
    #: The jobs with ``JobState.missing_code``.
    without_code: list[str] = []
    priorities: dict[str, int] = {}
    deadlines: dict[str, int] = {}
    members: dict[str, tuple[str, ...]] = {}
    #: ``NodeState.held_groups`` and ``promised_groups`` of the nodes that have any.
    held_groups: dict[str, dict[str, Group]] = {}
    promised_groups: dict[str, dict[str, Group]] = {}


VERSION = 1
_MAGIC = b"coadapt-state"
#: Fast; half of what the slowest level saves in ten times the time.
_LEVEL = 1
#: Of states that are kept for long, and how these begin.
_DENSE, _XZ = 1, b"\xfd7zXZ"
_FINGERPRINT = 8


_JOB_FIELDS, _NODE_FIELDS = SavedJob.__struct_fields__, SavedNode.__struct_fields__
_job_of, _node_of = attrgetter(*_JOB_FIELDS), attrgetter(*_NODE_FIELDS)
#: Kept under the same name, as they are.
_PLAIN: tuple[str, ...] = (
    "now",
    "seq",
    "gpus",
    "free_gpus",
    "quotas",
    "pool",
    "memory",
    "decisions",
    "actions",
    "decided_at",
)
_PLAIN += ("undecided", "policy_wake_at", "starts", "ended", "dependents")
#: Kept where there are any; there are seldom.
_BUDGETS = ("priorities", "deadlines", "members")
_GROUPS = ("held_groups", "promised_groups")
T = TypeVar("T")
_INDICES = ("active", "waiting", "placed", "unsettled")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SavedState)


def save(state: SchedulerState, *, dense: bool = False) -> bytes:
    """Encodes the state; the same state gives the same bytes. ``dense``: a quarter smaller and four times slower, to be kept."""
    plain: dict[str, Any] = {name: getattr(state, name) for name in _PLAIN}
    plain |= {name: list(getattr(state, name)) for name in _INDICES}
    plain["blocked"] = {name: sorted(unmet) for name, unmet in state.blocked.items()}
    # arrays of the fields, which is what the structs are written as, without making one per job
    plain["jobs"] = [_job_of(job) for job in state.jobs.values()]
    plain["nodes"] = [_node_of(node) for node in state.all_nodes.values()]
    # by name and not in every row: there are seldom any
    quarantined = {job.id: job.quarantine for job in state.jobs.values() if job.quarantine is not None}
    if quarantined:
        plain["quarantined"] = quarantined
    if without_code := [job.id for job in state.jobs.values() if job.missing_code]:
        plain["without_code"] = without_code
    for groups in _GROUPS:
        if found := {node.node.name: g for node in state.all_nodes.values() if (g := getattr(node, groups))}:
            plain[groups] = found
    plain |= {name: granted for name in _BUDGETS if (granted := getattr(state, name))}
    data = _encoder.encode(plain)
    return header() + (lzma.compress(data, preset=_DENSE) if dense else zlib.compress(data, _LEVEL))


def load(data: bytes) -> SchedulerState:
    """Decodes a saved state; SavedStateError if this version of coadapt cannot read it."""
    first = header()
    same = data[: len(first)] == first
    if len(data) <= len(first) or not data.startswith(first[:-_FINGERPRINT]):
        known = data.startswith(_MAGIC)
        what = "by another version of coadapt" if known else "not by coadapt"
        raise SavedStateError(
            f"the saved state was written {what}; the log is to be folded from its beginning"
        )
    try:
        body = data[len(first) :]
        plain = lzma.decompress(body) if body.startswith(_XZ) else zlib.decompress(body)
        saved = _decoder.decode(plain)
    except (zlib.error, lzma.LZMAError, msgspec.DecodeError) as error:
        if not same:
            raise SavedStateError(
                f"the saved state was written by another version of coadapt ({error}); "
                "the log is to be folded from its beginning"
            ) from error
        raise SavedStateError(
            f"the saved state is damaged ({error}); the log is to be folded from its beginning"
        ) from error
    return _state(saved)


def _state(saved: SavedState) -> SchedulerState:
    state, without_code = SchedulerState(), set(saved.without_code)
    for name in (*_PLAIN, *_BUDGETS):
        setattr(state, name, getattr(saved, name))
    for each in saved.jobs:
        job = _made(JobState, _JOB_FIELDS, each)
        if not job.table.rows:
            job.table = EMPTY_TABLE
        job.quarantine = saved.quarantined.get(job.id)
        job.missing_code = job.id in without_code
        job.held_charge = float(charged_gpus(job.held, job.spec))
        state.jobs[job.id] = job
        if job.retry_at is not None or job.running_since is not None:
            state.note_moments(job)
    state.all_nodes = {each.node.name: _made(NodeState, _NODE_FIELDS, each) for each in saved.nodes}
    for name, node in state.all_nodes.items():
        node.held_groups = saved.held_groups.get(name, {})
        node.promised_groups = saved.promised_groups.get(name, {})
    state.nodes = {name: node for name, node in state.all_nodes.items() if node.open}
    for index in _INDICES:
        setattr(state, index, {name: state.jobs[name] for name in getattr(saved, index)})
    state.blocked = {name: set(unmet) for name, unmet in saved.blocked.items()}
    return state


def _made(kind: type[T], fields: tuple[str, ...], saved: object) -> T:
    made = kind.__new__(kind)
    for name in fields:
        setattr(made, name, getattr(saved, name))
    return made


@cache
def header() -> bytes:
    """Returns the header: the version, and a fingerprint of every field of every type in a saved state."""
    fields = msgspec.json.encode(msgspec.json.schema(SavedState), order="sorted")
    return _MAGIC + VERSION.to_bytes(2, "big") + hashlib.sha256(fields).digest()[:_FINGERPRINT]
