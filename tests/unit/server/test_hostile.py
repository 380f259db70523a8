"""Requests that mean no good: each is refused with a ``Problem``, and nothing has changed afterwards."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from coadapt.model import JobQuarantined, RetryRequested
from coadapt.server import callers, services
from coadapt.server.callers import make_code
from coadapt.store.token_table import TokenStore
from coadapt.wire.agent import job_token
from coadapt.wire.api import Problem
from tests.unit.server.served import Client, Served, a_submission

JSON = {"Content-Type": "application/json"}
DEEP = b'{"spec": {"name": "c", "command": ["x"], "other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"

BODIES: dict[str, bytes] = {
    "empty": b"",
    "not-json": b"{",
    "not-utf8": b'{"spec": {"name": "\xff\xfe"}}',
    "list": b"[]",
    "null": b"null",
    "deep": DEEP,
    "deep-list": b"[" * 1_000_000,
    "deep-objects": b'{"spec":' * 100_000,
    "huge": b'{"spec": "' + b"x" * (1 << 20) + b'"}',
    "huge-number": b'{"spec": {"name": "c", "command": ["x"], "priority": ' + b"9" * 5000 + b"}}",
    "huge-float": b'{"spec": {"name": "c", "command": ["x"], "epochs": 1e999}}',
    "nan": b'{"spec": {"name": "c", "command": ["x"], "epochs": NaN}}',
    "lone-surrogate": b'{"spec": {"name": "c", "command": ["\\ud800"]}}',
    "nul": b'{"spec": {"name": "c", "command": ["a\\u0000b"]}}',
    "twice": b'{"spec": {"name": "c", "command": []}, "spec": {"name": "../c", "command": ["x"]}}',
    "zipped": gzip.compress(json.dumps(a_submission()).encode()),
    "wrong-type": b'{"spec": {"name": 7, "command": ["x"]}}',
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/tokens", "/v1/jobs/a-1/reports"])
def test_body_is_refused(served: Served, client: Client, path: str, name: str) -> None:
    before = served.digest()
    headers = JSON
    if path.endswith("reports"):
        headers = JSON | {"Authorization": f"Bearer {_token(served, 'a-1')}"}
    answer = client.ask("root", "POST", path, content=BODIES[name], headers=headers)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert served.digest() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "../../etc/passwd"},
        {"name": "a/b"},
        {"name": ".hidden"},
        {"name": "a\nb"},
        {"name": "x" * 200},
        {"name": ""},
        {"command": []},
        {"command": [""]},
        {"gpu_types": ["h100"]},
        {"after": ["b-2"]},
        {"after": ["nobody-1"]},
        {"envs": {"COADAPT_JOB_TOKEN": "x"}},
        {"envs": {"A=B": "x"}},
        {"code": "../../x"},
        {"code": "0" * 64},
        {"roles": []},
        {"roles": [{"min": 0}]},
        {"roles": [{"min": 2, "max": 1}]},
        {"roles": [{"min": 64, "max": 64}], "requested": 64},
        {"roles": [{"demand": {"gpus": -1}}]},
        {"roles": [{"name": "boss"}]},
        {"requested": 7},
        {"batch": {"initial": 0, "max": 1, "per_gpu_min": 1, "per_gpu_max": 1}},
        {"batch": {"initial": 8, "max": 64, "per_gpu_min": 128, "per_gpu_max": 128}},
        {"deadline_s": -5},
        {"time_limit_s": 0},
        {"epochs": -1},
        {"retries": 1000000},
        {"target": "val_acc"},
        {"metrics": {"loss": "(a+)+"}},
        {"metrics": {"loss": "no group"}},
        {"recorded": {"start_s": 1}},
        {"sync": "ps"},
        {"version": 99},
        {"comand": ["x"]},
    ],
    ids=str,
)
def test_specification_is_refused_in_one_line(served: Served, client: Client, fields: dict[str, Any]) -> None:
    before = served.digest()
    answer = client.post("ada", "/v1/jobs", a_submission(**fields))
    assert answer.status_code == 422, answer.text
    assert 10 < len(answer.json()["error"]) < 400
    assert "\n" not in answer.json()["error"]
    assert served.digest() == before


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/..%2f..%2fserve.json",
        "/v1/jobs/../../serve.json",
        "/v1/jobs/%2e%2e/logs",
        "/v1/jobs/a-1%2f..%2f..%2f..%2ftoken/logs",
        "/v1/jobs/a-1%00/logs",
        "/v1/jobs/a-1/logs?stream=../../../token",
        "/v1/jobs/a-1/logs?rank=../0",
        "/v1/jobs/a-1/logs?rank=-1",
        "/v1/jobs/a-1/logs?attempt=99",
        "/v1/jobs/a-1/logs?offset=99999999999999999999",
        "/v1/jobs/a-1/checkpoints?name=../x",
        "/v1/jobs/%0d%0aSet-Cookie:x",
        "/v1/nodes/..%2f..",
        "/v1/events?after=-2",
        "/v1/events?limit=0",
        "/v1/events?limit=1000000",
        "/v1/events?limit=1&limit=2",
        "/v1/jobs?limit=ten",
        "/v1/jobs?colour=red",
        "/v1/jobs/a-1/why?at=never",
        "/v1/jobs/a-1/why?at=-1",
        "/serve.json",
        "/../serve.json",
        "//etc/passwd",
    ],
)
def test_path_leads_nowhere(served: Served, client: Client, path: str) -> None:
    before = served.digest()
    answer = client.get("root", path)
    assert 400 <= answer.status_code < 500, answer.text
    assert set(answer.json()) == set(Problem.__struct_fields__)
    assert "set-cookie" not in answer.headers
    assert served.digest() == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "token-of-root"},
        {"Authorization": "Basic cm9vdA=="},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer token-of-root token-of-ada"},
        {"Authorization": "Bearer " + "x" * 5000},
        {"Authorization": "Bearer token-of-old"},
        {"Authorization": "Bearer token-of-roo"},
        {"Authorization": "Bearer token-of-root' OR '1'='1"},
        {"Cookie": "token=token-of-root"},
        {"X-Forwarded-User": "root"},
    ],
    ids=str,
)
def test_caller_is_a_stranger(served: Served, client: Client, headers: dict[str, str]) -> None:
    before = served.digest()
    answer = client.http.post("/v1/jobs", json=a_submission(), headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert served.digest() == before


def test_token_in_the_query_is_not_taken(client: Client) -> None:
    assert client.http.get("/v1/me?token=token-of-root").status_code == 401


@pytest.mark.parametrize("key", ["", "x" * 129, "a b", "a/b", "ä".encode("latin-1")], ids=str)
def test_bad_idempotency_key_is_refused(served: Served, client: Client, key: Any) -> None:
    answer = client.post("ada", "/v1/jobs", a_submission(), headers={"Idempotency-Key": key})
    assert answer.status_code == 400
    assert served.inbox() == []


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost:1@evil.example"])
def test_host_that_is_not_ours_is_refused_also_with_a_good_token(client: Client, host: str) -> None:
    assert client.get("root", "/v1/jobs", headers={"Host": host}).status_code == 421
    assert client.get("root", "/v1/jobs", headers={"Host": "localhost:1234"}).status_code == 200


def test_answers_forbid_what_browsers_could_do_with_them(client: Client) -> None:
    answer = client.get("root", "/v1/jobs", headers={"Origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert client.ask("root", "OPTIONS", "/v1/jobs").status_code == 405


def test_form_of_another_site_is_refused(served: Served, client: Client) -> None:
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = client.ask(
            "root", "POST", "/v1/jobs", content=json.dumps(a_submission()), headers={"Content-Type": media}
        )
        assert answer.status_code == 415
    assert served.inbox() == []


def test_too_many_requests_are_slowed_down(served: Served) -> None:
    served.options = type(served.options)(requests_per_s=0.001, burst=3)
    with served.client() as client:
        statuses = [client.get("ada", "/v1/me").status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert client.get("bob", "/v1/me").status_code == 200
        assert float(client.get("ada", "/v1/me").headers["retry-after"]) > 0


def test_guessing_tokens_is_slowed_down(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "STRANGERS", (0.0001, 3.0))
    with served.client() as client:
        guesses = [client.http.get("/v1/me", headers={"Authorization": f"Bearer {n}"}) for n in range(5)]
        assert [answer.status_code for answer in guesses] == [401, 401, 401, 429, 429]
        assert client.get("root", "/v1/me").status_code == 200


REPORTS: list[dict[str, Any]] = [
    {"attempt": 2},
    {"attempt": 0},
    {"attempt": -1},
    {"attempt": 1, "job": "b-2"},
    {"attempt": 1, "measurements": [{"config": {"nodes": 1, "replicas": 0, "atomic_batch": 1}}]},
    {"attempt": 1, "measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 1}, "count": -1}]},
    {
        "attempt": 1,
        "measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 1}, "step_s": -1}],
    },
    {
        "attempt": 1,
        "measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 1}, "step_s": 1e300}],
    },
    {"attempt": 1, "measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 10**30}}]},
    {"attempt": 1, "measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 1}, "work": -1}]},
    {
        "attempt": 1,
        "measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 1}, "grad_sqr": 1.0}],
    },
    {
        "attempt": 1,
        "measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 1}, "metrics": {"a\nb": 1}}],
    },
    # stopped the controller for ever, each in its own way
    {
        "attempt": 1,
        "measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 1}, "step_s": 1e-300}],
    },
    {
        "attempt": 1,
        "measurements": [
            {"config": {"nodes": 1, "replicas": 1 << 31, "atomic_batch": 1 << 31, "accumulation": 1 << 31}}
        ],
    },
    # more than the job's data, and more than the cluster has
    {"attempt": 1, "measurements": [{"config": {"nodes": 1, "replicas": 1, "atomic_batch": 3201}}]},
    {"attempt": 1, "measurements": [{"config": {"nodes": 1, "replicas": 5, "atomic_batch": 1}}]},
]


@pytest.mark.parametrize("report", REPORTS, ids=str)
def test_report_that_cannot_be_is_refused(served: Served, client: Client, report: dict[str, Any]) -> None:
    before = served.digest()
    header = {"Authorization": f"Bearer {_token(served, 'a-1')}"}
    answer = client.http.post("/v1/jobs/a-1/reports", json=report, headers=header)
    assert answer.status_code in (409, 422), answer.text
    assert served.digest() == before


def _token(served: Served, job: str) -> str:
    return job_token(bytes.fromhex((served.home.path / "job_key").read_text()), job)


def test_unknown_methods_share_one_label_and_are_limited(served: Served, client: Client) -> None:
    client.get("root", "/metrics")
    answers = [client.ask("", f"M{number}", "/v1/jobs").status_code for number in range(300)]
    assert set(answers) == {405, 429}
    page = client.get("", "/metrics").text
    assert 'method="M' not in page
    assert 'method="other"' in page
    # who has a token is not affected, nor is signing in
    assert client.get("root", "/v1/me").status_code == 200
    assert client.get("", "/v1/me").status_code == 401


def test_open_routes_are_limited_by_address(served: Served, client: Client) -> None:
    answers = {client.get("", "/metrics").status_code for _ in range(250)}
    assert answers == {200, 429}
    assert client.get("", "/v1/me").status_code == 401
    # one check does not keep another from being answered, nor monitoring that shows a token
    assert client.get("", "/healthz").status_code == 200
    assert client.get("eve", "/metrics").status_code == 200


def test_flood_from_an_address_keeps_nobody_on_it_from_signing_in(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "STRANGERS", (0.0001, 3.0))
    with served.client() as client:

        def sign_in(token: str) -> int:
            status: int = client.http.post(
                "/sign-in", data={"token": token}, follow_redirects=False
            ).status_code
            return status

        assert [sign_in("guess") for _ in range(5)] == [401, 401, 401, 429, 429]
        assert client.http.get("/sign-in?once=" + "x" * 43).status_code == 429
        assert client.get("guess", "/v1/me").status_code == 429
        # the form and the way to it stay open, and whoever has a token or a link comes in
        assert client.http.get("/", follow_redirects=False).status_code == 303
        assert client.http.get("/sign-in").status_code == 200
        assert sign_in("token-of-root") == 303
        assert client.http.get("/").status_code == 200
        served.home.token.write_text("token-of-root")
        code = make_code(served.home, now=served.now)
        assert client.http.get(f"/sign-in?once={code}", follow_redirects=False).status_code == 303
        assert client.get("root", "/v1/me").status_code == 200


def test_guesses_cost_no_queries_of_the_store(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    monkeypatch.setattr(
        TokenStore, "by_hash", lambda self, read=TokenStore.by_hash: (counted.append(1), read(self))[1]
    )
    monkeypatch.setattr(callers, "_KEPT_S", 3600.0)
    client.get("root", "/v1/me")
    for number in range(100):
        assert client.get(f"guess-{number}", "/v1/me").status_code == 401
    assert len(counted) <= 1


def test_quarantined_job_is_shown_and_released(served: Served, client: Client) -> None:
    assert client.post("bob", "/v1/jobs/b-2/retry").status_code == 409
    served.append(JobQuarantined(job="b-2", reason="decisions with it do not end"))
    (line,) = client.get("bob", "/v1/jobs").json()["jobs"]
    assert line["state"] == "QUARANTINED"
    assert "decisions with it do not end" in line["why"]
    assert "coadapt_jobs_quarantined 1.0" in client.get("", "/metrics").text
    assert client.post("bob", "/v1/jobs/b-2/retry").status_code == 202
    assert served.inbox() == [RetryRequested(job="b-2", by="bob")]
