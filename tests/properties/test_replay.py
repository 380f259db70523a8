"""The log is the truth: facts give the same decisions again, and folding it gives the state without asking anybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import DECISIONS, Record, decode, encode
from coadapt.model.snapshot import Snapshot
from coadapt.policies import Curves, Memory, Proposal, Rng
from coadapt.scheduler import SchedulerState
from tests.builders import GPUS_ONLY, every_policy
from tests.properties.digest import state_digest
from tests.properties.world import World, budget, live, worlds

POLICIES = every_policy()


class Unasked:
    """A policy nobody may ask."""

    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        raise AssertionError("folding a log asked a policy")


def replayed(world: World, name: str, records: list[Record]) -> list[Record]:
    """The log that the facts in ``records`` give, handled by a new scheduler."""
    scheduler, again = world.scheduler(POLICIES[name]()), []
    for record in records:
        if isinstance(record.event, DECISIONS):
            continue
        again.append(record)
        for event in scheduler.handle(record):
            again.append(Record(seq=len(again), at=record.at, event=event))
    return again


@pytest.mark.parametrize("name", POLICIES)
def test_facts_give_the_recorded_decisions_byte_for_byte(name: str) -> None:
    @budget(8 if name == "pollux" else 20)
    @given(worlds(gpus_only=name in GPUS_ONLY))
    def run(world: World) -> None:
        records, _ = live(world, POLICIES[name]())
        again = replayed(world, name, [decode(encode(record)) for record in records])
        assert [encode(record) for record in again] == [encode(record) for record in records]

    run()


@pytest.mark.parametrize("name", POLICIES)
def test_folding_gives_the_state_without_asking_a_policy(name: str) -> None:
    @budget(8 if name == "pollux" else 20)
    @given(worlds(gpus_only=name in GPUS_ONLY), st.floats(0, 1))
    def run(world: World, part: float) -> None:
        records, state = live(world, POLICIES[name]())
        stored = [decode(encode(record)) for record in records]
        half = int(part * len(stored))
        folded = world.scheduler(Unasked())
        folded.fold(stored[:half])
        # another controller goes on where the first one stopped
        successor = world.scheduler(Unasked(), folded.state)
        successor.fold(stored[half:])
        assert state_digest(successor.state) == state_digest(state)

    run()


def test_digest_tells_states_apart() -> None:
    one, other = SchedulerState(), SchedulerState()
    assert state_digest(one) == state_digest(other)
    other.memory["key"] = 1
    assert state_digest(one) != state_digest(other)
