"""Reports never stop a step: not an absent controller, not one that answers garbage."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.model import Configuration, Measurement
from coadapt.torch import reporting
from coadapt.torch.place import Place
from coadapt.torch.reporting import Reporter
from coadapt.wire.agent import Report, decode, encode, from_line, to_line

MEASURED = (Measurement(config=Configuration(nodes=1, replicas=2, atomic_batch=8), count=3, step_s=0.1),)
PLACE = Place(job="a job", attempt=2)


class Controller:
    """Answers every request with the same bytes, and remembers what came."""

    def __init__(self, answer: bytes) -> None:
        self._answer, self.received = answer, []  # type: tuple[bytes, list[bytes]]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/reports"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.received.append(connection.recv(1 << 16))
                connection.sendall(self._answer)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def controllers() -> Iterator[list[Controller]]:
    made: list[Controller] = []
    yield made
    for each in made:
        each.close()


def _until(condition: object) -> None:
    until = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.01)


def test_reports_are_posted_with_the_token(
    controllers: list[Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    controllers.append(Controller(b"HTTP/1.1 204 No Content\r\n\r\n"))
    monkeypatch.setenv("COADAPT_URL", controllers[0].url)
    monkeypatch.setenv("COADAPT_JOB_TOKEN", "secret")
    reporter = Reporter(PLACE)
    reporter.put(MEASURED, ("batch 32",))
    reporter.flush(60)
    head, _, body = controllers[0].received[0].partition(b"\r\n\r\n")
    assert b"Bearer secret" in head
    assert not body or decode(body) == Report(
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
    monkeypatch.setattr(reporting, "_FIRST_S", 0.01)
    reporter = Reporter(PLACE)
    reporter.put(MEASURED)
    _until(lambda: len(controllers[0].received) >= 2)
    assert not reporter._idle.is_set()


def test_nobody_there_keeps_the_newest_and_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("COADAPT_URL", f"http://127.0.0.1:{probe.getsockname()[1]}")
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
