"""Errors of a replica as its user sees them: ours in one line, and of several replicas the first one's own error.

A replica that fails leaves its error in the store. The others then fail inside a collective, with an error of gloo that says nothing: they
say which replica failed first and why.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import torch.distributed as dist

from coadapt.errors import CoadaptError
from coadapt.torch.elastic.process_group import Group
from coadapt.torch.training import script_frames

_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket Timeout",
    "Timed out waiting",
)
_PATIENCE_S = 2.0


def install(group: Callable[[], Group]) -> None:
    """Show errors of this process so; ``group`` returns the replicas at the time of an error."""
    before = sys.excepthook
    if getattr(before, "of_coadapt", False):
        before = before.before  # type: ignore[attr-defined]

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        place = group().place
        first = _first_failure(group()) if place.replicas > 1 and _is_lost(error) else ""
        if first:
            print(f"coadapt: replica {place.rank} ends: {first}", file=sys.stderr, flush=True)
            return
        if place.replicas > 1:
            _leave_failure(group(), error, trace)
        if isinstance(error, CoadaptError):
            print(f"coadapt: {told(error, trace)}", file=sys.stderr, flush=True)
        else:
            before(kind, error, trace)

    show.of_coadapt, show.before = True, before  # type: ignore[attr-defined]
    sys.excepthook = show


@contextmanager
def fatal() -> Iterator[None]:
    """End the process with an error or an exit inside, where Python would ignore it: while a loop is being left."""
    try:
        yield
    except BaseException as error:
        code = 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        else:
            sys.excepthook(type(error), error, error.__traceback__)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def told(error: BaseException, trace: TracebackType | None) -> str:
    """An error in one line, with the line of the script."""
    where = script_frames.line_of(trace)
    what = str(error) if isinstance(error, CoadaptError) else f"{type(error).__name__}: {error}"
    first = (what.strip().splitlines() or [type(error).__name__])[0]
    return f"{first} ({where})" if where else first


def _is_lost(error: BaseException) -> bool:
    lost = isinstance(error, (RuntimeError, dist.DistError))
    return lost and any(text in str(error) for text in _LOST)


def _key(group: Group) -> str:
    return f"failure{group.generation}"


def _leave_failure(group: Group, error: BaseException, trace: TracebackType | None) -> None:
    with suppress(Exception):  # the store may be gone: nothing more can be said
        store: Any = group.connect()
        text = f"replica {group.place.rank} failed first: {told(error, trace)}"
        store.compare_set(_key(group), "", text)


def _first_failure(group: Group) -> str:
    """What the replica that failed first has left."""
    with suppress(Exception):
        store: Any = group.connect()
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            if store.check([_key(group)]):
                return str(store.get(_key(group)).decode())
            time.sleep(0.05)
    return "another replica has ended; its own output says why"
