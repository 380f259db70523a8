"""Webhooks: what is told, signed, tried again and given up; and where nothing is ever sent."""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coadapt.errors import InputError
from coadapt.explain.explanation import short
from coadapt.model import JobFinished, NodeDrained
from coadapt.scheduler import SchedulerState
from coadapt.server.webhooks import PostError, Webhooks, checked_url, post
from tests.builders import records_of
from tests.unit.server.served import NOW, SECRET, story
from tests.waiting import DEADLINE_S

KEY = b"k" * 32


class _Sent:
    """Fails as often as told, then keeps what is sent."""

    def __init__(self, *failures: PostError) -> None:
        self.failures, self.tries = list(failures), 0
        self.messages: queue.Queue[tuple[bytes, Mapping[str, str]]] = queue.Queue()

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str], *, private: bool) -> None:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        self.messages.put((body, headers))


def _told(tmp_path: Path, sent: _Sent, late: float | None = None) -> tuple[Webhooks, SchedulerState]:
    state = SchedulerState()
    hooks = Webhooks(
        ["https://hooks.example/x"], KEY, tmp_path / "seq", private=False,
        job=state.jobs.get, late=lambda job: late, advice=lambda job: f"{job.id} needs 8 GPUs",
        describe=lambda job: short(state, job, state.now), send=sent, retries_s=(0.0, 0.0),
    )  # fmt: skip
    return hooks, state


def _feed(hooks: Webhooks, state: SchedulerState, *events: Any) -> None:
    for record in records_of(*((NOW + state.seq + 1, event) for event in events), first=state.seq + 1):
        state.apply(record)
        hooks.note(record)


def test_end_is_told_once_signed_and_without_secrets(tmp_path: Path) -> None:
    sent = _Sent()
    hooks, state = _told(tmp_path, sent)
    _feed(
        hooks, state, *story(), JobFinished(job="a-1", attempt=1, outcome="succeeded"), NodeDrained(node="n0")
    )
    body, headers = sent.messages.get(timeout=DEADLINE_S)
    message = json.loads(body)
    assert (message["event"], message["job"], message["user"], message["state"]) == (
        "ended",
        "a-1",
        "ada",
        "SUCCEEDED",
    )
    expected = hmac.new(KEY, f"{headers['Coadapt-Timestamp']}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers["Coadapt-Signature"] == f"sha256={expected}"
    assert SECRET.encode() not in body
    hooks.close()
    assert sent.messages.empty()


def test_message_is_sent_again_until_it_arrives(tmp_path: Path) -> None:
    sent = _Sent(PostError("busy", again=True), PostError("busy", again=True))
    hooks, state = _told(tmp_path, sent)
    _feed(
        hooks,
        state,
        *story(),
        JobFinished(job="a-1", attempt=1, outcome="failed", kind="oom", reason="memory"),
    )
    body, _ = sent.messages.get(timeout=DEADLINE_S)
    assert json.loads(body)["text"] == "Ran out of memory: memory. It has no retries."
    assert sent.tries == 3
    hooks.close()


def test_message_that_cannot_arrive_is_given_up(tmp_path: Path) -> None:
    sent = _Sent(PostError("gone", again=False))
    hooks, state = _told(tmp_path, sent)
    _feed(hooks, state, *story(), JobFinished(job="a-1", attempt=1, outcome="failed"))
    while not sent.tries:
        hooks._stopped.wait(0.01)
    hooks.close()
    assert sent.tries == 1


def test_deadline_at_risk_is_told_once(tmp_path: Path) -> None:
    import msgspec

    sent = _Sent()
    hooks, state = _told(tmp_path, sent, late=0.7)
    events = story()
    events[1] = msgspec.structs.replace(
        events[1], spec=msgspec.structs.replace(events[1].spec, deadline_s=60.0)
    )  # type: ignore[union-attr]
    _feed(hooks, state, *events)
    body, _ = sent.messages.get(timeout=DEADLINE_S)
    assert json.loads(body)["event"] == "at-risk"
    assert json.loads(body)["text"] == "a-1 needs 8 GPUs"
    hooks.close()
    assert sent.messages.empty()


@pytest.mark.parametrize(
    "url", ["ftp://x/y", "file:///etc/passwd", "https://", "http://u:p@h/", "http://h:0/", "http://[", "x"]
)
def test_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        checked_url(url)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "[::1]", "0.0.0.0"]
)
def test_addresses_inside_get_nothing_unless_allowed(host: str) -> None:
    with pytest.raises(PostError, match="inside") as raised:
        post(f"http://{host}:9/", b"", {}, private=False)
    assert not raised.value.again
