"""The generator of load does not hide a slow server behind its own waiting."""

from __future__ import annotations

import asyncio
import random

import pytest
from benchmarks import server_load
from benchmarks.server_load import Load


class Clock:
    """Time passes only where it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Slow:
    """Each answer takes so long."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    async def ask(self, *request: object) -> tuple[int, bytes]:
        self._clock.now += self._seconds
        return 200, b""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(server_load, "time", clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return clock


def loaded(clock: Clock, seconds: float, answer_s: float, every_s: float) -> Load:
    load = Load.__new__(Load)
    load.seconds, load.latencies, load.refused, load.unsent = seconds, {"read": []}, {}, 0
    load._began = clock.now

    async def run() -> None:
        async for due in load._beats(every_s, random.Random(1)):
            await load._timed("read", due, Slow(clock, answer_s))  # type: ignore[arg-type]

    asyncio.run(run())
    return load


def test_fast_answers_are_as_fast_as_they_are(clock: Clock) -> None:
    load = loaded(clock, 10.0, 0.01, 1.0)
    assert len(load.latencies["read"]) == 10
    assert load.latencies["read"] == pytest.approx([0.01] * 10)
    assert load.unsent == 0


def test_requests_that_wait_for_a_slow_answer_before_them_are_late_too(clock: Clock) -> None:
    load = loaded(clock, 10.0, 2.0, 1.0)
    assert load.latencies["read"] == pytest.approx([2.0, 3.0, 4.0, 5.0, 6.0])
    assert load.unsent == 5


def test_without_a_pause_a_request_is_due_when_it_is_sent(clock: Clock) -> None:
    load = loaded(clock, 1.0, 0.25, 0.0)
    assert load.latencies["read"] == pytest.approx([0.25] * 4)
    assert load.unsent == 0
