"""Why a job has what it has, in words and numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coadapt.model import Reason
from coadapt.policies.coadapt.knapsack import Problem, exact
from coadapt.policies.coadapt.offers import Offers
from coadapt.policies.coadapt.reasons import Explainer, deadline_note
from tests.unit.policies.made_up import some_offers


def explained(
    offers: Offers, weights: list[float] | None = None, note: str = "", most: list[int] | None = None
) -> list[Reason]:
    """Reasons for the best choice by weighted speed; ``most``: GPUs that quotas leave to each."""
    weight = np.array(weights or [1.0] * len(offers.jobs))
    value = np.where(offers.goodput > 0, offers.goodput / offers.least[:, None] * weight[:, None], -np.inf)
    value[:, 0] = 0.0
    allowed = value if most is None else np.where(offers.size <= np.array(most)[:, None], value, -np.inf)
    choice = exact(Problem(allowed, offers.kind, offers.size, offers.capacity)).choice
    explainer = Explainer(offers, value, choice, allowed)
    return [explainer.reason(row, note) for row in range(len(choice))]


def test_a_job_that_could_use_more_is_told_what_it_would_cost_whom() -> None:
    """4 GPUs for two: each has 2; two more would bring j0 25% and cost j1, who would stop, all of it."""
    offers = some_offers([[0, 1, 1.6, 2.0], [0, 1, 1.9, 2.2]], capacity=(4,), work=[160.0, 100.0])
    first, second = explained(offers)
    assert first.code == second.code == "balanced"
    assert first.text == "runs on 2, not 4: the next 2 would speed it up by 25% and cost j1 100%"
    assert first.numbers == {
        "gpus": 2,
        "speedup": 1.6,
        "left_s": 100.0,
        "next_gpus": 4,
        "next_gain": 0.25,
        "others_loss": 1.0,
    }
    assert "by 16% and cost j0 100%" in second.text


def test_the_cheapest_to_take_from_is_named() -> None:
    offers = some_offers([[0, 1, 1.9, 0], [0, 1, 1.1, 0], [0, 1, 1.5, 0]], capacity=(5,))
    reasons = explained(offers)
    assert [int(r.numbers["gpus"]) for r in reasons] == [2, 1, 2]
    assert reasons[1].text == "runs on 1, not 2: the next 1 would speed it up by 10% and cost j2 33%"


def test_a_job_that_has_all_it_can_use_says_so() -> None:
    (reason,) = explained(some_offers([[0, 1, 1.5, 0]]))
    assert (reason.code, reason.text) == ("fastest", "runs on 2: it can use no more")


def test_a_job_that_gets_no_faster_says_so() -> None:
    (reason,) = explained(some_offers([[0, 1, 1.5, 1.4]]))
    assert (reason.code, reason.text) == ("saturated", "runs on 2, not 4: the next 2 would not speed it up")
    assert reason.numbers["next_gain"] < 0


def test_a_job_that_waits_is_told_for_what_and_because_of_whom() -> None:
    offers = some_offers([[0, 1, 1.5, 0], [0, 0, 2.0, 0]], capacity=(2,))
    reason = explained(offers, [1.0, 9.0])[0]
    assert reason.code == "outbid"
    assert reason.text == (
        "waits for 1 GPU: others finish more useful work with them (the least would cost j1 100%)"
    )
    assert reason.numbers == {"needs_gpus": 1, "others_loss": 1.0}


def test_a_job_that_can_run_nowhere_says_so() -> None:
    (reason,) = explained(some_offers([[0, 0, 0, 0]]))
    assert (reason.code, reason.text) == ("no-place", "waits: no GPUs of a kind it can use are there")


def test_a_job_that_is_measured_first_says_so() -> None:
    (reason,) = explained(some_offers([[0, 1, 0, 0]], unknown=[True]), note="and so on")
    assert reason.code == "explore"
    assert reason.text == "on 1 GPU: nothing is known about it yet, this is to measure it; and so on"


def test_other_types_are_not_what_a_job_could_take_from() -> None:
    """j1 runs on the other type: nobody's GPUs are in the way of j0, and nobody is named."""
    offers = some_offers(
        [[0, 1, 1.5, 0, 0], [0, 0, 0, 1, 1.5]],
        size=(0, 1, 2, 1, 2),
        kind=(0, 0, 0, 1, 1),
        capacity=(1, 2),
    )
    reason = explained(offers)[0]
    assert reason.text == "runs on 1, not 2: the next 1 would speed it up by 50%"


def test_a_deadline_that_cannot_be_met_is_said_with_how_late() -> None:
    note = deadline_note(3700.0)
    assert note == "its deadline cannot be met: 1h 1m late even on all it can use"


def test_a_quota_that_holds_a_job_back_is_named() -> None:
    runs, waits = explained(some_offers([[0, 1, 1.5, 2], [0, 1, 1.5, 2]]), most=[2, 0])
    assert (runs.code, waits.code) == ("quota", "quota")
    assert runs.text == "runs on 2, not 4: the quota of its user or team allows no more"
    assert waits.text == "waits for 1 GPU: the quota of its user or team is used up"


def test_nobody_is_named_where_gpus_are_free() -> None:
    """A change that is not worth it: 6 GPUs are free, nobody would have to give any up."""
    offers = some_offers([[0, 1, 1.5, 2], [0, 1, 0, 0]], current=[2, 1])
    value = np.array([[0, 0.5, 1.5, 1.4], [0, 1.0, -np.inf, -np.inf]])
    reason = Explainer(offers, value, np.array([2, 1])).reason(0)
    assert reason.text == "runs on 2, not 4: the next 2 would speed it up by 33%"
    assert "others_loss" not in reason.numbers


def test_a_job_whose_gpus_are_held_by_jobs_that_stay_says_so() -> None:
    offers = replace(some_offers([[0, 0, 0, 0]]), expected=np.array([[0, 0, 0, 1.0]]))
    (reason,) = explained(offers)
    assert (reason.code, reason.text) == ("held", "waits: jobs that stay as they are have the GPUs it needs")
