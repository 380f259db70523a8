"""Reservations: when a job that waited too long starts, what may start before it, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.configure import Curve
from coadapt.configure.curve import RigidCurve
from coadapt.model import NodeDrained, Resources, parse_cluster
from coadapt.placement import PackedPlacer, Placer
from coadapt.placement.tidy import TidyPlacer
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.policies.coadapt.reservations import RESERVATIONS
from coadapt.scheduler import FittedCurves, SchedulerState
from tests.unit.policies.harness import Run, Submission, a_submission, decisions, finished, run, started


class Undeclared:
    """Curves under which some jobs have declared nothing."""

    def __init__(self, *names: str) -> None:
        self._names, self._inner = names, FittedCurves()

    def of(self, state: SchedulerState) -> Mapping[str, Curve]:
        """See ``CurveSource``."""
        found = dict(self._inner.of(state))
        for name in self._names:
            if name in found:
                spec = msgspec.structs.replace(state.jobs[name].spec, duration_s=None)
                found[name] = RigidCurve(spec=spec)
        return found


def small_jobs(count: int, every_s: float, *, limit: bool = True, user: str = "bob") -> list[Submission]:
    """A job of 1 GPU and 100 s every few seconds, that may not be preempted."""
    limits = {"time_limit_s": 110.0} if limit else {}
    return [
        a_submission(f"small{n}", n * every_s, 1, 100.0, preemptible=False, user=user, **limits)
        for n in range(count)
    ]


@pytest.mark.parametrize("owner", ["ann", "bob"])
def test_a_large_job_behind_small_ones_starts_when_they_have_ended(owner: str) -> None:
    """8 GPUs kept busy by jobs of 100 s: the large one waits 600 s, then no longer than one of them may take."""
    large = a_submission("large", 50.0, 8, 60.0, preemptible=False, time_limit_s=80.0, user=owner)
    policy = CoadaptPolicy(least_wait_s=600.0, change_s=1.0, reserve_after=1.0, patience=1e6)
    result = run(policy, [*small_jobs(300, 10.0), large], "1x8", cost_s=1.0)
    at = started(result)["large"]
    assert at is not None
    assert at <= 50.0 + 600.0 + 110.0 + 2 * 60.0
    assert all(end is not None for end in finished(result).values())


def test_the_promise_is_stated_when_the_reservation_is_made_and_kept() -> None:
    large = a_submission("large", 50.0, 8, 60.0, preemptible=False, time_limit_s=80.0, user="ann")
    policy = CoadaptPolicy(least_wait_s=600.0, change_s=1.0, reserve_after=1.0, patience=1e6)
    result = run(policy, [*small_jobs(200, 10.0), large], "1x8", cost_s=1.0)
    kept = [d.memory.get(RESERVATIONS) or {} for _, d in decisions(result)]
    made = [promises["large"] for promises in kept if "large" in promises]
    words = [d.reasons["large"].text for _, d in decisions(result) if "large" in d.reasons]
    assert made
    at = started(result)["large"]
    assert at is not None
    assert at <= made[0]["by"]
    assert any("8 GPUs are reserved for it." in text for text in words)


def test_without_a_time_limit_no_moment_is_promised_and_that_is_said() -> None:
    large = a_submission("large", 50.0, 4, 60.0, preemptible=False, time_limit_s=100.0, user="ann")
    endless = a_submission("endless", 0.0, 1, 2000.0, preemptible=False, user="bob")
    policy = CoadaptPolicy(least_wait_s=300.0, change_s=1.0, reserve_after=1.0)
    curves = Undeclared("endless")
    result = run(policy, [endless, *small_jobs(100, 10.0), large], "1x4", cost_s=1.0, curves=curves)
    words = [d.reasons["large"].text for _, d in decisions(result) if "large" in d.reasons]
    assert any(
        "No time can be promised: endless cannot be preempted and has no time limit." in text
        for text in words
    )
    at = started(result)["large"]
    assert at is not None
    assert at <= 2000.0 + 120.0


def test_a_running_job_without_a_limit_counts_with_its_predicted_end_and_that_is_said() -> None:
    large = a_submission("large", 50.0, 4, 60.0, preemptible=False, time_limit_s=100.0, user="ann")
    declared = a_submission("declared", 0.0, 1, 2000.0, preemptible=False, user="bob")
    policy = CoadaptPolicy(least_wait_s=300.0, change_s=1.0, reserve_after=1.0)
    result = run(policy, [declared, *small_jobs(100, 10.0), large], "1x4", cost_s=1.0)
    words = [d.reasons["large"].text for _, d in decisions(result) if "large" in d.reasons]
    assert any("This rests on the predicted end of declared." in text for text in words)
    at = started(result)["large"]
    assert at is not None
    assert 2000.0 <= at <= 2000.0 + 120.0


def test_a_job_that_ends_before_the_reserved_moment_is_backfilled() -> None:
    """4 GPUs, three of them taken for 1000 s: jobs of 30 s use the fourth while the large one waits for all."""
    held = a_submission("held", 0.0, 3, 1000.0, preemptible=False, time_limit_s=1000.0, user="bob")
    large = a_submission("large", 10.0, 4, 50.0, preemptible=False, time_limit_s=60.0, user="ann")
    quick = [
        a_submission(f"quick{n}", 400.0 + 40 * n, 1, 30.0, preemptible=False, time_limit_s=35.0, user="bob")
        for n in range(5)
    ]
    slow = a_submission("slow", 400.0, 1, 900.0, preemptible=False, time_limit_s=900.0, user="bob")
    policy = CoadaptPolicy(least_wait_s=300.0, change_s=1.0, reserve_after=1.0)
    result = run(policy, [held, large, slow, *quick], "1x4", cost_s=1.0)
    starts = started(result)
    assert starts["large"] is not None
    assert starts["large"] <= 1000.0 + 70.0
    assert all((starts[f"quick{n}"] or 1e9) < 1000.0 for n in range(5))
    assert (starts["slow"] or 0.0) > starts["large"]


def test_jobs_that_may_be_preempted_are_not_held_back() -> None:
    held = a_submission("held", 0.0, 3, 1000.0, preemptible=False, time_limit_s=1000.0, user="bob")
    large = a_submission("large", 10.0, 4, 50.0, preemptible=False, time_limit_s=60.0, user="ann")
    free = a_submission("free", 400.0, 1, 5000.0, user="bob")
    policy = CoadaptPolicy(least_wait_s=300.0, change_s=1.0, reserve_after=1.0)
    result = run(policy, [held, large, free], "1x4", cost_s=1.0)
    starts = started(result)
    assert (starts["free"] or 1e9) < 500.0
    assert (starts["large"] or 1e9) <= 1070.0


def test_a_user_starts_no_more_jobs_that_cannot_be_preempted_than_his_share_while_others_wait() -> None:
    jobs = [a_submission(f"b{n}", 0.0, 1, 500.0, preemptible=False, user="bob") for n in range(8)]
    jobs += [a_submission(f"a{n}", 0.0, 1, 500.0, user="ann") for n in range(8)]
    result = run(CoadaptPolicy(floor=0.8, reserve_after=5.0, change_s=1.0), jobs, "1x4", cost_s=1.0)
    early = [name for name, at in started(result).items() if at is not None and at < 400.0 and name[0] == "b"]
    assert len(early) <= 2


# -- nodes ------------------------------------------------------------------------------------------------------------

PATIENT: dict[str, Any] = {"least_wait_s": 300.0, "change_s": 1.0, "reserve_after": 1.0, "patience": 1e6}


def firm(name: str, at: float, gpus: int, run_s: float, **fields: Any) -> Submission:
    """A job that may not be preempted, with a limit a tenth above its run."""
    return a_submission(name, at, gpus, run_s, preemptible=False, time_limit_s=1.1 * run_s, **fields)


def stream(until_s: float, nodes: int) -> list[Submission]:
    """Small jobs that keep every node busy in pieces."""
    gap_s = 75.0 / (4 * nodes)
    return [
        firm(f"small{n}", n * gap_s, 1, 80.0 + 7 * (n % 5), user="bob") for n in range(int(until_s / gap_s))
    ]


@pytest.mark.parametrize("placer", [PackedPlacer(), TidyPlacer()], ids=["packed", "tidy"])
@pytest.mark.parametrize(
    ("gpus", "fields"),
    [
        (4, {"gpus_per_replica": 4}),
        (8, {"gpus_per_replica": 4}),
        (4, {"gpus_per_replica": 2}),
        (12, {}),
        (12, {"demand": Resources(gpus=1, cpus=16.0)}),
    ],
    ids=["whole node", "two whole nodes", "pairs", "whole cluster", "GPUs and CPUs"],
)
def test_a_job_of_any_shape_starts_by_its_promise(placer: Placer, gpus: int, fields: dict[str, Any]) -> None:
    """On three nodes whose GPUs are taken by ever new small jobs, never four of one node are free by chance."""
    large = firm("large", 150.0, gpus, 280.0, user="ann", **fields)
    result = run(CoadaptPolicy(**PATIENT), [*stream(600.0, 3), large], "3x4", cost_s=1.0, placer=placer)
    assert_promises_kept(result, "large")


def test_a_reservation_uses_one_gpu_type() -> None:
    large = firm("large", 150.0, 4, 280.0, user="ann", gpu_types=("b",))
    others = stream(600.0, 3)
    result = run(CoadaptPolicy(**PATIENT), [*others, large], "2x4:a,1x4:b", cost_s=1.0)
    assert_promises_kept(result, "large")
    target = next(d.targets["large"] for _, d in decisions(result) if "large" in d.targets)
    assert {slot.gpu_type for slot in target.slots} == {"b"}


def test_a_drained_node_is_not_reserved_and_what_runs_there_is_not_in_the_way() -> None:
    endless = a_submission("endless", 0.0, 4, 5000.0, preemptible=False, user="bob")
    large = firm("large", 50.0, 4, 60.0, user="ann")
    others = [(at + 1.0, name, spec) for at, name, spec in stream(600.0, 1)]
    events = [(10.0, NodeDrained(node="n0"))]
    curves = Undeclared("endless")
    policy = CoadaptPolicy(**PATIENT)
    result = run(policy, [endless, *others, large], "2x4", cost_s=1.0, events=events, curves=curves)
    assert_promises_kept(result, "large")
    target = next(d.targets["large"] for _, d in decisions(result) if d.targets.get("large"))
    assert [slot.node for slot in target.slots] == ["n1"]


def test_a_node_that_is_drained_later_moves_the_reservation() -> None:
    large = firm("large", 150.0, 4, 280.0, user="ann", gpus_per_replica=4)
    events = [(455.0, NodeDrained(node="n0")), (460.0, NodeDrained(node="n1"))]
    result = run(CoadaptPolicy(**PATIENT), [*stream(600.0, 3), large], "3x4", cost_s=1.0, events=events)
    at = started(result)["large"]
    assert at is not None
    assert at <= 460.0 + 120.0 + 61.0


def test_a_job_that_may_be_preempted_starts_by_its_promise_and_keeps_its_slice() -> None:
    large = a_submission("large", 150.0, 8, 3000.0, user="ann")
    policy = CoadaptPolicy(**{**PATIENT, "reserve_after": 0.1}, floor=0.8)
    result = run(policy, [*stream(900.0, 2), large], "2x4", cost_s=1.0)
    assert_promises_kept(result, "large")
    at = started(result)["large"]
    gone = [t for t, d in decisions(result) if "large" in d.targets and not d.targets["large"]]
    assert at is not None
    assert all(t >= at + 600.0 for t in gone)


def test_jobs_that_may_be_preempted_give_way_when_the_moment_has_come() -> None:
    """Sixteen small jobs in pieces on four nodes, that would never leave four GPUs of one node by themselves."""
    pieces = [a_submission(f"piece{n}", 0.0, 1, 9000.0, user="bob") for n in range(24)]
    blocker = firm("blocker", 0.0, 4, 900.0, user="bob", gpus_per_replica=4)
    large = firm("large", 50.0, 16, 60.0, user="ann", gpus_per_replica=4)
    result = run(CoadaptPolicy(**PATIENT), [blocker, *pieces, large], "4x4", cost_s=1.0)
    assert_promises_kept(result, "large")
    assert all(end is not None for end in finished(result).values())


def test_one_user_does_not_take_all_reservations() -> None:
    """Bob's jobs of the whole cluster, against small jobs of ann: between two of his, hers have as long."""
    whole = [firm(f"whole{n}", 0.0, 4, 300.0, user="bob") for n in range(5)]
    small = [firm(f"small{n}", 24.0 * n, 1, 95.0, user="ann") for n in range(100)]
    result = run(CoadaptPolicy(**PATIENT, floor=0.8), [*small[:4], *whole, *small[4:]], "1x4", cost_s=1.0)
    starts = started(result)
    assert all(at is not None for at in starts.values())
    last_small = max(starts[f"small{n}"] or 0.0 for n in range(100))
    whole_at = sorted(starts[f"whole{n}"] or 0.0 for n in range(5))
    assert whole_at[1] < last_small
    assert all(b - a >= 600.0 for a, b in pairwise(whole_at) if b < last_small)


def test_a_reservation_without_a_moment_does_not_stop_everybody_for_ever() -> None:
    """An endless job is in the way of one of all GPUs: after an hour others start again."""
    endless = a_submission("endless", 0.0, 1, 20000.0, preemptible=False, user="bob")
    large = firm("large", 10.0, 4, 60.0, user="bob")
    others = [firm(f"other{n}", 400.0 + 200.0 * n, 1, 100.0, user="ann") for n in range(20)]
    curves = Undeclared("endless")
    result = run(CoadaptPolicy(**PATIENT), [endless, large, *others], "1x4", cost_s=1.0, curves=curves)
    starts = started(result)
    assert all((starts[f"other{n}"] or 1e9) < 400.0 + 200.0 * n + 700.0 for n in range(20))


def test_jobs_of_all_gpus_of_two_users_do_not_wait_for_each_other() -> None:
    """Each needs more than its owner's share while the other waits; nothing else runs, and no wait is long enough for a reservation."""
    jobs = [firm("ann", 0.0, 4, 100.0, user="ann"), firm("bob", 0.0, 4, 100.0, user="bob")]
    result = run(CoadaptPolicy(), jobs, "1x4", cost_s=1.0)
    assert all(end is not None and end < 300.0 for end in finished(result).values())


def test_reserved_job_may_be_the_only_one_to_decide_about() -> None:
    """The last waiting job starts by its reservation while jobs of others stay as they are."""
    held = firm("held", 0.0, 2, 500.0, user="bob")
    late = firm("late", 10.0, 3, 400.0, user="cyd", gpus_per_replica=1)
    result = run(CoadaptPolicy(**PATIENT), [held, late], "1x4", cost_s=1.0)
    assert all(end is not None for end in finished(result).values())


@st.composite
def workloads(draw: st.DrawFn) -> tuple[str, list[Submission]]:
    """A cluster of one or two GPU types, and jobs of all shapes; those that may not be preempted keep their limits."""
    cluster = draw(st.sampled_from(["1x4", "2x4", "3x2", "1x4:a,2x2:b"]))
    nodes = parse_cluster(cluster).nodes
    jobs = []
    for number in range(draw(st.integers(6, 14))):
        per = draw(st.sampled_from([1, 1, 1, 2]))
        kind = draw(st.sampled_from(["", "", nodes[0].gpu_type, nodes[-1].gpu_type]))
        usable = [node for node in nodes if not kind or node.gpu_type == kind]
        room = max(
            sum(node.gpus // per for node in usable if node.gpu_type == each.gpu_type) for each in usable
        )
        gpus = per * draw(st.integers(1, room))
        run_s = draw(st.sampled_from([40.0, 90.0, 200.0, 400.0]))
        fields: dict[str, Any] = {"gpus_per_replica": per, "gpu_types": (kind,) if kind else ()}
        if draw(st.integers(0, 3)):
            fields |= {"preemptible": False, "time_limit_s": run_s * draw(st.sampled_from([1.05, 2.0]))}
        user = draw(st.sampled_from(["ann", "bob", "cyd"]))
        jobs.append(
            a_submission(f"j{number}", draw(st.integers(0, 300)) * 1.0, gpus, run_s, user=user, **fields)
        )
    return cluster, sorted(jobs, key=lambda job: job[0])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(workloads(), st.sampled_from([0.0, 0.8]), st.booleans())
def test_no_reserved_start_is_later_than_promised(
    workload: tuple[str, list[Submission]], floor: float, tidy: bool
) -> None:
    cluster, jobs = workload
    policy = CoadaptPolicy(least_wait_s=60.0, change_s=5.0, reserve_after=0.2, patience=1e6, floor=floor)
    placer = TidyPlacer() if tidy else PackedPlacer()
    result = run(policy, jobs, cluster, cost_s=5.0, placer=placer)
    assert_promises_kept(result)
    planned: dict[str, float] = {}
    for _, decision in decisions(result):
        for name, made in (decision.memory.get(RESERVATIONS) or {}).items():
            # nothing that starts or comes later moves it back
            assert made.get("at", 1e9) <= planned.get(name, 1e9) + 1e-6
            planned[name] = made.get("at", 1e9)
    assert all(end is not None for end in finished(result).values())


def assert_promises_kept(result: Run, *names: str) -> None:
    """Each of the jobs was promised a start, and started by then."""
    first: dict[str, float] = {}
    for _, decision in decisions(result):
        for name, made in (decision.memory.get(RESERVATIONS) or {}).items():
            if made["by"] is not None:
                first.setdefault(name, made["by"])
    starts = started(result)
    for name in names:
        assert name in first, f"{name} was promised nothing"
    for name, by in first.items():
        at = starts[name]
        assert at is not None, f"{name} never started"
        assert at <= by, f"{name} started {at - by:.0f} s later than promised"
