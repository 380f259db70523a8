"""Rows of tables: the state, what is held now, when it ends; and events in words."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any, get_args

import pytest

from coadapt.model import (
    NOWHERE,
    ActionsIssued,
    AnyEvent,
    CancelRequested,
    Configuration,
    DecisionMade,
    JobFinished,
    JobStopped,
    Measured,
    Measurement,
    NodeDrained,
    NodeOpened,
    PauseRequested,
    QuotaSet,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
    StopJob,
)
from coadapt.model.interval import Outlook
from coadapt.scheduler.state.state import SchedulerState
from coadapt.server import event_text
from coadapt.server.http.problems import Refused
from coadapt.server.log_follower import Follower
from coadapt.server.lookahead_process import Outlooks
from tests.builders import a_job
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


@pytest.mark.parametrize(("each", "shown_batch"), [(1, None), (16, 64)])
def test_job_that_never_named_a_batch_size_shows_none(
    served: Served, client: Client, each: int, shown_batch: int | None
) -> None:
    """Its log tells the share that is done; the configuration of such a reading has 1 for each replica."""
    config = Configuration(nodes=1, replicas=4, atomic_batch=each)
    served.append(
        SpecChanged(job="a-1", spec=a_job(4, user="ada")),
        Measured(job="a-1", attempt=1, measurement=Measurement(config=config, count=0, share=0.5)),
    )
    assert row(client)["batch"] == shown_batch


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


def test_failure_is_shown_as_a_sentence_and_only_while_the_job_is_failed(
    served: Served, client: Client
) -> None:
    served.append(
        JobFinished(
            job="a-1",
            attempt=1,
            outcome="failed",
            kind="exception",
            reason="replica 0 exited with 1",
            exit_code=1,
            rank=0,
            tail="Traceback\nValueError: no",
        )
    )
    line = row(client)
    assert line["state"] == "FAILED"
    assert line["why"] == line["failure"]
    assert line["failure"].startswith(
        "The script failed on replica 0 with exit code 1. Last line: ValueError: no."
    )
    served.append(RetryRequested(job="a-1"))
    line = row(client)
    assert (line["state"], line["failure"]) == ("QUEUED", "")
    assert "failed" not in line["why"]
    page = client.get("root", "/jobs/a-1").text
    assert "An earlier attempt failed on replica 0 with exit code 1." in page
    assert "exception:" not in page


def test_row_follows_changes_of_quotas_and_nodes_at_once(served: Served, client: Client) -> None:
    """The moment stands still: only the events may make the row anew."""
    assert row(client, "b-2")["why"] == "0 of 4 free"
    served.append(QuotaSet(group="bob", gpus=0))
    assert row(client, "b-2")["why"].startswith("Cannot start: it needs ")
    served.append(QuotaSet(group="bob", gpus=None))
    assert row(client, "b-2")["why"] == "0 of 4 free"


def test_rows_are_encoded_anew_after_drains_and_opens_only(served: Served) -> None:
    with closing(served.store.log()) as log:
        follower = Follower(log, SchedulerState(), clock=lambda: NOW)
        before = follower.resources_seq
        assert before == 0  # the node that joined
        for event in (NodeDrained(node="n0"), NodeOpened(node="n0")):
            served.append(event)
            follower.refresh(force=True)
            assert follower.resources_seq == follower.state.seq > before
            before = follower.resources_seq
        served.append(Measured(job="a-1", attempt=1, measurement=a_measurement()))
        follower.refresh(force=True)
        assert follower.resources_seq == before < follower.state.seq


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


def test_change_of_a_specification_says_the_new_values() -> None:
    spec = a_job(2, at_most=4, priority=3, time_limit_s=3600.0)
    assert event_text.text_of(SpecChanged(job="a", spec=spec)) == (
        "Specification changed; now priority 3, 1 to 4 GPUs, no deadline, time limit 1h."
    )


def test_every_event_has_a_text() -> None:
    assert event_text._TEXTS.keys() == set(get_args(AnyEvent))
