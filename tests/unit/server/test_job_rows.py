"""Rows of tables: the state, what is held now, when it ends; and events in words."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    AnyEvent,
    CancelRequested,
    DecisionMade,
    JobFinished,
    JobStopped,
    Measured,
    PauseRequested,
    ResumeRequested,
    RetryRequested,
    StopJob,
)
from coadapt.model.interval import Outlook
from coadapt.server import event_text
from coadapt.server.http.problems import Refused
from coadapt.server.lookahead_process import Outlooks
from tests.unit.server.served import NOW, Client, Served, a_measurement


def row(client: Client, job: str = "a-1") -> dict[str, Any]:
    (found,) = [line for line in client.get("root", "/v1/jobs").json()["jobs"] if line["job"] == job]
    return found  # type: ignore[no-any-return]


def shown(client: Client, job: str = "a-1") -> tuple[str, int, str, list[str]]:
    line = row(client, job)
    return line["state"], line["gpus"], line["gpu_type"], line["nodes"]


def stop(served: Served, why: str, cause: str, *before: AnyEvent) -> None:
    served.append(
        *before,
        DecisionMade(decision=3, targets={"a-1": NOWHERE}),
        ActionsIssued(decision=3, actions=(StopJob(id=2, job="a-1", attempt=1, why=why),)),  # type: ignore[arg-type]
    )


def test_job_that_lost_its_gpus_to_others_is_preempted_and_holds_nothing(
    served: Served, client: Client
) -> None:
    assert shown(client) == ("RUNNING", 4, "gpu", ["n0"])
    stop(served, "pause", "paused")
    assert shown(client) == ("STOPPING", 4, "gpu", ["n0"])
    served.append(JobStopped(job="a-1", attempt=1, cause="paused"))
    assert shown(client) == ("PREEMPTED", 0, "", [])
    assert [line["job"] for line in client.get("root", "/v1/jobs?state=preempted").json()["jobs"]] == ["a-1"]
    assert client.get("root", "/v1/cluster").json()["states"] == {"QUEUED": 1, "PREEMPTED": 1}


def test_job_that_its_user_paused_is_paused_until_it_is_resumed(served: Served, client: Client) -> None:
    stop(served, "pause", "paused", PauseRequested(job="a-1"))
    served.append(JobStopped(job="a-1", attempt=1, cause="paused"))
    assert shown(client)[0] == "PAUSED"
    assert row(client)["why"] == "Paused on request."
    served.append(ResumeRequested(job="a-1"))
    assert shown(client)[0] == "PREEMPTED"


def test_job_that_was_cancelled_and_retried_waits_without_gpus(served: Served, client: Client) -> None:
    stop(served, "cancel", "cancelled", CancelRequested(job="a-1"))
    served.append(JobStopped(job="a-1", attempt=1, cause="cancelled"), RetryRequested(job="a-1"))
    assert shown(client) == ("QUEUED", 0, "", [])


def test_job_that_has_done_its_work_is_finishing(served: Served, client: Client) -> None:
    assert not row(client)["finishing"]
    served.append(Measured(job="a-1", attempt=1, measurement=a_measurement(work=6400.0)))
    assert row(client)["finishing"]
    page = client.get("root", "/").text
    assert "finishing" in page
    served.append(JobFinished(job="a-1", attempt=1, outcome="succeeded"))
    assert not row(client)["finishing"]


class Simulator:
    """Counts what it is asked, and knows one job's end."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []
        self.refuses = False

    async def ask(self, question: object, kind: type, *, seq: int | None = None) -> dict[str, Outlook]:
        self.asked.append(seq)
        if self.refuses:
            raise Refused(503, "busy")
        return {"b-2": Outlook(finishes_at=NOW + 50.0, low=NOW + 60.0, high=NOW + 40.0)}


def test_look_ahead_is_made_only_for_readers_and_not_too_often() -> None:
    now, simulator = [1000.0], Simulator()
    outlooks = Outlooks(simulator, clock=lambda: now[0])  # type: ignore[arg-type]

    def refresh(at: float, seq: int) -> int:
        now[0] = at
        asyncio.run(outlooks.refresh(seq))
        return len(simulator.asked)

    assert refresh(1000.0, 1) == 0  # nobody has read anything
    assert outlooks.of("b-2") is None
    assert refresh(1001.0, 1) == 0  # too soon after the first reader
    assert refresh(1003.0, 1) == 1
    found = outlooks.of("b-2")
    assert found is not None
    assert found.low == found.value == found.high == NOW + 50.0  # an interval holds its value
    assert refresh(1010.0, 2) == 1  # too soon after the last
    assert refresh(1020.0, 1) == 1  # nothing has changed
    assert refresh(1020.0, 2) == 2
    assert refresh(1060.0, 3) == 2  # nobody reads any more
    simulator.refuses = True
    outlooks.of("b-2")
    assert refresh(1061.0, 3) == 3
    assert refresh(1080.0, 4) == 3  # after a failure it waits longer


def test_waiting_job_shows_the_end_that_the_look_ahead_found(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert row(client, "b-2")["eta"] is None
    monkeypatch.setattr(
        "coadapt.server.lookahead_process.Forward.ask", lambda self, *args, **more: Simulator().ask(*args)
    )
    assert client.get("root", "/v1/eta").status_code == 200
    assert row(client, "b-2")["eta"] == {"value": NOW + 50.0, "low": NOW + 50.0, "high": NOW + 50.0}
    served.now = NOW + 51.0  # it should have ended, and has not even started
    assert row(client, "b-2")["eta"] is None


def test_every_event_has_a_text() -> None:
    assert event_text._TEXTS.keys() == set(get_args(AnyEvent))
