"""The log's format: every event comes back as it was, order included, and older lines stay readable."""

from __future__ import annotations

import msgspec
import pytest

from coadapt.model import DecisionMade, Record, Woke, decode, encode
from coadapt.model.events import AnyEvent
from coadapt.testing import EVERY_EVENT
from tests.builders import on


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
def test_event_survives_the_log(event: AnyEvent) -> None:
    record = Record(seq=3, at=1.5, event=event)
    assert decode(encode(record)) == record
    assert encode(decode(encode(record))) == encode(record)


def test_decision_keeps_the_order_of_its_jobs() -> None:
    """Jobs are started in the order the policy named them, also by a controller that reads the log."""
    decision = DecisionMade(decision=1, targets={"z": on("n0"), "a": on("n1")}, memory={"y": 1, "b": 2})
    found = decode(encode(Record(seq=0, at=0.0, event=decision))).event
    assert isinstance(found, DecisionMade)
    assert list(found.targets) == ["z", "a"]
    assert list(found.memory) == ["y", "b"]


def test_line_without_a_version_is_of_the_first() -> None:
    assert decode(b'{"seq":1,"at":2.0,"event":{"type":"Woke"}}') == Record(
        seq=1, at=2.0, event=Woke(), version=1
    )


def test_unknown_event_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(b'{"seq":1,"at":2.0,"event":{"type":"Slept"}}')
