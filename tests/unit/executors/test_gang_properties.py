"""The gang alone, on machines where everything takes as long as chance has it: what must hold in whatever order things happen."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.executors.gang.saved_gang import SavedGang, SavedResize, SavedVerdict
from coadapt.model import (
    AnyEvent,
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Placement,
    ReplicasReleased,
)
from coadapt.model.actions import StopWhy
from tests.unit.executors.gang_world import World, placed

PLACEMENTS = (
    placed(("n0", 1)),
    placed(("n0", 2)),
    placed(("n0", 1), ("n2", 1)),
    placed(("n2", 1)),
    placed(("n0", 1), ("n1", 1), ("n2", 2)),
)
WHYS: tuple[StopWhy, ...] = ("pause", "cancel", "hang", "node-lost", "time-limit")


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), setup=st.booleans(), length=st.integers(10, 250))
def test_attempts_end_once_and_never_overlap_in_any_order_of_things(
    seed: int, setup: bool, length: int
) -> None:
    """The world asserts the rest: nothing starts beside an older start, and devices are released once, when nothing uses them."""
    chance = random.Random(seed)
    world = World(chance, setup=setup)
    for _ in range(length):
        if chance.random() < 0.15:
            _act(world, chance)
        world.step()
    for key in world.events:
        world.stop(key)
    world.advance_until(lambda: world.at_rest)
    for key, events in world.events.items():
        assert world.has_ended(key), f"{key} never ended: {events}"
        assert isinstance(events[-1], JobFinished | JobStopped)
        assert sum(isinstance(event, JobStarted) for event in events) <= 1
    for machine in world.machines.values():
        assert not machine.running
        assert not machine.held, "devices were never released"


def _act(world: World, chance: random.Random) -> None:
    alive = [key for key in world.events if not world.has_ended(key)]
    what = chance.random()
    if not alive or what < 0.3:
        world.start(chance.choice(("a", "b")), chance.choice(PLACEMENTS))
    elif what < 0.75:
        world.resize(chance.choice(alive), chance.choice(PLACEMENTS))
    else:
        world.stop(chance.choice(alive), chance.choice(WHYS))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 32), setup=st.booleans(), length=st.integers(10, 250))
def test_attempts_end_once_also_when_hosts_restart_and_machines_are_lost(
    seed: int, setup: bool, length: int
) -> None:
    chance = random.Random(seed)
    world = World(chance, setup=setup)
    for _ in range(length):
        if chance.random() < 0.15:
            _act(world, chance)
        if chance.random() < 0.02:
            world.lose(chance.choice(sorted(world.machines)))
        world.restart_host()
        world.step()
    for key in world.events:
        world.stop(key)
    world.advance_until(lambda: world.at_rest)
    for key, events in world.events.items():
        assert world.has_ended(key), f"{key} never ended: {events}"
    for machine in world.machines.values():
        assert not machine.running
        assert not machine.held, "devices were never released"


def test_every_attribute_of_a_gang_is_saved() -> None:
    world = World(random.Random(1), reliable=True)
    key = world.start("a", PLACEMENTS[0])
    world.advance_until(lambda: bool(world.events[key]))
    world.resize(key, PLACEMENTS[2])
    gang = world.table._gangs[key]
    assert gang._move is not None
    constant = {"machine_of", "grace_s", "out"}
    for thing, kind in ((gang, SavedGang), (gang._verdict, SavedVerdict), (gang._move, SavedResize)):
        saved = {field.name for field in msgspec.structs.fields(kind)} | constant
        if kind is SavedVerdict:
            saved |= {"job", "attempt"}
        assert {name.lstrip("_") for name in vars(thing)} <= saved


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), way=st.lists(st.sampled_from(PLACEMENTS), min_size=1, max_size=5))
def test_resizes_that_nothing_disturbs_are_all_done_in_place(seed: int, way: list[Placement]) -> None:
    chance = random.Random(seed)
    world = World(chance, reliable=True)
    key = world.start("a", PLACEMENTS[0])
    before = PLACEMENTS[0]
    expected: list[AnyEvent] = [JobStarted(job="a", attempt=1)]
    world.advance_until(lambda: world.events[key] == expected)
    for placement in way:
        if placement == before:
            continue
        before = placement
        world.resize(key, before)
        expected += [
            ReplicasReleased(job="a", attempt=1, placement=before),
            JobResized(job="a", attempt=1, placement=before),
        ]
        count = len(expected)
        world.advance_until(lambda n=count: len(world.events[key]) >= n)  # type: ignore[misc]
        assert world.events[key] == expected
        running = sorted(p.name for machine in world.machines.values() for p in machine.running)
        assert len(running) == before.replicas
    world.advance()
    assert all(p.restarts == 0 for machine in world.machines.values() for p in machine.running)
    held = sum(len(machine.held) for machine in world.machines.values())
    assert held == before.replicas
    world.stop(key)
    world.advance_until(lambda: world.at_rest)
    assert world.events[key] == [*expected, JobStopped(job="a", attempt=1, cause="paused")]
    assert not any(machine.held for machine in world.machines.values())
