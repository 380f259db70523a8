"""The API while its PostgreSQL is frozen, killed and back again: a real server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from coadapt.errors import StoreError
from coadapt.server import services
from coadapt.store import open_store
from coadapt.store._sql import Row
from coadapt.store.postgres import PostgresDatabase
from tests import postgres_server
from tests.unit.server.served import Client, Served, a_submission
from tests.waiting import until

pytestmark = pytest.mark.skipif(bool(postgres_server.why_not()), reason=postgres_server.why_not())


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_server.server() as url:
        yield url


def signal_all(url: str, number: int) -> None:
    """Sends a signal to the server and to the processes of its connections."""
    directory = Path(parse_qs(urlsplit(url).query)["host"][0])
    first = int((directory / "data" / "postmaster.pid").read_text().split()[0])
    found = [first]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == first:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    for pid in found:
        os.kill(pid, number)


def is_discreet(text: str) -> bool:
    return not any(word in text for word in ("postgres", "tester", "coadapt-pg", "psycopg", "server"))


def queries_in_event_loops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which every query is added from now on that is made in the thread of an event loop."""
    found: list[str] = []
    rows = PostgresDatabase.rows

    def watched(self: PostgresDatabase, sql: str, *values: object) -> list[Row]:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            found.append(sql)
        return rows(self, sql, *values)

    monkeypatch.setattr(PostgresDatabase, "rows", watched)
    return found


def check_away(client: Client) -> None:
    """What everybody gets while the store is away."""
    sent = client.post("ada", "/v1/jobs", a_submission())
    assert sent.status_code == 503
    assert int(sent.headers["retry-after"]) >= 1
    listed = client.get("ada", "/v1/jobs")
    assert listed.status_code == 200
    assert {line["name"] for line in listed.json()["jobs"]} == {"a", "first"}
    for path in ("/v1/jobs/a-1", "/v1/jobs/a-1/why", "/v1/cluster", "/v1/nodes", "/v1/quotas", "/metrics"):
        assert client.get("ada", path).status_code == 200, path
    until(
        lambda: "does not answer" in client.get("", "/readyz").text, "nobody noticed that the store is away"
    )
    ready = client.get("", "/readyz")
    assert ready.status_code == 503
    assert "retry-after" in ready.headers
    stranger = client.get("nobody-known", "/v1/jobs")
    assert stranger.status_code == 503
    for answer in (sent, ready, stranger):
        assert is_discreet(answer.text), answer.text
    assert client.get("", "/healthz").status_code == 200


def test_api_goes_on_while_postgres_is_frozen_or_gone(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_ANSWER_S", 1.0)
    served = Served(tmp_path, store=url)
    with served.client() as client:
        assert client.post("ada", "/v1/jobs", a_submission(name="first")).status_code == 201
        assert client.get("ada", "/v1/me").status_code == 200
        client.http.post("/sign-in", data={"token": "token-of-ada"})
        signal_all(url, signal.SIGSTOP)
        in_loop = queries_in_event_loops(monkeypatch)
        try:
            check_away(client)
            for _ in range(20):
                assert client.get("ada", "/v1/me").status_code == 200
                for page in ("/", "/jobs", "/jobs/a-1", "/predictions"):
                    assert client.http.get(page).status_code == 200, page
            # an event loop that waits for the store answers nobody meanwhile
            assert in_loop == []
        finally:
            signal_all(url, signal.SIGCONT)
        until(
            lambda: client.post("ada", "/v1/jobs", a_submission(name="second")).status_code == 201,
            "the store is back and is not asked",
        )
        names = {line["name"] for line in client.get("ada", "/v1/jobs").json()["jobs"]}
        assert {"a", "first", "second"} <= names
        signal_all(url, signal.SIGKILL)
        sent = client.post("ada", "/v1/jobs", a_submission())
        assert sent.status_code == 503
        assert is_discreet(sent.text)
        assert client.get("ada", "/v1/jobs").status_code == 200
    served.close()


def test_frozen_server_fails_within_the_limit_and_is_left_alone_for_a_while(url: str) -> None:
    log = open_store(url, answer_s=1.0).log()
    assert log.last() == -1
    signal_all(url, signal.SIGSTOP)
    try:
        with pytest.raises(StoreError, match="no answer within 1 s"):
            log.last()
        with pytest.raises(StoreError, match="did not answer; it is asked again in"):
            log.last()
    finally:
        signal_all(url, signal.SIGCONT)

    def answers() -> bool:
        try:
            return log.last() == -1
        except StoreError:
            return False

    until(answers, "the store is back and is not asked")
    log.close()
