"""Every route for every role: who may, who may not, and that nothing changes where somebody may not."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coadapt.server.app import all_routes
from coadapt.server.roles import PERMITTED, ROLES
from coadapt.server.routes import agents, metrics
from coadapt.server.routes import events as stream
from coadapt.store.token_table import Token, token_hash
from coadapt.wire.agent import job_token
from coadapt.wire.api import Problem
from tests.unit.server.served import PEOPLE, Client, Served, a_submission

SHA = "0" * 64
#: Requests that change nothing, or only what a job reports of itself.
NO_CHANGES = ("/v1/preview", "/v1/jobs/a-1/reports")
#: Method, path, body; what root (admin), oz (operator), ada (whose job it is), bob (another user), eve (viewer) and a stranger
#: are answered.
CASES: list[tuple[str, str, Any, tuple[int, int, int, int, int, int]]] = [
    ("GET", "/v1/jobs", None, (200, 200, 200, 200, 200, 401)),
    ("GET", "/v1/jobs/a-1", None, (200, 200, 200, 404, 200, 401)),
    ("GET", "/v1/jobs/a-1/why", None, (200, 200, 200, 404, 200, 401)),
    ("GET", "/v1/jobs/a-1/course", None, (200, 200, 200, 404, 200, 401)),
    ("GET", "/v1/jobs/a-1/logs", None, (200, 200, 200, 404, 200, 401)),
    ("GET", "/v1/jobs/a-1/checkpoints", None, (200, 200, 200, 404, 200, 401)),
    ("GET", "/v1/events", None, (200, 200, 200, 200, 200, 401)),
    ("GET", "/v1/events?job=a-1", None, (200, 200, 200, 404, 200, 401)),
    ("GET", "/v1/nodes", None, (200, 200, 200, 200, 200, 401)),
    # for machines that joined, and no person; without them there is no hub that could declare a node gone
    ("POST", "/v1/agents/exchange", {}, (403, 403, 403, 403, 403, 401)),
    ("POST", "/v1/agents/join", {}, (403, 403, 403, 403, 403, 401)),
    ("POST", "/v1/agents/leave", {}, (403, 403, 403, 403, 403, 401)),
    ("GET", f"/v1/code/{SHA}", None, (403, 403, 403, 403, 403, 401)),
    ("POST", "/v1/nodes/n0/gone", None, (409, 403, 403, 403, 403, 401)),
    ("GET", "/v1/quotas", None, (200, 200, 200, 200, 200, 401)),
    ("GET", "/v1/cluster", None, (200, 200, 200, 200, 200, 401)),
    ("GET", "/v1/predictions", None, (200, 200, 200, 200, 200, 401)),
    ("GET", "/v1/eta", None, (200, 200, 200, 200, 200, 401)),
    ("POST", "/v1/preview", a_submission(duration_s=60.0), (200, 200, 200, 200, 403, 401)),
    ("GET", "/v1/me", None, (200, 200, 200, 200, 200, 401)),
    ("GET", "/v1/tokens", None, (200, 403, 403, 403, 403, 401)),
    ("GET", "/v1/audit", None, (200, 200, 403, 403, 403, 401)),
    ("GET", "/healthz", None, (200, 200, 200, 200, 200, 200)),
    ("GET", "/readyz", None, (503, 503, 503, 503, 503, 503)),
    ("GET", "/metrics", None, (200, 200, 200, 200, 200, 200)),
    ("POST", "/v1/jobs", a_submission(), (201, 201, 201, 201, 403, 401)),
    ("POST", "/v1/jobs/a-1/cancel", None, (202, 202, 202, 404, 403, 401)),
    ("POST", "/v1/jobs/a-1/pause", None, (202, 202, 202, 404, 403, 401)),
    ("POST", "/v1/jobs/a-1/resume", None, (202, 202, 202, 404, 403, 401)),
    ("POST", "/v1/jobs/a-1/retry", None, (409, 409, 409, 404, 403, 401)),
    ("PATCH", "/v1/jobs/a-1", {"priority": 2}, (202, 202, 202, 404, 403, 401)),
    ("POST", "/v1/jobs/a-1/reports", {"attempt": 1}, (401, 401, 401, 401, 401, 401)),
    ("POST", "/v1/nodes/n0/drain", None, (202, 202, 403, 403, 403, 401)),
    ("POST", "/v1/nodes/n0/open", None, (202, 202, 403, 403, 403, 401)),
    ("PUT", "/v1/quotas/ada", {"gpus": 2}, (202, 403, 403, 403, 403, 401)),
    ("POST", "/v1/tokens", {"name": "new"}, (201, 403, 403, 403, 403, 401)),
    ("DELETE", "/v1/tokens/bob", None, (200, 403, 403, 403, 403, 401)),
    ("PUT", f"/v1/code/{SHA}", None, (415, 415, 415, 415, 403, 401)),
    ("GET", "/v1/stream?after=x", None, (400, 400, 400, 400, 400, 401)),
]


@pytest.mark.parametrize(("method", "path", "body", "expected"), CASES, ids=lambda value: str(value)[:40])
def test_route_answers_each_role_as_it_may(
    served: Served, client: Client, method: str, path: str, body: Any, expected: tuple[int, ...]
) -> None:
    for who, status in zip(
        ("stranger", "old", "eve", "bob", "ada", "oz", "root"),
        (*expected[5:] * 2, *expected[4::-1]),
        strict=True,
    ):
        before = served.digest()
        answer = client.ask(who, method, path, **({} if body is None else {"json": body}))
        assert answer.status_code == status, (who, answer.text)
        if status >= 400:
            assert set(answer.json()) == set(Problem.__struct_fields__)
            assert served.digest() == before
        if status < 300 and method != "GET" and path not in NO_CHANGES:
            assert (newest := served.audit()[-1]).actor == who, newest
            assert newest.role == PEOPLE[who]
            assert newest.address == "testclient"


def test_every_route_is_in_the_table() -> None:
    tested = {(method, path.partition("?")[0]) for method, path, *_ in CASES}
    for route in all_routes(stream.Streams(), metrics.Metrics(lambda: None)):  # type: ignore[arg-type, return-value]
        path = route.path
        for name, value in {"job": "a-1", "node": "n0", "group": "ada", "name": "bob", "sha256": SHA}.items():
            path = path.replace(f"{{{name}}}", value)
        assert (route.method, path) in tested


def test_table_in_the_documents_is_the_one_that_is_enforced() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    rows = []
    for route in all_routes(stream.Streams(), metrics.Metrics(lambda: None)):  # type: ignore[arg-type, return-value]
        if route.who in ("open", "job"):
            continue
        marks = " | ".join("yes" if role in PERMITTED[route.who] else "-" for role in ROLES)
        rows.append(f"| `{route.method} {route.path}` | {marks} |")
    missing = [row for row in rows if row not in page]
    assert not missing, "add to docs/security.md:\n" + "\n".join(missing)
    written = re.findall(r"^\| `[A-Z]+ /v1/.*$", page, re.MULTILINE)
    assert set(written) == set(rows)


def test_token_of_a_job_reports_for_that_job_and_opens_nothing_else(served: Served, client: Client) -> None:
    key = bytes.fromhex((served.home.path / "job_key").read_text())
    token = {"Authorization": f"Bearer {job_token(key, 'a-1')}"}
    body = {"attempt": 1, "number": 1}
    assert client.http.post("/v1/jobs/a-1/reports", json=body, headers=token).status_code == 202
    before = served.digest()
    assert client.http.post("/v1/jobs/b-2/reports", json=body, headers=token).status_code == 401
    for method, path, payload, _ in CASES:
        if path not in ("/healthz", "/readyz", "/metrics", "/v1/jobs/a-1/reports"):
            assert client.http.request(method, path, json=payload, headers=token).status_code == 401
    assert served.digest() == before


def test_user_sees_others_on_nodes_without_their_names(client: Client) -> None:
    assert client.get("bob", "/v1/nodes").json()["nodes"][0]["jobs"] == {"(others)": 4}
    assert client.get("ada", "/v1/nodes").json()["nodes"][0]["jobs"] == {"a-1": 4}
    assert "a-1" not in client.get("bob", "/v1/cluster").text


def test_user_sees_events_of_own_jobs_and_nodes_only(client: Client) -> None:
    events = client.get("bob", "/v1/events").json()["events"]
    assert [event["kind"] for event in events] == [
        "NodeJoined",
        "DecisionMade",
        "JobSubmitted",
        "DecisionMade",
    ]
    assert "a-1" not in client.get("bob", "/v1/events").text
    assert "a-1" in client.get("eve", "/v1/events").text


def test_revoked_token_is_void_at_once(client: Client) -> None:
    assert client.get("bob", "/v1/me").json() == {"name": "bob", "role": "user"}
    assert client.ask("root", "DELETE", "/v1/tokens/bob").status_code == 200
    assert client.get("bob", "/v1/me").status_code == 401


def test_made_token_opens_and_is_kept_as_hash_only(served: Served, client: Client) -> None:
    made = client.post("root", "/v1/tokens", {"name": "new", "role": "viewer", "expires_in_s": 60.0}).json()
    header = {"Authorization": f"Bearer {made['token']}"}
    assert client.http.get("/v1/me", headers=header).json() == {"name": "new", "role": "viewer"}
    served.now += 61
    assert client.http.get("/v1/me", headers=header).status_code == 401
    for path in served.home.path.rglob("*"):
        assert not path.is_file() or made["token"].encode() not in path.read_bytes()


def test_administrator_cannot_remove_the_own_token(client: Client) -> None:
    assert client.ask("root", "DELETE", "/v1/tokens/root").status_code == 409
    assert client.post("root", "/v1/tokens", {"name": "ada"}).status_code == 409


def test_token_of_a_machine_is_for_the_nodes_that_it_names(client: Client) -> None:
    for name, nodes in (("any", []), ("rack", ["gpu-*", "r1", "gpu-*"])):
        body = {"name": name, "role": "node", "nodes": nodes}
        assert client.post("root", "/v1/tokens", body).status_code == 201
    found = {each["name"]: each["nodes"] for each in client.get("root", "/v1/tokens").json()["tokens"]}
    assert (found["any"], found["rack"], found["ada"]) == ([], ["gpu-*", "r1"], None)


@pytest.mark.parametrize(
    "body",
    [
        {"role": "user", "nodes": ["a"]},
        {"role": "node", "nodes": ["a b"]},
        {"role": "node", "nodes": [""]},
        {"role": "node", "nodes": ["x[a]"]},
        {"role": "node", "nodes": "a"},
        {"role": "node", "nodes": ["a"] * 101},
    ],
)
def test_token_for_impossible_nodes_is_refused(client: Client, body: dict[str, object]) -> None:
    assert client.post("root", "/v1/tokens", {"name": "new", **body}).status_code in (400, 422)


def test_request_of_an_agent_names_its_token_whatever_it_says(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed: list[dict[str, object]] = []

    async def relay(call: object, message: bytes) -> bytes:
        relayed.append(msgspec.json.decode(message))
        return b"{}\n"

    monkeypatch.setattr(agents, "relay", relay)
    with closing(served.store.tokens()) as tokens:
        tokens.add(Token(name="m1", role="node", made_at=0.0), token_hash("token-of-m1"))
    for tag in ("join", "exchange", "leave"):
        body = {"type": tag.capitalize(), "session": "s", "by": "root"}
        assert client.post("m1", f"/v1/agents/{tag}", body).status_code == 200
    assert [each["by"] for each in relayed] == ["m1"] * 3
