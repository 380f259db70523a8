"""Chaos on joined machines, as the benchmark of engines does it: hub, controllers, agents and whole machines are killed at random.

The replicas' own records decide: no two attempts of a job lived at once, every attempt ended exactly once, and nothing is left.
COADAPT_KILLS sets the number of kills of each kind (2; the issue's figure is 30).
"""

from __future__ import annotations

import os

import pytest
from benchmarks.engines_chaos import JOBS, a_round
from benchmarks.engines_worlds import World

KILLS = int(os.environ.get("COADAPT_KILLS", "2"))


@pytest.mark.long
def test_nothing_runs_twice_or_is_lost_whatever_is_killed() -> None:
    found = a_round(World(), 2026, ["controller", "agent", "machine"] * KILLS, last=False)
    print(found)
    assert found["overlaps"] == 0
    assert found["lost_ends"] == 0
    assert found["orphans"] == 0
    assert set(found["causes"]) <= {"lost", "preempted", "cancelled"}, (
        "no kill of ours is a failure of the job"
    )
    assert found["lived"] > len(JOBS)
