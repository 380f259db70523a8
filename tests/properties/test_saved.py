"""A saved state and the rest of the log are worth the whole log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import DECISIONS, Record, decode, encode
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state.saved_state import load, save
from tests.builders import GPUS_ONLY, every_policy
from tests.properties.digest import state_digest
from tests.properties.world import World, budget, live, worlds

POLICIES = every_policy()


def folded(records: list[Record], state: SchedulerState | None = None) -> SchedulerState:
    state = state if state is not None else SchedulerState()
    for record in records:
        state.apply(record)
    return state


@pytest.mark.parametrize("name", ["fifo", "tiresias", "coadapt"])
def test_saved_state_and_the_rest_give_the_state_of_the_whole_log(name: str) -> None:
    @budget(40)
    @given(worlds(), st.floats(0, 1))
    def run(world: World, part: float) -> None:
        records, _ = live(world, POLICIES[name]())
        stored = [decode(encode(record)) for record in records]
        cut = int(part * len(stored))
        saved = save(folded(stored[:cut]))
        again = load(saved)
        again.validate()
        assert save(again) == saved
        whole = folded(stored)
        folded(stored[cut:], again)
        again.validate()
        assert save(again) == save(whole)
        assert state_digest(again) == state_digest(whole)

    run()


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "pollux"])
def test_scheduler_goes_on_from_a_saved_state_as_if_nothing_had_been(name: str) -> None:
    """The facts after the cut give the recorded decisions, byte for byte. Only warm starts are gone: the one policy that
    has one, pollux, is left out: a new controller begins without its population."""

    @budget(15)
    @given(worlds(gpus_only=name in GPUS_ONLY), st.floats(0, 1))
    def run(world: World, part: float) -> None:
        records, _ = live(world, POLICIES[name]())
        stored = [decode(encode(record)) for record in records]
        cut = int(part * len(stored))
        # a fact and its answer are written together
        while cut < len(stored) and isinstance(stored[cut].event, DECISIONS):
            cut += 1
        scheduler = world.scheduler(POLICIES[name](), load(save(folded(stored[:cut]))))
        again: list[Record] = []
        for record in stored[cut:]:
            if not isinstance(record.event, DECISIONS):
                again.append(record)
                for event in scheduler.handle(record):
                    again.append(Record(seq=cut + len(again), at=record.at, event=event))
        assert [encode(record) for record in again] == [encode(record) for record in records[cut:]]

    run()
