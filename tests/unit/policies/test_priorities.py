"""Priorities, weights, usage that fades, and quotas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model import JobSpec
from coadapt.model.snapshot import JobView
from coadapt.policies.coadapt import knapsack
from coadapt.policies.coadapt.knapsack import Problem, solve
from coadapt.policies.coadapt.priorities import aged_usage, job_weights, within_quotas


class AJob:
    def __init__(self, user: str = "", team: str = "", priority: int = 0, gpus: int = 0) -> None:
        self.spec = JobSpec(name="job", user=user, team=team, priority=priority)
        self.target_gpus = gpus


def jobs(*some: AJob) -> list[JobView]:
    return list(some)  # type: ignore[arg-type]


def test_priority_doubles_a_weight() -> None:
    some = jobs(AJob(), AJob(priority=1), AJob(priority=-2), AJob(priority=10**9))
    assert job_weights(some, {}, {}).tolist() == [1.0, 2.0, 0.25, 2.0**20]


def test_weights_of_user_and_team_multiply() -> None:
    some = jobs(AJob("ann", "vision"), AJob("bob", "vision"), AJob("cy", "speech"))
    assert job_weights(some, {"ann": 2.0, "vision": 3.0}, {}).tolist() == [6.0, 3.0, 1.0]


def test_who_used_more_than_entitled_weighs_less() -> None:
    some = jobs(AJob("ann"), AJob("bob"))
    even = job_weights(some, {"ann": 1.0}, {"ann": 100.0, "bob": 100.0})
    assert even.tolist() == [1.0, 1.0]
    uneven = job_weights(some, {"ann": 1.0}, {"ann": 300.0, "bob": 100.0})
    assert uneven.tolist() == [pytest.approx(1 / 1.5), 1.0]  # the mean is 200, she is half above
    # entitled to three times as much, she is not above anything
    assert job_weights(some, {"ann": 3.0}, {"ann": 300.0, "bob": 100.0}).tolist() == [3.0, 1.0]


def test_usage_does_not_count_without_weights() -> None:
    assert job_weights(jobs(AJob("ann"), AJob("bob")), {}, {"ann": 1e9}).tolist() == [1.0, 1.0]


def test_usage_halves_and_grows_by_what_is_held() -> None:
    held = jobs(AJob("ann", gpus=4), AJob("ann", gpus=2), AJob("bob"))
    assert aged_usage(None, held, None, 100.0, 3600.0) == {}
    used = aged_usage({"ann": 1000.0, "bob": 500.0}, held, 100.0, 3700.0, 3600.0)
    assert used == {"ann": 500.0 + 6 * 3600.0, "bob": 250.0}
    # nothing happens twice at one moment, and what is next to nothing is forgotten
    assert aged_usage(used, held, 3700.0, 3700.0, 3600.0) == used
    assert aged_usage({"bob": 500.0}, [], 0.0, 36000.0, 3600.0) == {}


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Problem, list[AJob], list[AJob]]:
    size = np.array([0, 1, 2, 4, 1, 2])
    kind = np.array([0, 0, 0, 0, 1, 1])
    names = st.sampled_from(["ann", "bob", ""])
    teams = st.sampled_from(["x", "y", "ann"])
    count = draw(st.integers(1, 8))
    some = [AJob(draw(names), draw(teams)) for _ in range(count)]
    staying = [
        AJob(draw(names), draw(teams), gpus=draw(st.integers(1, 4))) for _ in range(draw(st.integers(0, 2)))
    ]
    value = [
        [0.0, *(draw(st.sampled_from([-np.inf, 1.0, 3.0, 1e6])) for _ in size[1:])] for _ in range(count)
    ]
    return Problem(np.array(value), kind, size, (8, 4)), some, staying


@given(crowds(), st.dictionaries(st.sampled_from(["ann", "bob", "x"]), st.integers(0, 6)), st.booleans())
@settings(deadline=None)
def test_no_group_ever_gets_more_than_its_quota(
    crowd: tuple[Problem, list[AJob], list[AJob]], quotas: dict[str, int], exactly: bool
) -> None:
    """By user and by team at once, whatever else is at stake; what stays counts, and is not the group's to give."""
    problem, some, staying = crowd
    with pytest.MonkeyPatch.context() as patch:
        if not exactly:
            patch.setattr(knapsack, "EXACT_CELLS", 0)
        limited = within_quotas(problem, jobs(*some), quotas, jobs(*staying))
        choice = solve(limited).choice
    for group, quota in quotas.items():
        held = sum(job.target_gpus for job in staying if group in (job.spec.user, job.spec.team))
        given_ = sum(
            int(problem.size[option])
            for job, option in zip(some, choice, strict=True)
            if group in (job.spec.user, job.spec.team)
        )
        assert given_ <= max(quota - held, 0)


def test_a_quota_goes_to_whom_it_is_worth_most_and_leaves_others_alone() -> None:
    size, kind = np.array([0, 1, 2]), np.zeros(3, dtype=int)
    problem = Problem(np.array([[0, 1.0, 1.5], [0, 2.0, 4.0], [0, 0.1, 0.2]]), kind, size, (8,))
    some = jobs(AJob("ann"), AJob("ann"), AJob("bob"))
    assert solve(within_quotas(problem, some, {"ann": 2})).choice.tolist() == [0, 2, 2]
    assert solve(within_quotas(problem, some, {"ann": 3})).choice.tolist() == [1, 2, 2]
    assert solve(within_quotas(problem, some, {"nobody": 0})).choice.tolist() == [2, 2, 2]
    assert within_quotas(problem, some, {}) is problem
