"""Reading jobs, and asking for things: what is answered, and what is in the inbox afterwards."""

from __future__ import annotations

import msgspec
import pytest

from coadapt.model import (
    CancelRequested,
    DecisionMade,
    Forecast,
    JobFinished,
    JobSubmitted,
    PauseRequested,
    QuotaSet,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
    Woke,
)
from tests.builders import a_job
from tests.unit.server.served import SECRET, Client, Served, a_submission


def test_page_holds_all_that_the_caller_may_see_newest_first(client: Client) -> None:
    seen = {
        who: [line["job"] for line in client.get(who, "/v1/jobs").json()["jobs"]]
        for who in ("root", "eve", "ada", "bob")
    }
    assert seen == {"root": ["b-2", "a-1"], "eve": ["b-2", "a-1"], "ada": ["a-1"], "bob": ["b-2"]}


def test_page_goes_on_where_the_last_ended(client: Client) -> None:
    first = client.get("root", "/v1/jobs?limit=1").json()
    second = client.get("root", f"/v1/jobs?limit=1&after={first['next']}").json()
    assert [first["jobs"][0]["job"], second["jobs"][0]["job"]] == ["b-2", "a-1"]
    assert (first["total"], second["next"]) == (2, None)


def test_page_by_state_and_user(client: Client) -> None:
    assert [j["job"] for j in client.get("root", "/v1/jobs?state=running,failed").json()["jobs"]] == ["a-1"]
    assert [j["job"] for j in client.get("root", "/v1/jobs?user=bob").json()["jobs"]] == ["b-2"]
    assert client.get("ada", "/v1/jobs?user=bob").json()["total"] == 0
    assert client.get("root", "/v1/jobs?state=flying").status_code == 400


def test_line_says_what_the_job_has(client: Client) -> None:
    line = client.get("ada", "/v1/jobs/a-1").json()["line"]
    assert (line["state"], line["gpus"], line["nodes"], line["batch"]) == ("RUNNING", 4, ["n0"], 64)
    assert line["progress"] == pytest.approx(0.1)
    assert line["gpu_s"] == pytest.approx(400.0)


def test_deadline_at_risk_is_told_with_what_would_save_it(served: Served, client: Client) -> None:
    assert client.get("ada", "/v1/jobs/a-1").json()["advice"] == ""
    spec = msgspec.structs.replace(served.spec("a-1"), deadline_s=300.0)
    forecast = Forecast(left_s=500.0, low_s=250.0, high_s=900.0)
    served.append(
        SpecChanged(job="a-1", spec=spec), DecisionMade(decision=3, forecasts={"a-1": forecast}), Woke()
    )
    advice = client.get("ada", "/v1/jobs/a-1").json()["advice"]
    assert advice.startswith("Deadline: in 3m 20s; it will probably be missed (8")
    assert client.get("ada", "/v1/jobs/a-1/why").json()["advice"] == advice
    (line,) = client.get("ada", "/v1/jobs").json()["jobs"]
    assert line["why"].startswith("Deadline at risk (8")
    assert "4 free" in line["why"]
    assert "will probably be missed (8" in client.get("ada", "/jobs/a-1").text


def test_submitted_job_shows_at_once_and_once(served: Served, client: Client) -> None:
    answer = client.post("ada", "/v1/jobs", a_submission(user="root"))
    assert answer.status_code == 201
    job = answer.json()["job"]
    line = client.get("ada", f"/v1/jobs/{job}").json()["line"]
    assert (line["state"], line["user"], line["order"]) == ("QUEUED", "ada", 2)
    (event,) = served.inbox()
    assert isinstance(event, JobSubmitted)
    assert (event.job, event.spec.user) == (job, "ada")
    served.append(event)
    page = client.get("root", "/v1/jobs").json()
    assert [line["job"] for line in page["jobs"]] == [job, "b-2", "a-1"]


def test_submitted_job_shows_after_the_api_was_started_anew(served: Served) -> None:
    with served.client() as client:
        job = client.post("ada", "/v1/jobs", a_submission()).json()["job"]
    with served.client() as client:
        assert client.get("ada", f"/v1/jobs/{job}").json()["line"]["state"] == "QUEUED"


def test_idempotency_key_gives_the_same_job_and_refuses_another(served: Served, client: Client) -> None:
    key = {"Idempotency-Key": "k1"}
    jobs = {client.post("ada", "/v1/jobs", a_submission(), headers=key).json()["job"] for _ in range(3)}
    assert len(jobs) == len(served.inbox()) == 1
    assert client.post("ada", "/v1/jobs", a_submission(name="d"), headers=key).status_code == 409
    assert client.post("bob", "/v1/jobs", a_submission(), headers=key).json()["job"] not in jobs
    assert len(served.inbox()) == 2


@pytest.mark.parametrize(
    ("what", "event"), [("cancel", CancelRequested), ("pause", PauseRequested), ("resume", ResumeRequested)]
)
def test_request_is_in_the_inbox_when_it_is_answered(
    served: Served, client: Client, what: str, event: type
) -> None:
    answer = client.post("ada", f"/v1/jobs/a-1/{what}")
    assert answer.status_code == 202
    assert answer.json()["number"] > 0
    assert served.inbox() == [event(job="a-1", by="ada")]


def _note(client: Client, what: str, who: str = "ada", job: str = "a-1") -> str:
    answer = client.post(who, f"/v1/jobs/{job}/{what}")
    assert answer.status_code == 202
    return str(answer.json()["note"])


def test_pause_and_resume_say_what_is_true(served: Served, client: Client) -> None:
    assert _note(client, "resume") == "a-1 is not paused; it is RUNNING."
    served.append(*served.inbox())
    assert _note(client, "pause") == ""
    # also before the controller has taken the request
    assert _note(client, "pause") == "a-1 is already being paused."
    assert _note(client, "resume") == ""
    assert _note(client, "pause") == ""
    assert _note(client, "pause", "bob", "b-2").startswith("Paused b-2 in the queue.")
    served.append(PauseRequested(job="b-2"))
    assert _note(client, "pause", "bob", "b-2") == "b-2 is already paused."
    assert _note(client, "resume", "bob", "b-2") == ""


def test_cancel_says_what_is_true(client: Client) -> None:
    assert _note(client, "cancel", "bob", "b-2") == "Removed b-2 from the queue; it never ran."
    assert _note(client, "cancel", "bob", "b-2") == "b-2 is being cancelled already."
    assert _note(client, "cancel") == ""


def test_retry_of_a_job_whose_dependency_failed_is_refused_until_that_is_retried(
    served: Served, client: Client
) -> None:
    served.append(JobSubmitted(job="w-3", spec=a_job(name="w", user="ada", after=("a-1",))))
    served.append(JobFinished(job="a-1", attempt=1, outcome="failed", exit_code=1))
    answer = client.post("ada", "/v1/jobs/w-3/retry")
    assert answer.status_code == 409
    assert answer.json()["error"] == (
        "job w-3 cannot be retried: a-1, on which it depends, has failed; retry that first"
    )
    assert served.inbox() == []
    for job in ("a-1", "w-3"):
        assert client.post("ada", f"/v1/jobs/{job}/retry").status_code == 202


def test_unknown_job_in_after_is_named_with_the_nearest_that_the_caller_may_see(client: Client) -> None:
    for who, name, said in (
        ("ada", "nosuch", "there is no job 'nosuch' (after)"),
        ("ada", "a-12", "there is no job 'a-12' (after); did you mean 'a-1'?"),
        ("bob", "a-12", "there is no job 'a-12' (after)"),
    ):
        answer = client.post(who, "/v1/jobs", a_submission(after=[name]))
        assert answer.status_code == 422
        assert answer.json()["error"] == said


def test_ended_job_takes_retry_and_nothing_else(served: Served, client: Client) -> None:
    assert client.post("ada", "/v1/jobs/a-1/retry").status_code == 409
    served.append(JobFinished(job="a-1", attempt=1, outcome="failed", exit_code=1))
    for what in ("cancel", "pause", "resume"):
        assert client.post("ada", f"/v1/jobs/a-1/{what}").status_code == 409
    assert client.ask("ada", "PATCH", "/v1/jobs/a-1", json={"priority": 3}).status_code == 409
    assert client.post("ada", "/v1/jobs/a-1/retry").status_code == 202
    assert served.inbox() == [RetryRequested(job="a-1", by="ada")]


def test_changes_add_up_before_the_controller_takes_them(served: Served, client: Client) -> None:
    for change in ({"priority": 7}, {"time_limit_s": 3600.0}, {"max_gpus": 4, "min_gpus": 2}):
        assert client.ask("bob", "PATCH", "/v1/jobs/b-2", json=change).status_code == 202
    last = served.inbox()[-1]
    assert isinstance(last, SpecChanged)
    assert (last.spec.priority, last.spec.time_limit_s, last.spec.worker.min, last.spec.worker.max) == (
        7,
        3600.0,
        2,
        4,
    )
    assert client.ask("bob", "PATCH", "/v1/jobs/b-2", json={"time_limit_s": -1}).status_code == 202
    last = served.inbox()[-1]
    assert isinstance(last, SpecChanged)
    assert (last.spec.priority, last.spec.time_limit_s) == (7, None)


@pytest.mark.parametrize(
    "change", [{}, {"max_gpus": 0}, {"min_gpus": 9}, {"deadline_s": 0}, {"colour": 1}, {"priority": "x"}]
)
def test_change_that_cannot_be_is_refused(served: Served, client: Client, change: dict[str, object]) -> None:
    assert client.ask("bob", "PATCH", "/v1/jobs/b-2", json=change).status_code == 422
    assert served.inbox() == []


def test_values_of_environment_variables_are_nowhere(served: Served, client: Client) -> None:
    client.post("ada", "/v1/jobs", a_submission(envs={"TOKEN": SECRET}))
    for path in (
        "/v1/jobs",
        "/v1/jobs/a-1",
        "/v1/jobs/c-1",
        "/v1/events?limit=1000",
        "/v1/events?job=a-1",
        "/v1/jobs/a-1/course",
        "/metrics",
        "/v1/cluster",
    ):
        answer = client.get("root", path)
        assert answer.status_code == 200, path
        assert SECRET not in answer.text, path
    assert client.get("root", "/v1/jobs/a-1").json()["spec"]["envs"] == {"KEY": ""}
    refused = client.post("ada", "/v1/jobs", a_submission(envs={"TOKEN": SECRET + "\0"}))
    assert refused.status_code == 422
    assert SECRET not in refused.text


def test_jobs_that_end_with_another_change_their_state_too(served: Served, client: Client) -> None:
    served.append(JobSubmitted(job="w-3", spec=a_job(name="w", user="ada", after=("a-1",))))
    assert client.get("ada", "/v1/jobs?state=queued").json()["jobs"][0]["after"] == ["a-1"]
    served.append(JobFinished(job="a-1", attempt=1, outcome="failed"))
    client.get("ada", "/v1/jobs")
    assert {j["job"]: j["state"] for j in client.get("ada", "/v1/jobs").json()["jobs"]} == {
        "a-1": "FAILED",
        "w-3": "CANCELLED",
    }


def test_course_tells_sizes_measurements_and_changes(client: Client) -> None:
    course = client.get("ada", "/v1/jobs/a-1/course").json()
    assert [(p["gpus"], p["batch"]) for p in course["points"]] == [(4, 64), (4, None)]
    assert course["points"][0]["efficiency"] == pytest.approx(2 / 3)
    assert [c["kind"] for c in course["changes"]] == ["JobSubmitted", "DecisionMade", "JobStarted"]
    assert course["changes"][1]["text"] == "Given 4 GPUs. 4 free"


def test_unknown_job_and_job_of_another_user_get_the_same_answer(client: Client) -> None:
    for job in ("b-2", "nobody-9"):
        answer = client.get("ada", f"/v1/jobs/{job}")
        assert answer.status_code == 404
        assert answer.json()["error"] == f"no job '{job}', or you have no access to it"


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/preview"])
def test_job_above_the_quota_of_its_user_is_refused(served: Served, client: Client, path: str) -> None:
    served.append(QuotaSet(group="ada", gpus=0))
    answer = client.post("ada", path, a_submission())
    assert answer.status_code == 422
    assert "the quota of ada is 0, so it could never start" in answer.json()["error"]


def test_a_team_with_the_name_of_another_user_is_refused(served: Served, client: Client) -> None:
    """The job would count for his quota, his budgets and his share."""
    served.append(JobSubmitted(job="z-3", spec=msgspec.structs.replace(served.spec("b-2"), user="zoe")))
    for name in ("bob", "zoe"):  # by a token, by a job of one whom a proxy signed in
        refused = client.post("ada", "/v1/jobs", a_submission(team=name))
        assert refused.status_code == 422
        assert refused.json()["error"].startswith(f"team {name!r} is the name of a user")
    for name in ("ada", "vision"):
        assert client.post("ada", "/v1/jobs", a_submission(team=name)).status_code == 201


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/preview"])
def test_team_with_a_list_of_members_is_for_them_only(served: Served, client: Client, path: str) -> None:
    def answer(who: str, team: str) -> str:
        found = client.post(who, path, a_submission(team=team))
        assert (found.status_code == 422) == ("error" in found.json()), found.text
        return str(found.json().get("error", ""))

    assert answer("ada", "vision") == ""  # no team has a list: every name may be used
    assert client.ask("root", "PUT", "/v1/quotas/vision", json={"members": ["ada", "eve"]}).status_code == 202
    assert answer("ada", "vision") == answer("bob", "") == answer("ada", "ada") == ""
    assert answer("bob", "vision") == (
        "bob is not a member of team 'vision'; your teams: none. An administrator adds members"
    )
    assert answer("ada", "visoin") == (
        "there is no team 'visoin'; your teams: vision. An administrator adds members"
    )
    assert client.ask("root", "PUT", "/v1/quotas/vision", json={"gpus": 4}).status_code == 202  # members stay
    assert "not a member" in answer("bob", "vision")
    assert client.ask("root", "PUT", "/v1/quotas/vision", json={"members": None}).status_code == 202
    assert answer("bob", "vision") == ""


def test_members_are_listed_and_shown_to_those_who_are(served: Served, client: Client) -> None:
    served.append(QuotaSet(group="vision", gpus=4, members=("ada",)), QuotaSet(group="speech", members=()))
    found = client.get("ada", "/v1/quotas").json()["quotas"]
    assert [(each["group"], each["members"]) for each in found if each["group"] != "ada"] == [
        ("vision", ["ada"])
    ]
    groups = {each["group"]: each["members"] for each in client.get("root", "/v1/quotas").json()["quotas"]}
    assert (groups["vision"], groups["speech"]) == (["ada"], [])


@pytest.mark.parametrize(
    ("group", "members"),
    [
        ("vision", ["a b"]),
        ("vision", [""]),
        ("vision", "ada"),
        ("vision", [1]),
        ("bob", ["ada"]),
        ("vision", ["a"] * 10_001),
    ],
)
def test_impossible_members_are_refused(client: Client, group: str, members: object) -> None:
    answer = client.ask("root", "PUT", f"/v1/quotas/{group}", json={"members": members})
    assert answer.status_code in (400, 422), answer.text
