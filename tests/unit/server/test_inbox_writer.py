"""The writer: together what comes together, each with its own outcome, and nothing answered that is not stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from coadapt.errors import InputError
from coadapt.model import AnyEvent, CancelRequested
from coadapt.server.inbox_writer import Entry, KeyReusedError, Maker, Writer
from coadapt.store.audit_log import Attribution
from coadapt.store.inbox import Asked


class _Inbox:
    """Stores after ``gate`` was opened."""

    def __init__(self) -> None:
        self.gate, self.batches, self.closed = threading.Event(), [], False
        self.batches: list[int] = []
        self.stored: list[AnyEvent] = []
        self.broken = False

    def submit_all(
        self,
        entries: Sequence[tuple[Maker, str | None]],
        who: Sequence[Attribution | None] = (),
        asked: Sequence[Asked | None] = (),
    ) -> list[int | InputError]:
        self.gate.wait()
        if self.broken:
            raise InputError("the disk is full")
        self.batches.append(len(entries))
        answers: list[int | InputError] = []
        for make, key in entries:
            if key == "used":
                answers.append(InputError("key was used"))
            else:
                self.stored.append(make(len(self.stored)))
                answers.append(len(self.stored) - 1)
        return answers

    def close(self) -> None:
        self.closed = True


def _entry(name: str, key: str | None = None) -> Entry:
    return Entry(lambda number: CancelRequested(job=f"{name}-{number}"), key)


def test_requests_that_come_together_are_stored_together() -> None:
    async def run(inbox: _Inbox) -> None:
        writer = Writer(lambda: inbox)
        first = asyncio.create_task(writer.put(_entry("a")))
        await asyncio.sleep(0)
        others = [asyncio.create_task(writer.put(_entry("b"), _entry("c"))) for _ in range(20)]
        await asyncio.sleep(0)
        assert not first.done()
        inbox.gate.set()
        numbers = [number for each in await asyncio.gather(first, *others) for number in each]
        assert numbers == list(range(41))
        await asyncio.to_thread(writer.close)

    inbox = _Inbox()
    asyncio.run(run(inbox))
    assert sum(inbox.batches) == 41
    assert len(inbox.batches) <= 3
    assert inbox.closed


def test_key_of_another_request_fails_that_request_alone() -> None:
    async def run(inbox: _Inbox) -> None:
        writer = Writer(lambda: inbox)
        tasks = [asyncio.create_task(writer.put(_entry("a", key))) for key in ("new", "used", None)]
        inbox.gate.set()
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(second, KeyReusedError)
        assert [first, third] == [[0], [1]]
        await asyncio.to_thread(writer.close)

    asyncio.run(run(_Inbox()))


def test_store_that_fails_fails_the_request_and_recovers() -> None:
    async def run(inbox: _Inbox) -> None:
        writer = Writer(lambda: inbox)
        inbox.gate.set()
        inbox.broken = True
        with pytest.raises(InputError):
            await writer.put(_entry("a"))
        inbox.broken = False
        assert await writer.put(_entry("b")) == [0]
        await asyncio.to_thread(writer.close)

    asyncio.run(run(_Inbox()))
