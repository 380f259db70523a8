"""Notices: how replicas agree on the step at which something happens (a stop, a checkpoint, a resize, a new memory limit).

Any replica, or the launcher, writes a notice into the store. A thread of each replica reads it, promises that its training will not
go beyond the next step before all replicas have promised, and writes that step into the store. The latest promise is the agreed
step. Synchronous replicas are at most one step apart, so no replica waits long; nothing happens inside a step, and a step without
a notice costs no message; a plain step costs not even a lock.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import msgspec
import torch.distributed as dist

from coadapt.errors import CoadaptError
from coadapt.torch.elastic.process_group import Group
from coadapt.torch.training.replica_training import PlainRun
from coadapt.torch.training.step_plan import Ledger

_POLL_S, _JOIN_S = 0.05, 5.0
_PATIENCE = timedelta(seconds=60)


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen at a step that replicas agree on."""

    kind: str  # "stop" | "checkpoint" | "resize" | "limit"
    #: Most examples in one backward pass, for "limit".
    atomic: int = 0
    #: The next generation and its replicas, by name in order of rank, for "resize".
    generation: int = 0
    members: tuple[str, ...] = ()
    #: The number of the machine of each of them, for "resize"; empty: all are on one.
    nodes: tuple[int, ...] = ()


class Notices:
    """Owns the notices of one generation and the thread that watches for them.

    ``request`` may be called from any thread and from a signal handler, ``due`` by the training thread only.
    """

    def __init__(self, group: Group, ledger: Ledger, plain: PlainRun) -> None:
        self._rank, self._replicas = group.place.rank, group.place.replicas
        self._prefix = f"notices{group.generation}"
        self._lock = threading.Lock()
        self._requested: list[Notice] = []
        self._ledger, self._plain, self._number = ledger, plain, 0
        #: A notice was read and has not become due yet.
        self._announced = False
        self._hold: int | None = None
        self._agreed: int | None = None
        self._notice: Notice | None = None
        self._settled = threading.Event()
        self._closed = False
        self._store = group.connect()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="coadapt-notices")
        if self._store is not None:
            if group.place.first:
                self._store.set(
                    f"listening{group.generation}", "1"
                )  # for keepers: this attempt can be resized in place
            self._thread.start()

    def request(self, notice: Notice) -> None:
        """Have ``notice`` happen at the next step that all replicas agree on."""
        # no lock may be taken: a signal may interrupt this very thread while it holds one
        self._requested.append(notice)
        self._plain.interrupt()

    def announce(self) -> None:
        """Wait until the other replicas can read what was requested: this replica exits."""
        until = time.monotonic() + _JOIN_S
        while self._store is not None and not self._announced and time.monotonic() < until:
            time.sleep(_POLL_S)

    @property
    def announced_kind(self) -> str:
        """The kind of the notice that was read and is not due yet; empty if there is none."""
        notice = self._notice
        return notice.kind if notice is not None else ""

    @property
    def pending(self) -> bool:
        """Whether ``due`` must be called after every step."""
        return self._announced or bool(self._requested)

    @property
    def requested(self) -> bool:
        """Whether this replica has requested a notice that has not become due."""
        return bool(self._requested)

    def due(self, step: int) -> Notice | None:
        """The notice to act on now, after step number ``step``; called between steps."""
        if self._store is None:
            return self._requested.pop(0) if self._requested else None
        with self._lock:
            hold = self._hold
        if hold is None or step < hold:
            return None
        if not self._settled.wait(_PATIENCE.total_seconds()):
            raise CoadaptError("other replicas did not answer a notice; they may have exited")
        assert self._agreed is not None
        if step < self._agreed:
            return None
        with self._lock:
            notice, self._notice = self._notice, None
            self._hold = self._agreed = None
            self._announced = False
            self._number += 1
            self._settled.clear()
        self._requested = [each for each in self._requested if each != notice]
        return notice

    def close(self) -> None:
        """Stop the thread: this generation is over."""
        self._closed = True
        # a thread inside the store's C++ code when the interpreter exits would abort the process
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    # -- the thread -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self._closed:
                time.sleep(_POLL_S)
                if self._hold is None and not self._closed:
                    self._poll()
        except (RuntimeError, dist.DistError):
            # the store is gone, so no notice can arrive: training continues, or fails by itself
            return

    def _poll(self) -> None:
        assert self._store is not None
        key = f"{self._prefix}/{self._number}"
        if self._requested:
            self._store.compare_set(key, "", encode(self._requested[0]))
        elif not self._store.check([key]):
            return
        self._notice = decode(self._store.get(key))
        # the order matters: training counts its step and then checks for an interrupt, so that one of the two sees the other
        self._announced = True
        self._plain.interrupt()
        with self._lock:
            self._hold = self._ledger.step + 1
        self._store.set(f"{key}/{self._rank}", str(self._hold))
        promises = [f"{key}/{rank}" for rank in range(self._replicas)]
        self._store.wait(promises, _PATIENCE)
        self._agreed = max(int(self._store.get(promise)) for promise in promises)
        self._settled.set()


def decode(text: str | bytes) -> Notice:
    """Decode a notice from JSON."""
    return msgspec.json.decode(text, type=Notice)


def encode(notice: Notice) -> str:
    """Encode a notice as JSON."""
    return msgspec.json.encode(notice).decode()
