"""Whatever happens, under every policy: no GPU twice, no job lost, nothing after its end, capacity kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import Record
from coadapt.model.snapshot import ENDED
from coadapt.report import History
from coadapt.scheduler import SchedulerState
from tests.builders import GPUS_ONLY, every_policy
from tests.properties.ledger import Ledger
from tests.properties.world import World, budget, live, worlds

POLICIES = every_policy()


@pytest.mark.parametrize("name", POLICIES)
def test_invariants_hold_after_every_record(name: str) -> None:
    @budget(30 if name == "pollux" else 60)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        world: World = data.draw(worlds(gpus_only=name in GPUS_ONLY))
        folded, ledger = SchedulerState(), Ledger()

        def check(record: Record) -> None:
            folded.apply(record)
            folded.validate()
            ledger.take(record)

        records, state = live(world, POLICIES[name](), on_record=check)
        state.validate()
        ledger.check_end()
        for job in state.jobs.values():
            assert job.phase in ENDED, f"{job.id} is {job.phase} at the end"
            assert job.phase.value.lower() == ledger.jobs[job.id].outcome
        assert {name for _, name, _ in world.submissions} == set(state.jobs)
        told = History.of(records)
        for job in state.jobs.values():
            seen = told.jobs[job.id]
            assert (seen.phase, seen.ended_at, seen.attempt) == (job.phase, job.finished_at, job.attempt)
            assert abs(seen.held_gpu_s - job.attained_gpu_s(state.now)) < 1e-6

    run()
