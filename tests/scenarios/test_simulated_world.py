"""Interference, noise, stragglers, and going on from any moment; all numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coadapt.model import AnyEvent, CancelRequested, Measured, NodeDrained, Record, Recorded, encode
from coadapt.model.events import DECISIONS
from coadapt.policies._base import Policy
from coadapt.policies.fifo import FifoPolicy
from coadapt.policies.recorded import RecordedPolicy
from coadapt.scheduler import SchedulerState
from coadapt.simulation.engine.interference import FlatInterference, LinkSharing
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.engine.training_model import TrainingOptions
from tests.builders import a_cluster, a_job, a_trained_job, on, simulated
from tests.scenarios.told import Preemptive, Script, told

ACROSS = on("n0", "n1")


def test_flat_interference_halves_the_rate_while_two_jobs_meet() -> None:
    """a has done 20 s of 100 when b comes; at half rate b's 30 s take 60: until 80, when a has done 50; 50 remain."""
    jobs = [(0.0, "a", a_job(2, duration_s=100)), (20.0, "b", a_job(2, duration_s=30))]
    policy = Script((0.0, {"a": ACROSS}), (20.0, {"b": ACROSS}))
    records, _ = simulated(
        jobs, a_cluster("2x2"), policy, change_cost=constant(0), interference=FlatInterference(0.5)
    )
    assert [line for line in told(records) if "succeeded" in line] == ["80 succeeded b", "130 succeeded a"]


def test_jobs_on_one_node_each_do_not_interfere() -> None:
    """Only jobs that span nodes share a link."""
    jobs = [(0.0, "a", a_job(2, duration_s=100)), (0.0, "b", a_job(1, duration_s=30))]
    policy = Script((0.0, {"a": ACROSS, "b": on("n0")}))
    records, _ = simulated(
        jobs, a_cluster("2x2"), policy, change_cost=constant(0), interference=FlatInterference(0.5)
    )
    assert [line for line in told(records) if "succeeded" in line] == ["30 succeeded b", "100 succeeded a"]


def test_shared_link_doubles_synchronisation() -> None:
    """Two replicas on two nodes: 0.5 s of compute and 1 s of synchronisation a step, 200 steps. a alone does its first
    100 by 150; with b on the same links a step takes 2.5 s: a ends at 150 + 250 = 400, when b has done 100; alone b
    does the rest in 150: 550."""
    jobs = [(0.0, "a", a_trained_job(2)), (150.0, "b", a_trained_job(2))]
    policy = Script((0.0, {"a": ACROSS}), (150.0, {"b": ACROSS}))
    records, _ = simulated(
        jobs, a_cluster("2x2"), policy, change_cost=constant(0), interference=LinkSharing()
    )
    assert [line for line in told(records) if "succeeded" in line] == ["400 succeeded a", "550 succeeded b"]


def _trained(seed: int, **options: float) -> list[Record]:
    jobs = [(0.0, f"j{i}", a_trained_job()) for i in range(3)]
    training = TrainingOptions(**options)  # type: ignore[arg-type]
    return simulated(
        jobs, a_cluster("1x3"), FifoPolicy(), change_cost=constant(0), training=training, seed=seed
    )[0]


def test_straggler_takes_longer_by_its_factor() -> None:
    """200 steps of 1 s; with a straggler for certain, of 1.5 s."""
    records = _trained(0, straggler_chance=1.0, straggler_factor=1.5)
    assert told(records)[-1] == "300 succeeded j2"


def test_noise_touches_what_is_measured_and_not_what_is() -> None:
    noisy, plain = _trained(0, noise=0.3), _trained(0)
    assert told(noisy) == told(plain)
    seen = [r.event.measurement.step_s for r in noisy if isinstance(r.event, Measured)]
    assert len(set(seen)) > 1
    assert {r.event.measurement.step_s for r in plain if isinstance(r.event, Measured)} == {1.0}


def test_noise_and_stragglers_follow_the_seed() -> None:
    logs = [
        [encode(r) for r in _trained(seed, noise=0.3, straggler_chance=0.5)][1:] for seed in (1, 1, 2)
    ]  # the first record names the seed
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]


# -- from any moment ---------------------------------------------------------------------------------

Outside = list[tuple[float, AnyEvent]]
MIXED = [
    (0.0, "a", a_job(3, duration_s=100)),
    (1.0, "b", a_job(2, duration_s=50, priority=1)),
    (2.0, "c", a_job(1, duration_s=10, after=("b",))),
    (40.0, "d", a_job(4, duration_s=20, priority=2)),
]
SWAP = [(0.0, "a", a_job(duration_s=50)), (0.0, "b", a_job(duration_s=50))]


@pytest.mark.parametrize(
    ("jobs", "shape", "policy", "outside"),
    [
        (MIXED, "1x4", FifoPolicy, []),
        (MIXED, "2x2", Preemptive, []),
        (MIXED, "2x2", Preemptive, [(60.0, NodeDrained(node="n1")), (20.0, CancelRequested(job="a"))]),
        (
            SWAP,
            "2x1",
            lambda: Script((0.0, {"a": on("n0"), "b": on("n1")}), (20.0, {"a": on("n1"), "b": on("n0")})),
            [],
        ),
    ],
)
def test_simulation_goes_on_from_any_state_as_if_undisturbed(
    jobs: list[tuple[float, str, object]], shape: str, policy: Callable[[], Policy], outside: Outside
) -> None:
    """Cut anywhere between two facts, the rest is the same: what was under way comes to its end when it would have."""
    setting = {"change_cost": constant(5), "stop_s": 3.0}
    whole, _ = simulated(jobs, a_cluster(shape), policy(), events=outside, **setting)  # type: ignore[arg-type]
    first = next(i for i, record in enumerate(whole) if record.at > 0)
    for cut in range(first, len(whole)):
        if isinstance(whole[cut].event, DECISIONS):
            continue
        state = SchedulerState()
        for record in whole[:cut]:
            state.apply(record)
        left = [job for job in jobs if job[1] not in state.jobs]
        past = [record.event for record in whole[:cut]]
        events = [(at, event) for at, event in outside if event not in past]
        rest, _ = simulated(
            left,  # type: ignore[arg-type]
            a_cluster(shape),
            policy(),
            start=state,
            events=events,
            **setting,
        )
        # what happens at one instant may come in another order; what happens when may not
        assert sorted(told(rest)) == sorted(told(whole[cut:])), f"cut before {whole[cut]}"


def test_neighbours_of_adopted_jobs_go_on_slowing_them_down() -> None:
    """As in the first scenario, cut at 40: both have half rate from the first moment on."""
    jobs = [(0.0, "a", a_job(2, duration_s=100)), (20.0, "b", a_job(2, duration_s=30))]
    policy = Script((0.0, {"a": ACROSS}), (20.0, {"b": ACROSS}), (40.0, {}))
    setting = {"change_cost": constant(0), "interference": FlatInterference(0.5)}
    whole, _ = simulated(jobs, a_cluster("2x2"), policy, **setting)
    state = SchedulerState()
    for record in whole:
        if record.at <= 40.0:
            state.apply(record)
    rest, _ = simulated([], a_cluster("2x2"), policy, start=state, **setting)
    # 20 s of b's time have passed, at half rate, which nobody reported: it is taken for 20 s of work, 10 remain
    assert told(rest)[0] == "60 succeeded b"


def test_event_from_before_the_start_happens_at_the_start() -> None:
    state = SchedulerState()
    for record in simulated([(50.0, "a", a_job(duration_s=100))], a_cluster("1x1"), FifoPolicy())[0]:
        if record.at <= 90.0:
            state.apply(record)
    rest, _ = simulated([(10.0, "late", a_job())], a_cluster("1x1"), FifoPolicy(), start=state)
    assert next(r.at for r in rest if type(r.event).__name__ == "JobSubmitted") == 80.0


def test_rounds_go_on_while_a_policy_waits_for_a_moment_of_its_own() -> None:
    """Recorded to start after five hours of nothing: 300 rounds without an event are not a dead end."""
    spec = a_job(duration_s=10, recorded=Recorded(start_s=18000.0))
    records, _ = simulated(
        [(0.0, "a", spec)], a_cluster("1x1"), RecordedPolicy(), interval_s=60.0, change_cost=constant(0)
    )
    assert told(records)[0] == "18000 start a #1 on n0x1"
