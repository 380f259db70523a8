"""Deadlines at submission: promised, refused with the earliest one, or dropped; budgets that an administrator sets."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import msgspec
import pytest

from coadapt.model import CancelRequested, DecisionMade, JobSubmitted, QuotaSet, SpecChanged
from coadapt.server.lookahead_process import AskDeadline, Forward
from tests.unit.server.served import NOW, Client, Served, a_submission


class Answering:
    """Stands for the lookahead process: the earliest deadline that it promises, in seconds after submission."""

    def __init__(self) -> None:
        self.earliest_s: float | None = 600.0
        self.asked: list[AskDeadline] = []

    async def ask(self, question: AskDeadline, kind: type[Any], *, seq: int | None = None) -> Any:
        """See ``Forward``."""
        self.asked.append(question)
        assert question.spec.deadline_s is not None
        kept = self.earliest_s is not None and self.earliest_s <= question.spec.deadline_s
        return kind(kept=kept, earliest_s=self.earliest_s, note="" if self.earliest_s else "It has no end.")


@pytest.fixture
def lookahead(monkeypatch: pytest.MonkeyPatch) -> Answering:
    found = Answering()
    monkeypatch.setattr(Forward, "ask", lambda self, *args, **more: found.ask(*args, **more))
    return found


def with_deadline(deadline_s: float | None, **fields: Any) -> dict[str, Any]:
    """A submission with a deadline; ``drop``: without it if it must be."""
    drop = fields.pop("drop", False)
    body = a_submission(deadline_s=deadline_s, **fields)
    return {**body, "drop_deadline": True} if drop else body


def test_a_deadline_that_can_be_promised_is_accepted(
    served: Served, client: Client, lookahead: Answering
) -> None:
    answer = client.post("ada", "/v1/jobs", with_deadline(700.0))
    assert (answer.status_code, answer.json()["note"]) == (201, "")
    (event,) = served.inbox()
    assert isinstance(event, JobSubmitted)
    assert event.spec.deadline_s == 700.0
    assert lookahead.asked[0].spec.user == "ada"


def test_a_job_without_a_deadline_asks_nobody(client: Client, lookahead: Answering) -> None:
    assert client.post("ada", "/v1/jobs", a_submission()).status_code == 201
    assert lookahead.asked == []


def test_a_deadline_that_cannot_be_promised_is_refused_with_the_earliest_one(
    served: Served, client: Client, lookahead: Answering
) -> None:
    lookahead.earliest_s = 5100.0
    answer = client.post("ada", "/v1/jobs", with_deadline(3600.0))
    assert answer.status_code == 409
    problem = answer.json()
    assert (problem["code"], problem["earliest_s"]) == ("deadline", 5100.0)
    assert problem["error"] == (
        "the deadline in 1h cannot be promised; the earliest that can be is in 1h 25m; ask for that (--deadline 85m), "
        "or submit it without the deadline (--drop-deadline)"
    )
    assert served.inbox() == []
    # what is named is accepted
    assert client.post("ada", "/v1/jobs", with_deadline(problem["earliest_s"])).status_code == 201


def test_a_job_whose_end_is_not_known_is_promised_no_deadline(client: Client, lookahead: Answering) -> None:
    lookahead.earliest_s = None
    problem = client.post("ada", "/v1/jobs", with_deadline(3600.0)).json()
    assert (problem["code"], problem["earliest_s"]) == ("deadline", None)
    assert "it is not known when the job would end (It has no end)" in problem["error"]


def test_a_job_that_its_time_limit_stops_is_refused_with_that_reason(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(self: Forward, question: AskDeadline, kind: type[Any], *, seq: int | None = None) -> Any:
        note = "It is stopped at its time limit of 5m, before its predicted end."
        return kind(kept=False, earliest_s=None, note=note, at_limit=True)

    monkeypatch.setattr(Forward, "ask", ask)
    problem = client.post("ada", "/v1/jobs", with_deadline(1800.0, time_limit_s=300.0)).json()
    assert problem["error"] == (
        "the deadline in 30m cannot be promised, nor any other: it is stopped at its time limit of 5m, before its predicted end; "
        "raise --time-limit, or submit it without the deadline (--drop-deadline)"
    )


def test_a_deadline_may_be_dropped_instead(served: Served, client: Client, lookahead: Answering) -> None:
    answer = client.post("ada", "/v1/jobs", with_deadline(60.0, drop=True))
    assert answer.status_code == 201
    assert answer.json()["note"] == "Submitted without its deadline: the deadline in 1m cannot be promised."
    (event,) = served.inbox()
    assert isinstance(event, JobSubmitted)
    assert event.spec.deadline_s is None


def test_a_repeated_request_has_the_same_answer(served: Served, client: Client, lookahead: Answering) -> None:
    """Its own first copy is in the way of the second: without the key's memory the repeat would be refused."""
    key = {"headers": {"Idempotency-Key": "k1"}}
    first = client.post("ada", "/v1/jobs", with_deadline(700.0), **key)
    lookahead.earliest_s = 9000.0
    again = client.post("ada", "/v1/jobs", with_deadline(700.0), **key)
    assert (again.status_code, again.json()) == (201, first.json())
    assert len(served.inbox()) == 1


@pytest.mark.parametrize("drop", [False, True])
def test_a_repeated_request_has_the_same_answer_from_another_api_and_after_the_inbox(
    served: Served, lookahead: Answering, drop: bool
) -> None:
    """The API was restarted, and the controller has taken the job and pruned its entry."""
    lookahead.earliest_s = 9000.0 if drop else 600.0
    key = {"headers": {"Idempotency-Key": "k1"}}
    with served.client() as client:
        first = client.post("ada", "/v1/jobs", with_deadline(700.0, drop=drop), **key)
    assert first.status_code == 201
    with closing(served.store.inbox()) as inbox:
        for number, event in list(inbox.take()):
            served.append(event)
            inbox.acknowledge(number)
        assert inbox.prune(-1.0) == 1
    lookahead.earliest_s = 600.0 if drop else 9000.0
    with served.client() as client:
        again = client.post("ada", "/v1/jobs", with_deadline(700.0, drop=drop), **key)
        other = client.post("ada", "/v1/jobs", with_deadline(800.0, drop=True), **key)
    assert (again.status_code, again.json()) == (201, first.json())
    assert other.status_code == 409
    assert "was used for another request" in other.json()["error"]
    assert served.inbox() == []


def test_a_changed_deadline_is_judged_from_now(served: Served, client: Client, lookahead: Answering) -> None:
    lookahead.earliest_s = 700.0
    problem = client.ask("bob", "PATCH", "/v1/jobs/b-2", json={"deadline_s": 400.0}).json()
    # it was submitted 100 s ago
    assert "the deadline in 5m cannot be promised; the earliest that can be is in 10m" in problem["error"]
    assert "--drop-deadline" not in problem["error"]
    assert client.ask("bob", "PATCH", "/v1/jobs/b-2", json={"deadline_s": 700.0}).status_code == 202
    assert isinstance(served.inbox()[-1], SpecChanged)
    assert lookahead.asked[0].job == "b-2"


@pytest.mark.parametrize("group", ["ada", "vision"])
def test_jobs_with_a_deadline_are_a_budget(
    served: Served, client: Client, lookahead: Answering, group: str
) -> None:
    served.append(QuotaSet(group=group, deadlines=1))
    assert client.post("ada", "/v1/jobs", with_deadline(700.0, team="vision")).status_code == 201
    refused = client.post("ada", "/v1/jobs", with_deadline(700.0, team="vision"))
    assert (refused.status_code, refused.json()["code"]) == (409, "deadline")
    assert refused.json()["error"].startswith(f"{group} may have 1 job with a deadline at a time and has 1;")
    assert client.post("ada", "/v1/jobs", a_submission(team="vision")).status_code == 201
    assert client.post("bob", "/v1/jobs", with_deadline(700.0)).status_code == 201
    dropped = client.post("ada", "/v1/jobs", with_deadline(700.0, team="vision", drop=True))
    assert dropped.status_code == 201


def test_budgets_are_set_and_shown_and_what_is_left_out_stays(served: Served, client: Client) -> None:
    for body in ({"gpus": 8}, {"priority": 3}, {"deadlines": 2}, {"gpus": None}):
        assert client.ask("root", "PUT", "/v1/quotas/ada", json=body).status_code == 202
    assert served.inbox()[-1] == QuotaSet(group="ada", gpus=None, priority=3, deadlines=2, by="root")
    served.append(*served.inbox())
    line = next(each for each in client.get("ada", "/v1/quotas").json()["quotas"] if each["group"] == "ada")
    assert (line["gpus"], line["priority"], line["deadlines"], line["deadlines_used"]) == (None, 3, 2, 0)


@pytest.mark.parametrize(
    "body", [{}, {"priority": -1}, {"priority": 21}, {"priority": None}, {"deadlines": -1}, {"gpus": 1e12}]
)
def test_budgets_that_cannot_be_are_refused(served: Served, client: Client, body: dict[str, Any]) -> None:
    assert client.ask("root", "PUT", "/v1/quotas/ada", json=body).status_code == 422
    assert served.inbox() == []


def test_budgets_are_an_administrators(served: Served, client: Client) -> None:
    for who in ("ada", "eve"):
        assert client.ask(who, "PUT", "/v1/quotas/ada", json={"priority": 20}).status_code == 403


def test_a_limit_that_promises_rest_on_is_not_extended_by_its_user(served: Served, client: Client) -> None:
    spec = msgspec.structs.replace(served.spec("a-1"), preemptible=False, time_limit_s=3600.0)
    served.append(SpecChanged(job="a-1", spec=spec))
    assert client.ask("ada", "PATCH", "/v1/jobs/a-1", json={"time_limit_s": 7200.0}).status_code == 202
    promised = {"b-2": {"by": NOW + 60.0, "since": NOW, "gpus": 4, "workers": 4}}
    served.append(DecisionMade(decision=3, memory={"reservations": promised}))
    for limit_s in (7200.0, -1.0):
        refused = client.ask("ada", "PATCH", "/v1/jobs/a-1", json={"time_limit_s": limit_s})
        assert refused.status_code == 409
        assert "were promised a start that rests on its time limit" in refused.json()["error"]
    assert client.ask("ada", "PATCH", "/v1/jobs/a-1", json={"time_limit_s": 1800.0}).status_code == 202
    assert client.ask("root", "PATCH", "/v1/jobs/a-1", json={"time_limit_s": 7200.0}).status_code == 202


def test_retry_does_not_go_around_the_budget(served: Served, client: Client, lookahead: Answering) -> None:
    spec = msgspec.structs.replace(served.spec("a-1"), deadline_s=700.0)
    served.append(
        QuotaSet(group="ada", deadlines=1),
        JobSubmitted(job="c-3", spec=spec),
        CancelRequested(job="c-3"),
        JobSubmitted(job="c-4", spec=spec),
    )
    refused = client.post("ada", "/v1/jobs/c-3/retry")
    assert refused.status_code == 409
    assert "ada may have 1 job with a deadline at a time and has 1" in refused.json()["error"]
    served.append(CancelRequested(job="c-4"))
    assert client.post("ada", "/v1/jobs/c-3/retry").status_code == 202
    # what waits in the inbox counts
    assert client.post("ada", "/v1/jobs/c-4/retry").status_code == 409


def test_requests_at_the_same_time_share_one_budget(
    served: Served, client: Client, lookahead: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second request arrives while the first is judged."""
    meanwhile: list[int] = []

    async def ask(question: AskDeadline, kind: type[Any], *, seq: int | None = None) -> Any:
        if not meanwhile:
            meanwhile.append(0)
            second = await asyncio.to_thread(client.post, "ada", "/v1/jobs", with_deadline(700.0))
            meanwhile.append(second.status_code)
        return kind(kept=True)

    monkeypatch.setattr(lookahead, "ask", ask)
    served.append(QuotaSet(group="ada", deadlines=1))
    assert client.post("ada", "/v1/jobs", with_deadline(700.0)).status_code == 201
    assert meanwhile == [0, 409]
    assert len(served.inbox()) == 1
