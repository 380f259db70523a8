"""Digests of logs, plans and states, with and without words; and of what floating-point results depend on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from coadapt.model import AnyEvent, DecisionMade, JobFinished, Record, encode
from coadapt.model.retry import Failure
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state.saved_state import header, save

#: A state is looked at after so many records, and at the end.
EVERY = 25


class Digests(NamedTuple):
    """``count``: of records, rows or states; ``whole``: digest A; ``wordless``: digest B."""

    count: int
    whole: str
    wordless: str


def of_log(records: Sequence[Record]) -> Digests:
    """Of every record as it is stored; without words: without the sentences in it."""
    return Digests(
        len(records),
        _sha(encode(record) for record in records),
        _sha(encode(replace(record, event=wordless(record.event))) for record in records),
    )


def of_plan(answer: Any, without_words: Any) -> Digests:
    """Of an answer as plain data."""
    rows = len(answer["answer"]["rows"])
    return Digests(rows, _sha([_json(answer)]), _sha([_json(without_words)]))


def of_fold(records: Sequence[Record]) -> Digests:
    """Of the saved states that a log is folded to, on the way and at its end."""
    state, whole, plain = SchedulerState(), [], []
    for number, record in enumerate(records, start=1):
        state.apply(record)
        if number % EVERY == 0 or number == len(records):
            state.validate()
            whole.append(payload(state))
            plain.append(_wordless_payload(state))
    return Digests(len(whole), _sha(whole), _sha(plain))


def payload(state: SchedulerState) -> bytes:
    """The saved state without its header, which names classes and their documentation, and not deflated."""
    return zlib.decompress(save(state)[len(header()) :])


def wordless(event: AnyEvent) -> AnyEvent:
    """The event without sentences for people."""
    if isinstance(event, DecisionMade):
        reasons = {job: replace(reason, text="") for job, reason in event.reasons.items()}
        return replace(event, reasons=reasons)
    return replace(event, reason="") if isinstance(event, JobFinished) else event


def _wordless_payload(state: SchedulerState) -> bytes:
    kept = {name: (job.reason, job.failure, job.stopped_for) for name, job in state.jobs.items()}
    try:
        for job in state.jobs.values():
            job.reason = None if job.reason is None else replace(job.reason, text="")
            job.failure, job.stopped_for = _mute(job.failure), _mute(job.stopped_for)
        return payload(state)
    finally:
        for name, (reason, failure, stopped_for) in kept.items():
            job = state.jobs[name]
            job.reason, job.failure, job.stopped_for = reason, failure, stopped_for


def _mute(failure: Failure | None) -> Failure | None:
    return None if failure is None else replace(failure, reason="")


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _sha(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()


def fingerprint() -> dict[str, str]:
    """What the last bits of floating-point results depend on: libraries, the processor, the threads of OpenBLAS."""
    import numpy as np
    import scipy
    from numpy._core._multiarray_umath import __cpu_features__

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "core": os.environ.get("OPENBLAS_CORETYPE", ""),
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", ""),
        "cpu": " ".join(sorted(name for name, there in __cpu_features__.items() if there)),
    }
