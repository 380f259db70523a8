"""How targets become actions: resizes, moves in a circle, cancels at every moment, lost and drained nodes."""

from __future__ import annotations

import pytest

from coadapt.model import CancelRequested, NodeDrained, NodeJoined, NodeLost
from coadapt.model.snapshot import Phase
from coadapt.policies import FifoPolicy
from coadapt.simulation.engine.simulated_executor import constant
from tests.builders import a_cluster, a_job, a_trained_job, on, simulated
from tests.scenarios.told import Script, told


def test_resize_releases_before_another_starts_on_what_it_left() -> None:
    """At 20 a shrinks from 4 GPUs to 2 and b gets the rest: b starts only after a's release."""
    jobs = [(0.0, "a", a_job(4, at_most=4, duration_s=50)), (20.0, "b", a_job(2, duration_s=10))]
    policy = Script((0.0, {"a": on(("n0", 4))}), (20.0, {"b": on(("n0", 2)), "a": on(("n0", 2))}))
    records, _ = simulated(jobs, a_cluster("1x4"), policy, change_cost=constant(5))
    assert told(records) == [
        "0 start a #1 on n0x4",
        "5 started a",
        "20 resize a to n0x2",
        "20 released a",
        "20 start b #1 on n0x2",
        "25 resized a",
        "25 started b",
        "35 succeeded b",
        "60 succeeded a",
    ]


def test_circular_move_is_broken_by_a_stop() -> None:
    """a and b change places, each waiting for the other: a is stopped, b moves, a starts where b was."""
    jobs = [(0.0, "a", a_job(duration_s=50)), (0.0, "b", a_job(duration_s=50))]
    policy = Script((0.0, {"a": on("n0"), "b": on("n1")}), (20.0, {"a": on("n1"), "b": on("n0")}))
    records, _ = simulated(jobs, a_cluster("2x1"), policy, change_cost=constant(5), stop_s=2.0)
    assert told(records) == [
        "0 start a #1 on n0x1",
        "0 start b #1 on n1x1",
        "5 started a",
        "5 started b",
        "20 stop a (pause)",
        "22 stopped a (paused)",
        "22 resize b to n0x1",
        "22 released b",
        "22 start a #2 on n1x1",
        "27 resized b",
        "27 started a",
        "60 succeeded b",
        "62 succeeded a",
    ]


def test_lost_node_loses_the_progress_since_the_last_saved_state() -> None:
    """a is 30 s into its 100 s when n0 is lost; a job without a model has saved nothing: all is done again on n1."""
    faults = [(40.0, NodeLost(node="n0"))]
    records, _ = simulated(
        [(0.0, "a", a_job(duration_s=100))],
        a_cluster("2x1"),
        FifoPolicy(),
        change_cost=constant(10),
        events=faults,
    )
    assert told(records) == [
        "0 start a #1 on n0x1",
        "10 started a",
        "40 stop a (node-lost)",
        "40 stopped a (node-lost)",
        "40 start a #2 on n1x1",
        "50 started a",
        "150 succeeded a",
    ]


def test_lost_node_keeps_the_epochs_that_were_saved() -> None:
    """One GPU at M0: 1 s a step, 100 s an epoch. Lost at 160 in the second epoch: the first is kept, so 100 s
    remain after the start at 170."""
    faults = [(160.0, NodeLost(node="n0"))]
    records, _ = simulated(
        [(0.0, "a", a_trained_job())], a_cluster("2x1"), FifoPolicy(), change_cost=constant(10), events=faults
    )
    assert told(records)[-2:] == ["170 started a", "270 succeeded a"]


def test_moving_away_from_a_lost_node_loses_progress_too() -> None:
    """At 20 a is to move from n0 to n1, where b is being stopped until 30; at 25 n0 is lost, a with it. a had been
    promised n1; nobody holds it, so a starts there anew once decided: 10 s of start, 50 s of work."""
    jobs = [(0.0, "a", a_job(duration_s=50)), (0.0, "b", a_job(duration_s=50))]
    policy = Script(
        (0.0, {"a": on("n0"), "b": on("n1")}),
        (20.0, {"b": on(), "a": on("n1")}),
        (40.0, {"a": on("n1")}),
        (130.0, {"b": on("n1")}),
    )
    faults = [(25.0, NodeLost(node="n0"))]
    records, _ = simulated(
        jobs, a_cluster("2x1"), policy, change_cost=constant(10), stop_s=10.0, events=faults
    )
    assert told(records) == [
        "0 start a #1 on n0x1",
        "0 start b #1 on n1x1",
        "10 started a",
        "10 started b",
        "20 stop b (pause)",
        "25 stop a (node-lost)",
        "30 stopped b (paused)",
        "35 stopped a (node-lost)",
        "40 start a #2 on n1x1",
        "50 started a",
        "100 succeeded a",
        "130 start b #2 on n1x1",
        "140 started b",
        "180 succeeded b",
    ]


def test_drained_node_is_left_with_progress_and_only_by_those_who_may() -> None:
    """n0 is drained at 30: a moves with its 20 s of progress; b may not be preempted and stays to its end at 110."""
    jobs = [(0.0, "a", a_job(duration_s=50)), (0.0, "b", a_job(duration_s=100, preemptible=False))]
    drain = [(30.0, NodeDrained(node="n0"))]
    records, _ = simulated(jobs, a_cluster("2x2"), FifoPolicy(), change_cost=constant(10), events=drain)
    assert told(records) == [
        "0 start a #1 on n0x1",
        "0 start b #1 on n0x1",
        "10 started a",
        "10 started b",
        "30 stop a (drain)",
        "30 stopped a (drained)",
        "30 start a #2 on n1x1",
        "40 started a",
        "70 succeeded a",
        "110 succeeded b",
    ]


def test_node_that_returns_takes_jobs_again() -> None:
    """The only node is lost at 20 and back at 100."""
    cluster = a_cluster("1x1")
    faults = [(20.0, NodeLost(node="n0")), (100.0, NodeJoined(node=cluster.nodes[0]))]
    records, _ = simulated(
        [(0.0, "a", a_job(duration_s=30))], cluster, FifoPolicy(), change_cost=constant(0), events=faults
    )
    assert told(records)[-3:] == ["100 start a #2 on n0x1", "100 started a", "130 succeeded a"]


@pytest.mark.parametrize(
    ("at", "during", "expected"),
    [
        (3.0, Phase.STARTING, ["3 stop a (cancel)", "7 stopped a (cancelled)"]),
        (15.0, Phase.RUNNING, ["15 stop a (cancel)", "19 stopped a (cancelled)"]),
        (22.0, Phase.RESIZING, ["22 stop a (cancel)", "26 stopped a (cancelled)"]),
        (42.0, Phase.STOPPING, ["44 stopped a (paused)"]),
        (50.0, Phase.PAUSED, []),
    ],
)
def test_cancel_in_every_phase(at: float, during: Phase, expected: list[str]) -> None:
    """a starts 0-10, is resized 20-30, stopped 40-44; a stop takes 4 s. Nothing follows the cancellation but the stop."""
    policy = Script((0.0, {"a": on(("n0", 2))}), (20.0, {"a": on("n0")}), (40.0, {"a": on()}))
    records, result = simulated(
        [(0.0, "a", a_job(2, at_most=2, duration_s=1000))],
        a_cluster("1x2"),
        policy,
        change_cost=constant(10),
        stop_s=4.0,
        events=[(at, CancelRequested(job="a"))],
    )
    assert [line for line in told(records) if float(line.split()[0]) >= at] == expected
    assert result.state.jobs["a"].phase is Phase.CANCELLED
    assert result.state.nodes["n0"].held == 0


def test_cancelled_job_is_promised_nothing_while_it_stops() -> None:
    """a is cancelled at 20 and takes 10 s to stop: its GPU is promised to b at once, and b starts at 30."""
    jobs = [(0.0, "a", a_job(duration_s=100)), (10.0, "b", a_job(duration_s=10))]
    records, _ = simulated(
        jobs,
        a_cluster("1x1"),
        FifoPolicy(),
        change_cost=constant(0),
        stop_s=10.0,
        events=[(20.0, CancelRequested(job="a"))],
    )
    assert told(records)[2:] == [
        "20 stop a (cancel)",
        "30 stopped a (cancelled)",
        "30 start b #1 on n0x1",
        "30 started b",
        "40 succeeded b",
    ]
