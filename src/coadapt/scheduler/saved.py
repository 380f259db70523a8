"""The whole state as versioned plain data, and back: ``save(state) -> bytes``, ``load(data) -> SchedulerState``.

A saved state with the rest of the log is worth the whole log: what follows from other fields (moments, open nodes) is
made anew, everything else is kept as it is, floats bit by bit and every index in its order. MessagePack, because floats are
exact and decoding is typed; deflated, because jobs are much alike.

The first bytes name the version and a fingerprint of all fields. After an upgrade that knows more fields those have the value they are
declared with (``saved_fields``); a state that does not decode, or is of another version, is *passed over* (``SavedStateError``) and the log
folded instead. Raise ``VERSION`` when a field's meaning changes.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from coadapt.errors import SavedStateError
from coadapt.predict.step_time import EMPTY_TABLE
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.node_state import NodeState
from coadapt.scheduler.saved_fields import SavedJob, SavedNode, SavedState
from coadapt.scheduler.state import SchedulerState

VERSION = 1
_MAGIC = b"coadapt-state"
#: Fast; half of what the slowest level saves in ten times the time.
_LEVEL = 1
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
T = TypeVar("T")
_INDICES = ("active", "waiting", "placed", "unsettled")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SavedState)


def save(state: SchedulerState) -> bytes:
    """The state as bytes; the same state gives the same bytes."""
    plain: dict[str, Any] = {name: getattr(state, name) for name in _PLAIN}
    plain |= {name: list(getattr(state, name)) for name in _INDICES}
    plain["blocked"] = {name: sorted(unmet) for name, unmet in state.blocked.items()}
    # arrays of the fields, which is what the structs are written as, without making one per job
    plain["jobs"] = [_job_of(job) for job in state.jobs.values()]
    plain["nodes"] = [_node_of(node) for node in state.all_nodes.values()]
    return header() + zlib.compress(_encoder.encode(plain), _LEVEL)


def load(data: bytes) -> SchedulerState:
    """The state that was saved; raises SavedStateError if this coadapt cannot read it."""
    first = header()
    same = data[: len(first)] == first
    if len(data) <= len(first) or not data.startswith(first[:-_FINGERPRINT]):
        known = data.startswith(_MAGIC)
        what = "by another version of coadapt" if known else "not by coadapt"
        raise SavedStateError(
            f"the saved state was written {what}; the log is to be folded from its beginning"
        )
    try:
        saved = _decoder.decode(zlib.decompress(data[len(first) :]))
    except (zlib.error, msgspec.DecodeError) as error:
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
    state = SchedulerState()
    for name in _PLAIN:
        setattr(state, name, getattr(saved, name))
    for each in saved.jobs:
        job = _made(JobState, _JOB_FIELDS, each)
        if not job.table.rows:
            job.table = EMPTY_TABLE
        state.jobs[job.id] = job
        if job.retry_at is not None or job.running_since is not None:
            state.note_moments(job)
    state.all_nodes = {each.node.name: _made(NodeState, _NODE_FIELDS, each) for each in saved.nodes}
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
    """Who wrote it: version, and a fingerprint of every field of everything that is in a saved state."""
    fields = msgspec.json.encode(msgspec.json.schema(SavedState), order="sorted")
    return _MAGIC + VERSION.to_bytes(2, "big") + hashlib.sha256(fields).digest()[:_FINGERPRINT]
