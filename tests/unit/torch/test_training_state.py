"""The state of a training: what cannot be sent to other replicas is said when it is first gathered."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from coadapt.prediction.step_time.step_table import StepTimeTable
from coadapt.torch.elastic.training_state import TrainingState


class Part:
    """A part of a training with a state of its own."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state


def a_state() -> TrainingState:
    empty = SimpleNamespace(state_dict=dict)
    training = SimpleNamespace(
        gradients=None,
        group=SimpleNamespace(to_first=lambda value: [value]),
        ledger=empty,
        noise=empty,
        history=SimpleNamespace(entries=[]),
        memory=SimpleNamespace(atomic=None),
    )
    return TrainingState(SimpleNamespace(training=training, table=StepTimeTable()), seed=0)  # type: ignore[arg-type]


def test_foreign_object_in_a_part_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    state = a_state()
    state.add("mine", Part({"lock": threading.Lock()}))
    assert state.gather() is not None
    state.gather()
    assert caplog.text.count("cannot grow") == 1
    assert "['mine']['lock'] is a _thread.lock" in caplog.text


def test_plain_parts_are_gathered_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    state = a_state()
    state.add("mine", Part({"step": 3}))
    found = state.gather()
    assert found is not None
    assert found["parts"] == {"mine": {"step": 3}}
    assert caplog.text == ""
