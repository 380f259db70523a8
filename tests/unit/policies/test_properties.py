"""What must hold for every policy, whatever arrives and whatever breaks.

``harness.Watched`` validates the whole state at every decision (no node beyond its capacity, bounds kept) and that
a decision without warm start is the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import AnyEvent, CancelRequested, NodeDrained, NodeJoined, NodeLost, encode, parse_cluster
from coadapt.placement import (
    AwarePlacer,
    EvenPlacer,
    MostFreePlacer,
    PackedPlacer,
    Placer,
    SkewPlacer,
    TidyPlacer,
)
from coadapt.policies import (
    CoadaptPolicy,
    FairSharePolicy,
    OptimusPolicy,
    Policy,
    RecordedPolicy,
    SrtfPolicy,
    TiresiasPolicy,
)
from tests.unit.policies.harness import Submission, a_submission, finished, run

POLICIES: dict[str, Callable[[], Policy]] = {
    "coadapt": CoadaptPolicy,
    "coadapt-entitled": lambda: CoadaptPolicy(
        objective="fairness", min_run_s=15.0, least_wait_s=30.0, weights={"b": 2.0}, quotas={"a": 6}
    ),
    "srtf": SrtfPolicy,
    "srsf": lambda: SrtfPolicy(service=True),
    "fair-share": FairSharePolicy,
    "fair-share-preempt": lambda: FairSharePolicy(preempt=True, min_run_s=15.0, weights={"b": 2.0}),
    "tiresias": lambda: TiresiasPolicy(thresholds=(30.0, 120.0)),
    "tiresias-promote": lambda: TiresiasPolicy(thresholds=(30.0,), promote_after=1.0),
    "gittins": lambda: TiresiasPolicy(thresholds=(50.0,), gittins=True, quantum_gpu_s=20.0),
    "gittins-continuous": lambda: TiresiasPolicy(gittins=True, discretised=False, quantum_gpu_s=20.0),
    "optimus": OptimusPolicy,
    "recorded": RecordedPolicy,
}
PLACERS: list[Callable[[], Placer]] = [
    PackedPlacer,
    MostFreePlacer,
    AwarePlacer,
    SkewPlacer,
    EvenPlacer,
    TidyPlacer,
]
CLUSTERS = ["2x4", "3x2", "2x2:t4,1x4:a100"]


@st.composite
def workloads(draw: st.DrawFn) -> list[Submission]:
    jobs: list[Submission] = []
    for number in range(draw(st.integers(1, 10))):
        types = draw(st.sampled_from([(), (), ("t4",), ("a100", "t4")]))
        jobs.append(
            a_submission(
                f"j{number}",
                draw(st.integers(0, 60)),
                draw(st.sampled_from([1, 1, 2, 3, 4])),
                draw(st.integers(1, 80)),
                preemptible=draw(st.booleans()) or draw(st.booleans()),
                team=draw(st.sampled_from("abc")),
                gpu_types=types,
                profile="",
            )
        )
    return jobs


@st.composite
def faults(draw: st.DrawFn) -> list[tuple[float, AnyEvent]]:
    """A node that goes and comes back, and a job that is cancelled."""
    if draw(st.booleans()):
        return []
    gone = draw(st.integers(5, 60))
    kind = draw(st.sampled_from([NodeLost, NodeDrained]))
    back = gone + draw(st.integers(0, 40))
    events: list[tuple[float, AnyEvent]] = [
        (gone, kind(node="n0")),
        (back, NodeJoined(node=parse_cluster("1x4").nodes[0])),
    ]
    return [*events, (draw(st.integers(1, 60)), CancelRequested(job="j1"))]


@pytest.mark.parametrize("name", POLICIES)
@given(jobs=workloads(), events=faults(), cluster=st.sampled_from(CLUSTERS), placer=st.sampled_from(PLACERS))
@settings(max_examples=25, deadline=None)
def test_policy_is_sound_deterministic_and_needs_no_warm_start(
    name: str,
    jobs: list[Submission],
    events: list[tuple[float, AnyEvent]],
    cluster: str,
    placer: Callable[[], Placer],
) -> None:
    def once() -> list[bytes]:
        result = run(POLICIES[name](), jobs, cluster, placer=placer(), cost_s=3.0, events=events)
        return [encode(record) for record in result.log.read()]

    assert once() == once()


@pytest.mark.parametrize("name", POLICIES)
def test_policy_runs_every_job_that_fits_to_its_end(name: str) -> None:
    jobs = [a_submission(f"j{n}", 7 * n, 1 + n % 4, 20 + 13 * (n % 5), team="ab"[n % 2]) for n in range(20)]
    too_large = a_submission("too-large", 5, gpus=9)
    result = run(POLICIES[name](), [*jobs, too_large], "2x4", cost_s=2.0)
    ends = finished(result)
    assert ends.pop("too-large") is None
    assert all(at is not None for at in ends.values())
