from __future__ import annotations

from collections.abc import Iterator

from coadapt.model import AnyEvent, CancelRequested, JobStarted
from coadapt.runtime import Cursor
from coadapt.runtime.controller import LocalFeed, SteadyClock

STARTED = JobStarted(job="a", attempt=1)
CANCELLED = CancelRequested(job="a")


class World:
    """Executor, inbox and clock in one: time passes only when somebody waits."""

    def __init__(self) -> None:
        self.time = 100.0
        #: (when it happens, event)
        self.coming: list[tuple[float, AnyEvent]] = []
        self.inbox: dict[int, AnyEvent] = {}
        self.acknowledged: list[str] = []
        self.beats: list[float] = []

    def clock(self) -> float:
        return self.time

    def feed(self) -> LocalFeed:
        return LocalFeed(self, _Inbox(self), self.clock, heartbeat=self.beats.append)

    def take(self, timeout_s: float) -> list[tuple[Cursor, AnyEvent]]:
        first = min((at for at, _ in self.coming), default=float("inf"))
        self.time = max(self.time, min(first, self.time + timeout_s))
        found = [event for at, event in self.coming if at <= self.time]
        self.coming = [item for item in self.coming if item[0] > self.time]
        return [(Cursor(source="k", number=n), event) for n, event in enumerate(found, start=1)]

    def acknowledge(self, cursor: Cursor) -> None:
        self.acknowledged.append(f"executor {cursor.source} {cursor.number}")


class _Inbox:
    def __init__(self, world: World) -> None:
        self.world = world

    def put(self, event: AnyEvent) -> int:
        raise NotImplementedError

    def take(self) -> Iterator[tuple[int, AnyEvent]]:
        return iter(sorted(self.world.inbox.items()))

    def acknowledge(self, number: int) -> None:
        del self.world.inbox[number]
        self.world.acknowledged.append(f"inbox {number}")


def test_event_is_acknowledged_only_by_asking_for_the_next() -> None:
    world = World()
    world.coming = [(100.0, STARTED)]
    world.inbox = {7: CANCELLED}
    feed = world.feed()
    assert feed.next(None) == (100.0, STARTED)
    assert world.acknowledged == []
    assert feed.next(None) == (100.0, CANCELLED)
    assert world.acknowledged == ["executor k 1"]
    assert feed.next(100.5) is None
    assert world.acknowledged == ["executor k 1", "inbox 7"]


def test_burst_is_one_instant_and_comes_before_its_decision() -> None:
    world = World()
    world.coming = [(100.0, STARTED)]
    world.inbox = {1: CANCELLED, 2: CANCELLED}
    feed = world.feed()
    times = []
    until = None
    while (found := feed.next(until)) is not None:
        times.append(found[0])
        until = found[0]
        world.time += 0.001  # handling takes time
    assert times == [100.0] * 3


def test_stream_without_pause_cannot_keep_a_decision_waiting() -> None:
    world = World()
    world.coming = [(100.0 + 0.001 * i, STARTED) for i in range(1000)]
    feed = world.feed()
    assert feed.next(100.0) == (100.0, STARTED)
    world.time = 100.5  # slow handling; hundreds of events have come meanwhile
    assert feed.next(100.0) is None
    assert feed.next(None) == (100.5, STARTED)


def test_none_comes_when_until_has_come_and_not_before() -> None:
    world = World()
    world.coming = [(103.0, STARTED)]
    feed = world.feed()
    assert feed.next(102.0) is None
    assert world.time >= 102.0
    assert feed.next(103.0) == (103.0, STARTED)


def test_heartbeat_comes_while_nothing_happens() -> None:
    world = World()
    world.feed().next(101.0)
    gaps = [after - before for before, after in zip(world.beats, world.beats[1:], strict=False)]
    assert len(world.beats) >= 20
    assert max(gaps) <= 0.05 + 1e-9


def test_heartbeat_comes_before_every_event_of_a_burst() -> None:
    world = World()
    world.inbox = dict.fromkeys(range(143), CANCELLED)
    feed = world.feed()
    for _ in range(143):
        assert feed.next(None) is not None
        world.time += 0.05  # handling takes time
    gaps = [after - before for before, after in zip(world.beats, world.beats[1:], strict=False)]
    assert len(world.beats) >= 143
    assert max(gaps) <= 0.05 + 1e-9


def test_stopped_feed_waits_no_more() -> None:
    feed = World().feed()
    feed.stop()
    assert feed.next(None) is None
    assert feed.stopped


def test_clock_goes_on_from_the_log_when_the_wall_clock_was_set_back() -> None:
    far = 4e9
    clock = SteadyClock(not_before=far)
    first = clock()
    assert far <= first <= clock() < far + 60
    assert SteadyClock()() < far
