"""The API as a process: where it listens, clients that are slow or talk nonsense, and its end."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coadapt.client import Client, UnreachableError
from tests.integration.server_process import running
from tests.unit.server.served import Served, a_submission
from tests.waiting import DEADLINE_S


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    house = Served(tmp_path, listen="127.0.0.1:0")
    yield house
    house.close()


@pytest.fixture(scope="module")
def one_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, int]]:
    """A process that all tests share that change nothing, and its port."""
    house = Served(tmp_path_factory.mktemp("one-api"), listen="127.0.0.1:0")
    with running(house.home.path) as (_, _, port):
        yield house, port
    house.close()


def _ask(port: int, method: str, path: str, body: Any = None, who: str = "ada") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    headers = {"Authorization": f"Bearer token-of-{who}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def _raw(port: int, data: bytes) -> bytes:
    """The whole answer, by its length: what is not closed at once is kept for the next request for more than a minute."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        connection.sendall(data)
        answer = b""
        while not _whole(answer) and (part := connection.recv(65536)):
            answer += part
        return answer


def _whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return bool(end) and length is not None and len(body) >= int(length[1])


def test_process_answers_and_ends_with_what_was_answered_kept(served: Served) -> None:
    with running(served.home.path) as (process, _, port):
        status, made = _ask(port, "POST", "/v1/jobs", a_submission())
        assert status == 201
        assert stat.S_IMODE((served.home.path / "job_key").stat().st_mode) == 0o600
        assert stat.S_IMODE(served.home.address.stat().st_mode) == 0o600
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) in (0, -signal.SIGTERM)
    assert [event.job for event in served.inbox()] == [made["job"]]  # type: ignore[union-attr]


def test_submission_that_was_answered_survives_a_kill(served: Served) -> None:
    with running(served.home.path) as (process, _, port):
        jobs = [_ask(port, "POST", "/v1/jobs", a_submission())[1]["job"] for _ in range(5)]
        process.kill()
        process.wait()
    assert [event.job for event in served.inbox()] == jobs  # type: ignore[union-attr]
    with running(served.home.path) as (_, _, port):
        assert [line["job"] for line in _ask(port, "GET", "/v1/jobs")[1]["jobs"]] == [*reversed(jobs), "a-1"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\x00\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000,
        b"GET /" + b"a" * 100_000,
        # answered long before it is all sent
        b"GET /" + b"a" * 2_000_000,
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    ],
    ids=range(11),
)
@pytest.mark.xdist_group("one API")
def test_nonsense_is_answered_with_a_problem_and_changes_nothing(
    one_api: tuple[Served, int], data: bytes
) -> None:
    served, port = one_api
    before = served.digest()
    answer = _raw(port, data)
    assert answer.startswith(b"HTTP/1.1 4") or answer.startswith(b"HTTP/1.1 501")
    assert b'{"error":' in answer
    assert served.digest() == before
    assert _ask(port, "GET", "/v1/me")[0] == 200


def test_slow_clients_are_let_go_and_keep_nobody_waiting(served: Served) -> None:
    with running(served.home.path) as (_, _, port):
        slow = [socket.create_connection(("127.0.0.1", port), DEADLINE_S) for _ in range(200)]
        for number, connection in enumerate(slow):
            connection.sendall(b"" if number % 2 else b"GET /healthz HTTP/1.1\r\nX-Never: en")
        assert _ask(port, "GET", "/v1/me")[0] == 200
        for connection in slow:
            assert connection.recv(100) == b""  # closed by the server
            connection.close()


def test_stream_tells_what_happens_and_goes_on_after_a_pause(served: Served) -> None:
    from coadapt.model import NodeDrained, NodeOpened

    with running(served.home.path) as (_, _, port):
        first = _Listener(port, {"Last-Event-ID": "5"})
        assert [first.event()["kind"] for _ in range(2)] == ["JobSubmitted", "DecisionMade"]
        first.close()
        listener = _Listener(port, {})
        served.append(NodeDrained(node="n0"))
        drained = listener.event()
        assert (drained["kind"], drained["seq"]) == ("NodeDrained", 8)
        listener.close()
        served.append(NodeOpened(node="n0"))
        again = _Listener(port, {"Last-Event-ID": "8"})
        assert again.event()["kind"] == "NodeOpened"
        again.close()


class _Listener:
    """Reads server-sent events."""

    def __init__(self, port: int, headers: dict[str, str], who: str = "root") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        self._connection.request(
            "GET", "/v1/stream", headers={"Authorization": f"Bearer token-of-{who}", **headers}
        )
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        assert self._answer.readline().startswith(b": listening")

    def event(self) -> dict[str, Any]:
        while True:
            line = self._answer.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line[6:])
                return found

    def close(self) -> None:
        self._connection.close()


def test_many_listeners_take_no_threads(served: Served) -> None:
    with running(served.home.path) as (process, _, port):
        listeners = [_Listener(port, {}) for _ in range(40)]
        threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
        assert threads < 20
        for listener in listeners:
            listener.close()


def _fails(served: Served) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "coadapt.server", str(served.home.path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    return line


def test_listening_to_the_network_without_tls_is_refused(tmp_path: Path) -> None:
    served = Served(tmp_path, listen="0.0.0.0:0")
    assert "TLS" in _fails(served)
    served.close()


def test_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        served = Served(tmp_path, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        assert "127.0.0.1:0" in _fails(served)
        served.close()


def test_tls_by_files(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl is not installed")
    served = Served(tmp_path, listen="0.0.0.0:0", tls_cert=str(cert), tls_key=str(key))
    with running(served.home.path) as (_, _, port):
        context = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=DEADLINE_S)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
        # a client that does not know the issuer is told what to do; the wrong host name is another matter
        with Client(f"https://127.0.0.1:{port}") as client, pytest.raises(UnreachableError) as unknown:
            client.me()
        assert "is not trusted: self-signed certificate; set COADAPT_CA_FILE" in str(unknown.value)
        other_name = Client(f"https://127.0.0.2:{port}", ca_file=str(cert))
        with (
            other_name,
            pytest.raises(UnreachableError, match="is not trusted: IP address mismatch") as mismatch,
        ):
            other_name.me()
        assert "COADAPT_CA_FILE" not in str(mismatch.value)
        # without TLS nothing is answered
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with suppress(ConnectionResetError):
                assert not plain.recv(100).startswith(b"HTTP/1.1 200")
    served.close()


def test_submissions_of_many_at_once_are_all_kept_once(served: Served) -> None:
    with running(served.home.path) as (_, _, port):
        jobs: list[str] = []

        def submit(who: str) -> None:
            jobs.extend(_ask(port, "POST", "/v1/jobs", a_submission(), who)[1]["job"] for _ in range(20))

        threads = [threading.Thread(target=submit, args=(who,)) for who in ("ada", "bob", "root") * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(jobs) == sorted(event.job for event in served.inbox())  # type: ignore[union-attr]
    assert len(set(jobs)) == 120
