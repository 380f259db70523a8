"""How replicas agree on the step at which something happens: a stop, a checkpoint, a resize, a new memory limit.

Any replica, or the launcher, writes a notice into the store. A thread of each replica sees it, promises a step beyond which
its training will not go before all have promised (the next one), and writes that down; the latest of all
promises is the step. Synchronous replicas are at most one step apart, so nobody waits for long, nobody is
asked inside a step, and a step without a notice costs no message; a plain one (``plain``) not even a lock.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import msgspec
import torch.distributed as dist

from coadapt.errors import CoadaptError
from coadapt.torch.group import Group
from coadapt.torch.ledger import Ledger
from coadapt.torch.plain import Plain

_LOOK_AGAIN_S, _JOIN_S = 0.05, 5.0
_PATIENCE = timedelta(seconds=60)


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What shall happen, at a step to be agreed."""

    kind: str  # "stop" | "checkpoint" | "resize" | "limit"
    #: Most examples in one backward pass, for "limit".
    atomic: int = 0
    #: Who is in the next generation, by name and in order of rank, for "resize".
    generation: int = 0
    members: tuple[str, ...] = ()
    #: On which machine each of them is, by number, for "resize"; empty: all on one.
    nodes: tuple[int, ...] = ()


class Notices:
    """Of one generation. ``ask`` may be called from anywhere, a signal handler included; ``due`` by the training thread."""

    def __init__(self, group: Group, ledger: Ledger, plain: Plain) -> None:
        self._rank, self._replicas = group.place.rank, group.place.replicas
        self._prefix = f"notices{group.generation}"
        self._lock = threading.Lock()
        self._asked: list[Notice] = []
        self._ledger, self._plain, self._number = ledger, plain, 0
        #: A notice was seen that is not yet done with.
        self._called = False
        self._hold: int | None = None
        self._agreed: int | None = None
        self._notice: Notice | None = None
        self._settled = threading.Event()
        self._closed = False
        self._store = group.connect()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="coadapt-notices")
        if self._store is not None:
            if group.place.first:
                self._store.set(f"listening{group.generation}", "1")  # a keeper may ask
            self._thread.start()

    def ask(self, notice: Notice) -> None:
        """This shall happen at the next step that all agree on."""
        # nothing but this: a signal may come while this very thread holds any lock
        self._asked.append(notice)
        self._plain.interrupt()

    @property
    def pending(self) -> bool:
        """Whether ``due`` must be asked after every step."""
        return self._called or bool(self._asked)

    @property
    def asked(self) -> bool:
        """Whether something was asked here that has not become due."""
        return bool(self._asked)

    def due(self, step: int) -> Notice | None:
        """What happens now, after step number ``step``; called between steps."""
        if self._store is None:
            return self._asked.pop(0) if self._asked else None
        with self._lock:
            hold = self._hold
        if hold is None or step < hold:
            return None
        if not self._settled.wait(_PATIENCE.total_seconds()):
            raise CoadaptError("the other replicas did not answer a notice; they may be gone")
        assert self._agreed is not None
        if step < self._agreed:
            return None
        with self._lock:
            notice, self._notice = self._notice, None
            self._hold = self._agreed = None
            self._called = False
            self._number += 1
            self._settled.clear()
        self._asked = [each for each in self._asked if each != notice]
        return notice

    def close(self) -> None:
        """This generation is over."""
        self._closed = True
        # a thread that is inside the store's C++ when the interpreter ends would abort the process
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    # -- the thread -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while not self._closed:
                time.sleep(_LOOK_AGAIN_S)
                if self._hold is None and not self._closed:
                    self._look()
        except (RuntimeError, dist.DistError):
            # the store is gone, and with it whoever could have asked: training goes on, or fails by itself
            return

    def _look(self) -> None:
        assert self._store is not None
        key = f"{self._prefix}/{self._number}"
        if self._asked:
            self._store.compare_set(key, "", encode(self._asked[0]))
        elif not self._store.check([key]):
            return
        self._notice = decode(self._store.get(key))
        # in this order: training writes its step down and then looks whether it was interrupted, so one of both sees the other
        self._called = True
        self._plain.interrupt()
        with self._lock:
            self._hold = self._ledger.step + 1
        self._store.set(f"{key}/{self._rank}", str(self._hold))
        promises = [f"{key}/{rank}" for rank in range(self._replicas)]
        self._store.wait(promises, _PATIENCE)
        self._agreed = max(int(self._store.get(promise)) for promise in promises)
        self._settled.set()


def decode(text: str | bytes) -> Notice:
    """A notice from its JSON."""
    return msgspec.json.decode(text, type=Notice)


def encode(notice: Notice) -> str:
    """The inverse."""
    return msgspec.json.encode(notice).decode()
