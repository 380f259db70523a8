"""The audit log: every change names who made it, together with the change or not at all; refusals are counted, not collected."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec
import pytest

from coadapt.errors import StoreError
from coadapt.executors import Declared
from coadapt.model import NodeDrained, QuotaSet, SpecChanged
from coadapt.server.audit_trail import AuditTrail
from coadapt.server.routes import agents
from coadapt.store import inbox as inbox_module
from coadapt.store import token_table
from coadapt.store.audit_log import Attribution, AuditLog
from tests.unit.server.served import Client, Served, a_submission
from tests.waiting import until

ADDRESS = "testclient"


def test_every_kind_of_change_is_attributed(served: Served, client: Client) -> None:
    client.post("ada", "/v1/jobs", a_submission(priority=2))
    client.post("oz", "/v1/jobs/a-1/cancel")
    client.ask("ada", "PATCH", "/v1/jobs/a-1", json={"priority": 3, "time_limit_s": 3600})
    client.post("oz", "/v1/nodes/n0/drain")
    client.ask("root", "PUT", "/v1/quotas/bob", json={"gpus": 8})
    client.post("root", "/v1/tokens", {"name": "new", "role": "viewer", "expires_in_s": 86400})
    client.ask("root", "DELETE", "/v1/tokens/new")
    found = [(e.actor, e.role, e.via, e.address, e.action, e.subject, e.detail) for e in served.audit()]
    assert found == [
        ("ada", "user", "token", ADDRESS, "submit", "c-1", "1 GPU, priority 2"),
        ("oz", "operator", "token", ADDRESS, "cancel", "a-1", ""),
        ("ada", "user", "token", ADDRESS, "update", "a-1", "priority 0 -> 3, time limit none -> 1h"),
        ("oz", "operator", "token", ADDRESS, "drain", "n0", ""),
        ("root", "admin", "token", ADDRESS, "quota", "bob", "no limit -> 8 GPUs"),
        ("root", "admin", "token", ADDRESS, "token-create", "new", "role viewer, expires in 1d"),
        ("root", "admin", "token", ADDRESS, "token-revoke", "new", ""),
    ]
    actors = {type(event): getattr(event, "by", None) for event in served.inbox()}
    assert actors[SpecChanged] == "ada"
    assert actors[NodeDrained] == "oz"
    assert actors[QuotaSet] == "root"


def test_events_name_who_asked(served: Served, client: Client) -> None:
    client.post("oz", "/v1/jobs/a-1/cancel")
    served.append(*served.inbox())
    texts = [event["text"] for event in client.get("ada", "/v1/events?job=a-1").json()["events"]]
    assert "Cancellation requested by oz." in texts


def test_change_and_its_row_are_written_together_or_not_at_all(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = served.digest()

    def fails(*given: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(inbox_module, "record", fails)
    monkeypatch.setattr(token_table, "record", fails)
    assert client.post("ada", "/v1/jobs", a_submission()).status_code == 503
    assert client.post("root", "/v1/tokens", {"name": "new"}).status_code == 503
    assert client.ask("root", "DELETE", "/v1/tokens/bob").status_code == 503
    assert served.digest() == before
    assert served.audit() == []


def test_repeated_and_refused_requests_leave_no_row_of_a_change(served: Served, client: Client) -> None:
    for _ in range(3):
        client.post("ada", "/v1/jobs", a_submission(), headers={"Idempotency-Key": "k"})
    client.post("eve", "/v1/jobs/a-1/cancel")
    client.post("bob", "/v1/jobs/a-1/cancel")
    client.post("ada", "/v1/jobs", a_submission(name="../c"))
    assert [entry.action for entry in served.audit()] == ["submit"]


def test_filters_and_pages(client: Client, served: Served) -> None:
    for number in range(5):
        client.post("ada" if number % 2 else "bob", "/v1/jobs", a_submission(name=f"n{number}"))
    first = client.get("oz", "/v1/audit?limit=2").json()
    assert [entry["subject"] for entry in first["entries"]] == ["n4-5", "n3-4"]
    second = client.get("oz", f"/v1/audit?limit=2&before={first['next']}").json()
    assert [entry["subject"] for entry in second["entries"]] == ["n2-3", "n1-2"]
    of_ada = client.get("root", "/v1/audit?user=ada").json()
    assert {entry["user"] for entry in of_ada["entries"]} == {"ada"}
    assert of_ada["next"] is None
    assert len(client.get("root", "/v1/audit?subject=n1-2").json()["entries"]) == 1
    at = first["entries"][0]["at"]
    assert client.get("root", f"/v1/audit?since={at + 3600}").json()["entries"] == []
    for wrong in (
        "since=yesterday",
        "since=nan",
        "since=-1",
        "limit=0",
        "before=x",
        "who=ada",
        "user=a&user=b",
    ):
        answer = client.get("root", f"/v1/audit?{wrong}")
        assert answer.status_code == 400 or (wrong.startswith("who") and answer.status_code == 422)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nobody_changes_the_audit_log(served: Served, client: Client, method: str) -> None:
    client.post("ada", "/v1/jobs", a_submission())
    before = served.audit()
    assert client.ask("root", method, "/v1/audit").status_code == 405
    assert client.ask("root", method, "/v1/audit/1").status_code == 404
    assert served.audit() == before


def test_sign_ins_and_refusals_are_recorded(served: Served, client: Client) -> None:
    client.http.post("/sign-in", data={"token": "token-of-oz"}, follow_redirects=False)
    for number in range(50):
        client.http.post("/sign-in", data={"token": f"guess-{number}"}, follow_redirects=False)
        client.get(f"guess-{number}", "/v1/me")
    until(lambda: len(served.audit()) == 2, "sign-in and refusal are not recorded")
    entered, refused = served.audit()
    assert (entered.actor, entered.role, entered.via, entered.action) == (
        "oz",
        "operator",
        "token",
        "sign-in",
    )
    assert (refused.actor, refused.address, refused.action) == ("", ADDRESS, "refused")
    assert "guess" not in refused.detail


def test_flood_of_refusals_from_many_addresses_writes_few_rows(served: Served) -> None:
    now = [0.0]
    trail = AuditTrail(served.store.audit, keep_s=None, clock=lambda: now[0])
    for number in range(10_000):
        trail.refused(f"10.0.{number // 256}.{number % 256}", "guess")
    now[0] = 61.0
    trail.refused("10.1.0.0", "guess")
    trail.close()
    found = served.audit(limit=1000)
    assert len(found) <= 103
    assert f"{10_000 - 100 - 1} more within 60 s" in {entry.detail for entry in found}


def test_old_rows_are_removed_and_others_kept(served: Served) -> None:
    with closing(served.store.audit()) as audit:
        audit.add((Attribution(actor="ada"), "submit", "x-1"))
        assert audit.prune(3600.0) == 0
        assert audit.prune(-1.0) == 1


def test_rows_wait_for_a_store_that_is_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coadapt.server.audit_trail._AGAIN_S", 0.01)
    tried = []

    def open_log() -> AuditLog:
        tried.append(1)
        if len(tried) < 3:
            raise StoreError("it is away")
        return served.store.audit()

    trail = AuditTrail(open_log, keep_s=None)
    trail.note(Attribution(actor="ada"), "sign-in")
    until(lambda: [entry.actor for entry in served.audit()] == ["ada"], "the row was not written")
    trail.close()


def test_values_from_outside_are_cut_and_cannot_break_a_row(served: Served) -> None:
    with closing(served.store.audit()) as audit:
        audit.add(
            (Attribution(actor="a\0\ud800" * 1000, detail="x" * 10_000), "submit", "'; DROP TABLE audit")
        )
        (entry,) = audit.read()
    assert len(entry.actor) <= 300
    assert len(entry.detail) == 300


def test_page_of_the_dashboard_is_for_operators(client: Client) -> None:
    client.post("ada", "/v1/jobs", a_submission(name="b-lt"))
    for who, status in (("oz", 200), ("root", 200), ("ada", 403), ("eve", 403)):
        client.http.cookies.clear()
        client.http.post("/sign-in", data={"token": f"token-of-{who}"})
        answer = client.http.get("/audit")
        assert answer.status_code == status
        assert ("b-lt-1" in answer.text) == (status == 200)
        assert ('href="/audit"' in client.http.get("/").text) == (status == 200)
    client.http.cookies.clear()
    client.http.post("/sign-in", data={"token": "token-of-oz"})
    assert "ada" in client.http.get("/audit?user=ada").text
    assert client.http.get("/audit?user=nobody").status_code == 200


@pytest.mark.parametrize(("error", "rows"), [("", [("root", "node-gone", "m1")]), ("not joined", [])])
def test_a_machine_declared_gone_is_attributed(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: str, rows: list[tuple[str, str, str]]
) -> None:
    async def answer(call: Any, message: bytes) -> bytes:
        return msgspec.json.encode(Declared(error=error))

    def note(self: AuditTrail, who: Attribution, action: str, subject: str = "") -> None:
        noted.append((who.actor, action, subject))

    noted: list[tuple[str, str, str]] = []
    monkeypatch.setattr(agents, "relay", answer)
    monkeypatch.setattr(AuditTrail, "note", note)
    client.post("root", "/v1/nodes/m1/gone")
    assert noted == rows
