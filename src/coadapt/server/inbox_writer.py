"""Writes events to the inbox in one thread, many in one transaction, so that requests share the wait for the disk.

A request is answered when its events are durable. While one transaction is written the next one is collected: the more
there is to write, the less each event costs.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from coadapt.errors import InputError
from coadapt.model import AnyEvent
from coadapt.store.audit_log import Attribution
from coadapt.store.inbox import Asked

log = logging.getLogger(__name__)
#: Requests in one transaction.
_MOST = 256

#: Makes an entry's event, given the entry's number.
Maker = Callable[[int], AnyEvent]


class KeyReusedError(InputError):
    """The key of a request was used for another one."""


class Entry(NamedTuple):
    """An event to write under one number, with ``who`` asks; a repeat with the same ``key`` is not written again.

    ``asked``: what the answer is remembered by, under the key.
    """

    make: Maker
    key: str | None = None
    who: Attribution | None = None
    asked: Asked | None = None


class BatchInbox(Protocol):
    """The methods of an inbox that the writer calls, in one thread only."""

    def submit_all(
        self,
        entries: Sequence[tuple[Maker, str | None]],
        who: Sequence[Attribution | None] = ...,
        asked: Sequence[Asked | None] = ...,
    ) -> list[int | InputError]: ...

    def close(self) -> None: ...


class _Wanted(NamedTuple):
    entries: Sequence[Entry]
    done: asyncio.Future[list[int]]
    loop: asyncio.AbstractEventLoop


class Writer:
    """Used from one event loop; ``open_inbox`` is called in the thread that writes."""

    def __init__(self, open_inbox: Callable[[], BatchInbox], *, most_waiting: int = 10_000) -> None:
        self._open = open_inbox
        self._wanted: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._most_waiting = most_waiting
        self._thread = threading.Thread(target=self._run, name="inbox-writer", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether so much waits to be written that more would not be answered in time."""
        return self._wanted.qsize() >= self._most_waiting

    async def put(self, *entries: Entry) -> list[int]:
        """The numbers of the entries, all durable; KeyReusedError for a key that was used for something else."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[int]] = loop.create_future()
        self._wanted.put(_Wanted(entries, done, loop))
        # a request that is given up is written all the same: its client may not know that it was not
        return await asyncio.shield(done)

    def close(self) -> None:
        """Writes what is waiting, and ends the thread."""
        self._wanted.put(None)
        self._thread.join()

    def _run(self) -> None:
        inbox: BatchInbox | None = None
        going = True
        while going:
            batch, going = self._gather()
            try:
                inbox = inbox or self._open()
                self._write(inbox, batch)
            except Exception as error:
                log.error("the inbox cannot be written: %s", error)
                for wanted in batch:
                    _settle(wanted, error)
        if inbox is not None:
            inbox.close()

    def _gather(self) -> tuple[list[_Wanted], bool]:
        """At least one request, and all others that wait already; False: nothing more is to come."""
        batch: list[_Wanted] = []
        first = self._wanted.get()
        while first is not None:
            batch.append(first)
            if len(batch) >= _MOST:
                return batch, True
            try:
                first = self._wanted.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _write(self, inbox: BatchInbox, batch: Sequence[_Wanted]) -> None:
        entries = [entry for wanted in batch for entry in wanted.entries]
        numbers = inbox.submit_all(
            [(e.make, e.key) for e in entries], [e.who for e in entries], [e.asked for e in entries]
        )
        for wanted in batch:
            mine, numbers = numbers[: len(wanted.entries)], numbers[len(wanted.entries) :]
            wrong = next((each for each in mine if isinstance(each, InputError)), None)
            _settle(wanted, KeyReusedError(str(wrong)) if wrong else [n for n in mine if isinstance(n, int)])


def _settle(wanted: _Wanted, outcome: list[int] | Exception) -> None:
    def tell() -> None:
        if wanted.done.cancelled():
            return
        if isinstance(outcome, Exception):
            wanted.done.set_exception(outcome)
        else:
            wanted.done.set_result(outcome)

    wanted.loop.call_soon_threadsafe(tell)
