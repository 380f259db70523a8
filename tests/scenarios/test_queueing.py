"""Who runs when: order, backfill, preemption, dependencies, retries, rounds. Timelines stand in the docstrings."""

from __future__ import annotations

from coadapt.model import CancelRequested
from coadapt.model.snapshot import Phase
from coadapt.policies import FifoPolicy
from coadapt.simulation.engine.simulated_executor import constant
from tests.builders import a_cluster, a_job, simulated
from tests.properties.world import Crash, World, live
from tests.scenarios.told import Preemptive, decided_at, told

THREE = [
    (0.0, "a", a_job(3, duration_s=100)),
    (1.0, "b", a_job(2, duration_s=50)),
    (2.0, "c", a_job(1, duration_s=10)),
]


def test_fifo_with_backfill_lets_a_small_job_pass() -> None:
    """4 GPUs, starts take 10 s. a (3) runs 10-110; b (2) must wait for it; c (1) fits beside a: 12-22."""
    records, _ = simulated(THREE, a_cluster("1x4"), FifoPolicy(), change_cost=constant(10))
    assert told(records) == [
        "0 start a #1 on n0x3",
        "2 start c #1 on n0x1",
        "10 started a",
        "12 started c",
        "22 succeeded c",
        "110 succeeded a",
        "110 start b #1 on n0x2",
        "120 started b",
        "170 succeeded b",
    ]


def test_fifo_without_backfill_blocks_the_queue() -> None:
    """The same, but c stays behind b: both start when a is gone."""
    records, _ = simulated(THREE, a_cluster("1x4"), FifoPolicy(backfill=False), change_cost=constant(10))
    assert told(records) == [
        "0 start a #1 on n0x3",
        "10 started a",
        "110 succeeded a",
        "110 start b #1 on n0x2",
        "110 start c #1 on n0x1",
        "120 started b",
        "120 started c",
        "130 succeeded c",
        "170 succeeded b",
    ]


def test_preemption_stops_waits_and_resumes_where_it_was() -> None:
    """a runs from 5; at 30 the urgent b comes: a stops (25 s of 40 done), its GPUs are free at 33, b runs
    38-48; then a starts again, has 15 s to do from 53: 68."""
    jobs = [(0.0, "a", a_job(4, duration_s=40)), (30.0, "b", a_job(4, duration_s=10, priority=1))]
    records, _ = simulated(jobs, a_cluster("1x4"), Preemptive(), change_cost=constant(5), stop_s=3.0)
    assert told(records) == [
        "0 start a #1 on n0x4",
        "5 started a",
        "30 stop a (pause)",
        "33 stopped a (paused)",
        "33 start b #1 on n0x4",
        "38 started b",
        "48 succeeded b",
        "48 start a #2 on n0x4",
        "53 started a",
        "68 succeeded a",
    ]


def test_dependency_chain_runs_in_order_and_a_failure_ends_the_rest() -> None:
    """a -> b -> c one after the other although there is room; x is cancelled at 5, so y and z never run."""
    jobs = [
        (0.0, "c", a_job(duration_s=10, after=("b",))),
        (0.0, "b", a_job(duration_s=10, after=("a",))),
        (0.0, "a", a_job(duration_s=10)),
        (0.0, "z", a_job(duration_s=10, after=("y",))),
        (0.0, "y", a_job(duration_s=10, after=("x",))),
        (0.0, "x", a_job(duration_s=10)),
    ]
    cancel = [(5.0, CancelRequested(job="x"))]
    records, result = simulated(jobs, a_cluster("1x4"), FifoPolicy(), change_cost=constant(0), events=cancel)
    assert told(records) == [
        "0 start a #1 on n0x1",
        "0 start x #1 on n0x1",
        "0 started a",
        "0 started x",
        "5 stop x (cancel)",
        "5 stopped x (cancelled)",
        "10 succeeded a",
        "10 start b #1 on n0x1",
        "10 started b",
        "20 succeeded b",
        "20 start c #1 on n0x1",
        "20 started c",
        "30 succeeded c",
    ]
    assert [result.state.jobs[name].phase for name in "xyz"] == [Phase.CANCELLED] * 3
    assert result.state.jobs["z"].finished_at == 5.0


def test_failing_job_is_retried_as_often_as_its_spec_says() -> None:
    """One retry: it fails at 10, waits for 10 s, in which b runs, starts again, fails at 30, and stays failed."""
    world = World(
        cluster=a_cluster("1x1"),
        submissions=((0.0, "a", a_job(duration_s=100, retries=1)), (0.0, "b", a_job(duration_s=5))),
        happenings=((10.0, Crash("a")), (30.0, Crash("a"))),
        change_s=2.0,
    )
    records, state = live(world, FifoPolicy())
    assert told(records) == [
        "0 start a #1 on n0x1",
        "2 started a",
        "10 failed a",
        "10 start b #1 on n0x1",
        "12 started b",
        "17 succeeded b",
        "20 start a #2 on n0x1",
        "22 started a",
        "30 failed a",
    ]
    assert state.jobs["a"].phase is Phase.FAILED


def test_round_mode_decides_at_exact_multiples_only() -> None:
    """Rounds of 60 s. a comes at 1 and starts at 60; ends at 165; b, there since 61, starts at 180."""
    jobs = [(1.0, "a", a_job(4, duration_s=100)), (61.0, "b", a_job(4, duration_s=1))]
    records, _ = simulated(jobs, a_cluster("1x4"), FifoPolicy(), interval_s=60.0, change_cost=constant(5))
    assert decided_at(records) == [60.0, 120.0, 180.0]
    assert told(records) == [
        "60 start a #1 on n0x4",
        "65 started a",
        "165 succeeded a",
        "180 start b #1 on n0x4",
        "185 started b",
        "186 succeeded b",
    ]


def test_min_interval_spaces_decisions() -> None:
    """Jobs at 0, 1, 2 and 30 with at least 10 s between decisions: at 0, 10 (for two of them) and 30; ends at 1000
    call for one more each."""
    jobs = [(at, f"j{at:g}", a_job(duration_s=1000)) for at in (0.0, 1.0, 2.0, 30.0)]
    records, _ = simulated(jobs, a_cluster("1x4"), FifoPolicy(), min_interval_s=10.0, change_cost=constant(0))
    assert decided_at(records) == [0.0, 10.0, 30.0, 1000.0, 1010.0, 1030.0]


def test_simultaneous_submissions_cost_one_decision() -> None:
    """Fifty jobs at one instant, and one decision for all of them."""
    jobs = [(7.0, f"j{i}", a_job(duration_s=10)) for i in range(50)]
    records, _ = simulated(jobs, a_cluster("13x4"), FifoPolicy(), change_cost=constant(0))
    assert decided_at(records) == [0.0, 7.0, 17.0]
