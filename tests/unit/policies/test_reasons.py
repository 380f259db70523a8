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
    assert first.text == "Running on 2 of up to 4 GPUs. Two more would make it 25% faster but would stop j1."
    assert first.numbers == {
        "gpus": 2,
        "speedup": 1.6,
        "left_s": 100.0,
        "next_gpus": 4,
        "next_gain": 0.25,
        "others_loss": 1.0,
    }
    assert "16% faster but would stop j0." in second.text


def test_the_cheapest_to_take_from_is_named() -> None:
    offers = some_offers([[0, 1, 1.9, 0], [0, 1, 1.1, 0], [0, 1, 1.5, 0]], capacity=(5,))
    reasons = explained(offers)
    assert [int(r.numbers["gpus"]) for r in reasons] == [2, 1, 2]
    assert (
        reasons[1].text
        == "Running on 1 of up to 2 GPUs. One more would make it 10% faster but would make j2 33% slower."
    )


def test_a_job_that_has_all_it_can_use_says_so() -> None:
    (reason,) = explained(some_offers([[0, 1, 1.5, 0]]))
    assert (reason.code, reason.text) == ("fastest", "Running on 2 GPUs, the most it can use.")


def test_a_job_that_gets_no_faster_says_so() -> None:
    (reason,) = explained(some_offers([[0, 1, 1.5, 1.4]]))
    assert (reason.code, reason.text) == (
        "saturated",
        "Running on 2 of up to 4 GPUs. Two more would not make it faster.",
    )
    assert reason.numbers["next_gain"] < 0


def test_a_job_that_waits_is_told_for_what_and_because_of_whom() -> None:
    offers = some_offers([[0, 1, 1.5, 0], [0, 0, 2.0, 0]], capacity=(2,))
    reason = explained(offers, [1.0, 9.0])[0]
    assert reason.code == "outbid"
    assert reason.text == (
        "Waiting for 1 GPU. Running jobs make better use of it; the cheapest to displace, j1, would have to stop entirely."
    )
    assert reason.numbers == {"needs_gpus": 1, "others_loss": 1.0}


def test_a_job_that_can_run_nowhere_says_so() -> None:
    (reason,) = explained(some_offers([[0, 0, 0, 0]]))
    assert (reason.code, reason.text) == (
        "no-place",
        "Waiting for GPUs. No node that accepts jobs has GPUs of a type it can use.",
    )


def test_a_job_that_is_measured_first_says_so() -> None:
    (reason,) = explained(some_offers([[0, 1, 0, 0]], unknown=[True]), note="And so on.")
    assert reason.code == "explore"
    assert reason.text == "Running on 1 GPU while its speed is measured. And so on."


def test_other_types_are_not_what_a_job_could_take_from() -> None:
    """j1 runs on the other type: nobody's GPUs are in the way of j0, and nobody is named."""
    offers = some_offers(
        [[0, 1, 1.5, 0, 0], [0, 0, 0, 1, 1.5]],
        size=(0, 1, 2, 1, 2),
        kind=(0, 0, 0, 1, 1),
        capacity=(1, 2),
    )
    reason = explained(offers)[0]
    assert reason.text == "Running on 1 of up to 2 GPUs. One more would make it 50% faster."


def test_a_deadline_that_cannot_be_met_is_said_with_how_late() -> None:
    note = deadline_note(3700.0)
    assert note == "Its deadline cannot be met: it would be 1h 1m late even on all GPUs it can use."


def test_a_quota_that_holds_a_job_back_is_named() -> None:
    runs, waits = explained(some_offers([[0, 1, 1.5, 2], [0, 1, 1.5, 2]]), most=[2, 0])
    assert (runs.code, waits.code) == ("quota", "quota")
    assert runs.text == "Running on 2 of up to 4 GPUs. The quota of its user or team allows no more."
    assert waits.text == "Waiting for 1 GPU. The quota of its user or team is used up."


def test_nobody_is_named_where_gpus_are_free() -> None:
    """A change that is not worth it: 6 GPUs are free, nobody would have to give any up."""
    offers = some_offers([[0, 1, 1.5, 2], [0, 1, 0, 0]], current=[2, 1])
    value = np.array([[0, 0.5, 1.5, 1.4], [0, 1.0, -np.inf, -np.inf]])
    reason = Explainer(offers, value, np.array([2, 1])).reason(0)
    assert reason.text == "Running on 2 of up to 4 GPUs. Two more would make it 33% faster."
    assert "others_loss" not in reason.numbers


def test_a_job_whose_gpus_are_held_by_jobs_that_stay_says_so() -> None:
    offers = replace(some_offers([[0, 0, 0, 0]]), expected=np.array([[0, 0, 0, 1.0]]))
    (reason,) = explained(offers)
    assert (reason.code, reason.text) == (
        "held",
        "Waiting for GPUs. Jobs that cannot be moved now hold the GPUs it needs.",
    )
