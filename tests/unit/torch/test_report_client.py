"""Reports never stop a step: not an absent controller, not one that answers garbage."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.errors import InputError
from coadapt.model import (
    Configuration,
    Measurement,
)
from coadapt.torch.elastic.process_group import (
    Place,
    here,
)
from coadapt.torch.training import report_client
from coadapt.torch.training.report_client import Reporter
from coadapt.wire.agent import (
    Report,
    decode,
    encode,
    from_line,
    to_line,
)
from tests.waiting import DEADLINE_S, until

MEASURED = (Measurement(config=Configuration(nodes=1, replicas=2, atomic_batch=8), count=3, step_s=0.1),)
PLACE = Place(job="a job", attempt=2)
#: The machine may stand still for minutes.


class Controller:
    """Answers every request with the same bytes, and remembers what came."""

    def __init__(self, answer: bytes) -> None:
        self._answer, self.received = answer, []  # type: tuple[bytes, list[bytes]]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.received.append(_request(connection))
                connection.sendall(self._answer)

    def close(self) -> None:
        self._listener.close()


def _request(connection: socket.socket) -> bytes:
    """Head and body."""
    found = b""
    while (more := connection.recv(1 << 16)) != b"":
        found += more
        head, end, body = found.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head, re.IGNORECASE)
        if end and len(body) >= (int(length[1]) if length else 0):
            break
    return found


@pytest.fixture
def controllers() -> Iterator[list[Controller]]:
    made: list[Controller] = []
    yield made
    for each in made:
        each.close()


def test_reports_are_posted_with_the_token(
    controllers: list[Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    controllers.append(Controller(b"HTTP/1.1 204 No Content\r\n\r\n"))
    monkeypatch.setenv("COADAPT_URL", controllers[0].url)
    monkeypatch.setenv("COADAPT_JOB_TOKEN", "secret")
    reporter = Reporter(PLACE)
    reporter.put(MEASURED, ("batch 32",))
    reporter.flush(DEADLINE_S)
    head, _, body = controllers[0].received[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/jobs/a%20job/reports HTTP/1.1"
    assert b"Authorization: Bearer secret" in lines
    assert b"Content-Type: application/json" in lines
    assert decode(body) == Report(
        job="a job", attempt=2, number=1, measurements=MEASURED, decisions=("batch 32",)
    )


@pytest.mark.parametrize(
    "answer", [b"garbage\r\n\r\n", b"", b"HTTP/1.1 500 No\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"]
)
def test_garbage_is_no_answer_and_the_report_is_kept(
    answer: bytes, controllers: list[Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    controllers.append(Controller(answer))
    monkeypatch.setenv("COADAPT_URL", controllers[0].url)
    monkeypatch.setattr(report_client, "_FIRST_S", 0.01)
    reporter = Reporter(PLACE)
    reporter.put(MEASURED)
    until(lambda: len(controllers[0].received) >= 2)
    assert not reporter._idle.is_set()


@pytest.mark.parametrize("status", [400, 409, 422])
def test_what_is_refused_for_good_is_said_and_dropped(
    status: int,
    controllers: list[Controller],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    controllers.append(Controller(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode()))
    monkeypatch.setenv("COADAPT_URL", controllers[0].url + "/")
    reporter = Reporter(PLACE)
    reporter.put(MEASURED)
    reporter.put(MEASURED)
    reporter.flush(DEADLINE_S)
    assert len(controllers[0].received) == 2
    assert f"the controller rejected report 2: {status}" in caplog.text


def test_a_refusal_is_said_in_the_controllers_words(
    controllers: list[Controller], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"error": "step_s is -1; it must be between 0 and 1e+07", "retry_after_s": 0}'
    head = f"HTTP/1.1 422 No\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    controllers.append(Controller(head + body))
    monkeypatch.setenv("COADAPT_URL", controllers[0].url)
    reporter = Reporter(PLACE)
    reporter.put(MEASURED)
    reporter.flush(DEADLINE_S)
    assert "rejected report 1: 422 step_s is -1; it must be between 0 and 1e+07" in caplog.text


def test_a_last_chance_does_not_wait_for_the_next_try(
    controllers: list[Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    controllers.append(Controller(b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n"))
    monkeypatch.setenv("COADAPT_URL", controllers[0].url)
    monkeypatch.setattr(report_client, "_FIRST_S", 3600.0)
    reporter = Reporter(PLACE)
    reporter.put(MEASURED)
    until(lambda: controllers[0].received)
    controllers[0]._answer = b"HTTP/1.1 204 No Content\r\n\r\n"
    until(lambda: (reporter.flush(0.05), reporter._idle.is_set())[1])


def test_a_report_handed_over_while_the_last_one_is_settled_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COADAPT_URL", "http://127.0.0.1:1")
    reporter, done = Reporter(PLACE), list[int]()
    begun, gate = threading.Event(), threading.Event()
    second = threading.Thread(target=lambda: reporter.put(MEASURED))

    class Idle(threading.Event):
        """The second report comes between the look that finds nothing waiting and the word that all is done."""

        def set(self) -> None:
            if second.ident is None:
                second.start()
                second.join(0.5)  # or it has to wait for us
            super().set()

    def settled(report: Report) -> bool:
        if report.number == 2:
            begun.set()
            gate.wait(DEADLINE_S)
        done.append(report.number)
        return True

    reporter._idle, reporter._post = Idle(), settled  # type: ignore[method-assign]
    reporter.put(MEASURED)
    assert begun.wait(DEADLINE_S)
    assert not reporter._idle.is_set(), "a flush now would not wait for the second report"
    gate.set()
    reporter.flush(DEADLINE_S)
    assert done == [1, 2]


def test_an_address_without_a_job_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COADAPT_URL", "http://127.0.0.1:1")
    assert not Reporter(Place()).listening
    monkeypatch.setenv("COADAPT_URL", "controller:8000")
    with pytest.raises(InputError, match="http://"):
        Reporter(PLACE)


def test_nobody_there_keeps_the_newest_and_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        # taken, so that nobody else listens there meanwhile, and not listened on
        silent.bind(("127.0.0.1", 0))
        monkeypatch.setenv("COADAPT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        reporter = Reporter(PLACE)
        for _ in range(1000):
            reporter.put(MEASURED)
        assert reporter._waiting[-1].number == 1000
        assert len(reporter._waiting) <= 256
        reporter.flush(0.01)


def test_without_a_url_a_scheduled_job_speaks_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(PLACE).put(MEASURED)
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    found = from_line(line)
    assert found is not None
    assert found.measurements == MEASURED
    assert not Reporter(Place()).listening


def test_lines_that_are_not_ours_are_left_alone() -> None:
    assert from_line("epoch 3") is None
    assert from_line("COADAPT {") is None
    assert from_line('COADAPT {"attempt": "x"}') is None
    report = Report(job="j", number=4, measurements=MEASURED)
    assert decode(encode(report)) == report == from_line(to_line(report))


def test_replicas_that_are_started_anew_do_not_repeat_the_numbers_of_their_attempt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COADAPT_URL", raising=False)
    numbers = []
    for restarts in (0, 1):
        reporter = Reporter(PLACE._replace(restarts=restarts))
        reporter.put(MEASURED)
        reporter.put(MEASURED)
        numbers += [
            report.number for line in capsys.readouterr().out.splitlines() if (report := from_line(line))
        ]
    assert len(set(numbers)) == 4
    assert numbers == sorted(numbers)


def test_nodes_are_counted_where_replicas_are_spread_unevenly() -> None:
    spread = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert here(spread).nodes == 4  # as far as it can tell
    assert here({**spread, "GROUP_WORLD_SIZE": "2"}).nodes == 2
