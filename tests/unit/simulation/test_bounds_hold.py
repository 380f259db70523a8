"""No policy beats the bound, and what goes into it is never too slow."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.model import (
    Batch,
    Cluster,
    JobFinished,
    JobSpec,
    Measured,
    NodeJoined,
    Placement,
    Record,
    parse_cluster,
)
from coadapt.prediction.gradient_noise import gain
from coadapt.report import LowerBound
from coadapt.report.lower_bound import lower_bound
from coadapt.simulation.bounds import BoundInput, best_rates, bound_input, shapes
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.engine.training_model import TrainingOptions
from coadapt.simulation.generate import generate
from coadapt.simulation.run import Setting, simulate
from coadapt.simulation.truth.measured_tables import smallest_rotation
from coadapt.simulation.truth.profiles import ProfileTruth, shipped_profiles
from coadapt.store import MemoryLog
from tests.builders import SteadyTruth, a_job, a_trained_job, every_policy, simulated
from tests.unit.simulation.test_parameter_server_training import a_served_job

TRUTHS = {"steady": SteadyTruth()}
POLICIES = sorted(every_policy().keys() - {"recorded"})
Submission = tuple[float, str, JobSpec]


def bound_of(given: BoundInput) -> LowerBound:
    return lower_bound(*given, slots=16, rounds=6)


def an_input(jobs: list[Submission], cluster: str | Cluster = "1x4", **setting: Any) -> BoundInput:
    nodes = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    return bound_input(jobs, nodes, TRUTHS, Setting(**setting))


def mean_jct(records: list[Record], jobs: list[Submission]) -> float | None:
    """None unless all have finished."""
    begun = {job: at for at, job, _ in jobs}
    ended = {record.event.job: record.at for record in records if isinstance(record.event, JobFinished)}
    return (
        sum(ended[job] - at for job, at in begun.items()) / len(begun)
        if ended.keys() == begun.keys()
        else None
    )


# -- no policy beats it ------------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> list[Submission]:
    jobs: list[Submission] = []
    for number in range(draw(st.integers(1, 5))):
        spec = draw(
            st.one_of(
                st.builds(a_job, st.integers(1, 4), duration_s=st.floats(1.0, 300.0)),
                st.builds(a_trained_job, st.integers(1, 4)),
                st.builds(a_trained_job, st.just(1), at_most=st.integers(2, 8)),
                st.builds(
                    a_trained_job, st.just(1), at_most=st.just(8), requested_batch=st.sampled_from([64, 200])
                ),
            )
        )
        jobs.append((draw(st.floats(0.0, 200.0)), f"j{number}", spec))
    return sorted(jobs, key=lambda job: job[0])


@settings(max_examples=30, deadline=None)
@given(
    jobs=workloads(),
    policy=st.sampled_from(POLICIES),
    cluster=st.sampled_from(["1x4", "2x2", "2x4"]),
    restart_s=st.sampled_from([0.0, 0.5, 30.0]),
    interval_s=st.sampled_from([None, 60.0]),
    resolution_s=st.sampled_from([0.0, 1.0]),
)
def test_no_policy_is_better_than_the_bound(
    jobs: list[Submission],
    policy: str,
    cluster: str,
    restart_s: float,
    interval_s: float | None,
    resolution_s: float,
) -> None:
    world: dict[str, Any] = {
        "change_cost": constant(restart_s),
        "interval_s": interval_s,
        "training": TrainingOptions(resolution_s=resolution_s),
    }
    records, _ = simulated(jobs, parse_cluster(cluster), every_policy()[policy](), **world)
    reached = mean_jct(records, jobs)
    if reached is not None:
        assert bound_of(an_input(jobs, cluster, **world)).avg_jct_s <= reached * (1 + 1e-9)


def test_no_policy_is_better_than_the_bound_on_shipped_profiles() -> None:
    drawn = generate(3, jobs=8, hours=0.2, long_jobs=False)
    jobs = [(at, f"j{number}", spec) for number, (at, spec) in enumerate(drawn)]
    cluster, setting = parse_cluster("2x4"), Setting(interval_s=60.0)
    found = bound_of(bound_input(jobs, cluster, shipped_profiles(), setting))
    for name in ("fifo", "tiresias", "pollux"):
        log = MemoryLog()
        simulate(jobs, cluster, every_policy()[name](), log, truths=shipped_profiles(), setting=setting)
        reached = mean_jct(list(log.read()), jobs)
        assert reached is not None
        assert found.avg_jct_s <= reached


def test_bound_of_one_job_is_what_a_policy_that_gives_it_all_reaches() -> None:
    jobs = [(7.0, "j", a_job(2, duration_s=100.0))]
    records, _ = simulated(jobs, parse_cluster("1x4"), every_policy()["fifo"]())
    assert bound_of(an_input(jobs)).avg_jct_s == pytest.approx(mean_jct(records, jobs), rel=1e-6)


# -- what goes in --------------------------------------------------------------------------------------------


def test_a_job_begins_after_its_first_decision_and_one_start() -> None:
    jobs = [(0.0, "a", a_job()), (60.0, "b", a_job()), (61.0, "c", a_job())]
    given = an_input(jobs, interval_s=60.0, change_cost=constant(30.0))
    assert [job.begins_at for job in given.jobs] == [30.0, 90.0, 150.0]
    assert [job.submitted_at for job in given.jobs] == [0.0, 60.0, 61.0]
    assert [job.begins_at for job in an_input(jobs, change_cost=constant(5.0)).jobs] == [5.0, 65.0, 66.0]


def test_jobs_that_behave_alike_share_a_course() -> None:
    jobs = [
        (0.0, "a", a_trained_job(1, at_most=4)),
        (1.0, "b", a_trained_job(1, at_most=4, requested_batch=64)),
        (2.0, "c", a_trained_job(1, at_most=3)),
        (3.0, "d", a_job(1)),
        (4.0, "e", a_job(1)),
    ]
    assert [job.course for job in an_input(jobs).jobs] == [0, 0, 1, 2, 2]


def test_a_rigid_job_goes_at_its_recorded_pace_on_its_gpus_only() -> None:
    given = an_input([(0.0, "j", a_job(3, duration_s=50.0))])
    (course,) = given.courses
    assert (course.work.tolist(), course.gpus.tolist(), course.rate.tolist()) == ([50.0], [3.0], [[1.0]])
    assert given.capacity == [4.0]


def test_gpus_that_a_job_may_not_use_are_no_option() -> None:
    jobs = [(0.0, "j", a_job(1, gpu_types=("b",)))]
    given = an_input(jobs, "1x2:a,1x4:b")
    assert given.capacity == [2.0, 4.0]
    assert given.courses[0].kind.tolist() == [1]
    with pytest.raises(InputError, match="'j' fits no GPU type"):
        an_input([(0.0, "j", a_job(8, gpu_types=("b",)))], "1x2:a,1x4:b")


def test_nodes_that_join_count_from_the_beginning() -> None:
    late = parse_cluster("1x4").nodes[0]
    joins = ((500.0, NodeJoined(node=msgspec.structs.replace(late, name="late"))),)
    assert an_input([(0.0, "j", a_job())], events=joins).capacity == [8.0]


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(InputError, match="profile 'other', which is not one of"):
        an_input([(0.0, "j", a_trained_job(profile="other"))])
    with pytest.raises(InputError, match="'j' has neither a profile nor a duration"):
        an_input([(0.0, "j", a_job(duration_s=None))])


def test_rates_are_those_of_the_best_batch_by_hand() -> None:
    # 4 replicas on a node: 256 in all is 64 each, 2.25 s for gain 2 / (1/8 + 1); on M0 it would be 0.5 s for gain 1
    limits = Batch(initial=32, max=256, per_gpu_min=4, per_gpu_max=64, mode="fixed")
    rate = best_rates(SteadyTruth(), limits, "gpu", 4, [4], [32])
    assert rate.tolist() == [2.0, 2.0]
    assert best_rates(SteadyTruth(), limits, "gpu", 4, [4], [256]) == pytest.approx(gain(1, 1, 8) / 2.25)
    adaptive = msgspec.structs.replace(limits, mode="adaptive")
    assert (best_rates(SteadyTruth(), adaptive, "gpu", 4, [4], []) >= 2.0).all()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), policy=st.sampled_from(["pollux", "optimus", "tiresias"]))
def test_no_configuration_seen_in_training_is_faster_than_the_best(seed: int, policy: str) -> None:
    truth = shipped_profiles()["cifar10"]
    drawn = generate(seed, jobs=3, hours=0.05, profiles={"cifar10": truth})
    jobs = [(at, f"j{number}", spec) for number, (at, spec) in enumerate(drawn)]
    cluster, log = parse_cluster("2x4"), MemoryLog()
    (course,) = bound_input(jobs, cluster, {"cifar10": truth}, Setting()).courses
    simulate(jobs, cluster, every_policy()[policy](), log, truths={"cifar10": truth}, setting=Setting())
    seen = 0
    for record in log.read():
        if isinstance(record.event, Measured):
            measured = record.event.measurement
            config, epoch = measured.config, int(measured.epoch or 0)
            spent_s = measured.step_s + config.accumulation * (measured.step_s - measured.sync_s)
            rate = (
                gain(*truth.gradients(config.batch, epoch), config.batch / truth.limits("").initial) / spent_s
            )
            best = course.rate[epoch, course.gpus.tolist().index(config.replicas)]
            assert rate <= best * (1 + 1e-9)
            seen += 1
    assert seen


def test_a_job_with_parameter_servers_is_not_faster_than_the_bound() -> None:
    jobs: list[Submission] = [(0.0, "s", a_served_job()), (5.0, "a", a_served_job("ps-async"))]
    cluster, log = parse_cluster("2x2"), MemoryLog()
    simulate(jobs, cluster, every_policy()["optimus"](), log, truths={})
    reached = mean_jct(list(log.read()), jobs)
    assert reached is not None
    assert 0.3 * reached < bound_of(bound_input(jobs, cluster, {}, Setting())).avg_jct_s <= reached


def test_a_job_that_mixes_types_has_the_rate_of_the_best_on_each_and_more_gpus_than_either() -> None:
    truth = shipped_profiles()["bert"]
    (spec,) = [spec for _, spec in generate(0, jobs=1, profiles={"bert": truth})]
    jobs = [(0.0, "j", msgspec.structs.replace(spec, mixed=True))]
    (course,) = bound_input(jobs, parse_cluster("1x2:t4,1x2:a100"), {"bert": truth}, Setting()).courses
    assert course.gpus.tolist() == [1, 2, 3, 4] * 2
    assert course.kind.tolist() == [0] * 4 + [1] * 4
    assert course.rate[:, :4].tolist() == course.rate[:, 4:].tolist()
    apart = [(0.0, "j", spec)]
    (course,) = bound_input(apart, parse_cluster("1x2:t4,1x2:a100"), {"bert": truth}, Setting()).courses
    assert course.gpus.tolist() == [1, 2] * 2
    assert (course.rate[:, 2:] > course.rate[:, :2]).all()


def test_shapes_stand_for_every_placement() -> None:
    truth: ProfileTruth = shipped_profiles()["bert"]
    for nodes, room in ((4, 4), (6, 3)):
        kinds: dict[int, set[object]] = {}
        for counts in product(range(room + 1), repeat=nodes):
            shape = tuple(count for count in counts if count)
            if shape:
                kinds.setdefault(sum(shape), set()).add(_kind(shape))
        for replicas, found in kinds.items():
            assert {_kind(shape) for shape in shapes(replicas, [room] * nodes)} == found
    assert truth.step((2, 1, 1), 8, "") == truth.step((1, 1, 2), 8, "")


def _kind(shape: tuple[int, ...]) -> object:
    """What a truth may tell apart: measured placements up to four nodes, else nodes and the fullest."""
    return smallest_rotation(shape) if len(shape) <= 4 else (len(shape), max(shape))


def test_shapes_leave_out_what_does_not_fit() -> None:
    assert list(shapes(3, [4])) == [(3,)]
    assert list(shapes(5, [4])) == []
    assert sorted(shapes(3, [2, 1])) == [(2, 1)]


# -- ends of epochs rounded to whole seconds -------------------------------------------------------------------


def test_rounding_makes_epochs_half_a_second_shorter_where_changes_are_long() -> None:
    jobs = [(0.0, "j", a_trained_job(1))]
    whole = TrainingOptions(resolution_s=1.0)
    exact = an_input(jobs).courses[0]
    rounded = an_input(jobs, training=whole).courses[0]
    assert exact.work / rounded.rate[:, 0] == pytest.approx(exact.work / exact.rate[:, 0] - 0.5)
    # changes that cost nothing could be made at every end: the work of a second at full speed is taken off

    def free_growth(spec: JobSpec, before: Placement, after: Placement) -> float:
        return 0.0 if before and after.replicas > before.replicas else 30.0

    for cost in (constant(0.0), free_growth):
        cheap = an_input(jobs, training=whole, change_cost=cost).courses[0]
        assert cheap.rate == pytest.approx(exact.rate)
        assert cheap.work == pytest.approx(exact.work - exact.rate.max(axis=1))


def test_an_epoch_that_rounding_may_take_away_leaves_next_to_nothing() -> None:
    jobs = [(0.0, "j", a_trained_job(1))]
    setting = Setting(training=TrainingOptions(resolution_s=1000.0))
    found = bound_of(
        bound_input(jobs, parse_cluster("1x4"), TRUTHS, replace(setting, change_cost=constant(0.0)))
    )
    assert 0.0 <= found.avg_jct_s < 1e-3
    assert np.isfinite(found.relaxed_s)
