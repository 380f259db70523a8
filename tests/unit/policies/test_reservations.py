"""Reservations: when a job that waited too long starts, what may start before it, and what it is told."""

from __future__ import annotations

import pytest

from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.policies.coadapt.reservations import RESERVATIONS
from tests.unit.policies.harness import Submission, a_submission, decisions, finished, run, started


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
    assert at <= made[0] + 1.0
    assert any("8 GPUs are reserved for it in" in text for text in words)


def test_without_a_time_limit_no_moment_is_promised_and_that_is_said() -> None:
    large = a_submission("large", 50.0, 4, 60.0, preemptible=False, user="ann")
    endless = a_submission("endless", 0.0, 1, 2000.0, preemptible=False, user="bob")
    policy = CoadaptPolicy(least_wait_s=300.0, change_s=1.0, reserve_after=1.0)
    result = run(policy, [endless, *small_jobs(100, 10.0), large], "1x4", cost_s=1.0)
    words = [d.reasons["large"].text for _, d in decisions(result) if "large" in d.reasons]
    assert any(
        "No time can be promised: endless cannot be preempted and has no time limit." in text
        for text in words
    )
    at = started(result)["large"]
    assert at is not None
    assert at <= 2000.0 + 120.0


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
