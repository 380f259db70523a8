"""Saved states: everything is in them, and what cannot be read is said."""

from __future__ import annotations

import pytest

from coadapt.errors import SavedStateError
from coadapt.model.snapshot import Phase
from coadapt.scheduler import SchedulerState, saved
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.node_state import NodeState
from coadapt.scheduler.saved import load, save
from coadapt.scheduler.saved_fields import SavedJob, SavedNode, SavedState
from tests.properties.digest import state_digest
from tests.unit.scheduler.phases import job_in


def slots(kind: type) -> set[str]:
    return {name for each in kind.__mro__ for name in getattr(each, "__slots__", ())}


def test_every_field_of_jobs_nodes_and_state_is_saved() -> None:
    assert set(SavedJob.__struct_fields__) == slots(JobState)
    assert set(SavedNode.__struct_fields__) == slots(NodeState)
    # open nodes and moments follow from the rest
    kept = set(vars(SchedulerState())) - {"all_nodes", "retries", "limits"}
    assert set(SavedState.__struct_fields__) == kept


@pytest.mark.parametrize("phase", Phase)
def test_state_with_a_job_in_every_phase_comes_back(phase: Phase) -> None:
    state = job_in(phase).state
    again = load(save(state))
    again.validate()
    assert state_digest(again) == state_digest(state)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not by coadapt"),
        (b"something else", "not by coadapt"),
        (save(SchedulerState())[:20], "another version"),
        (save(SchedulerState())[:-3], "damaged"),
        (save(SchedulerState()).replace(b"coadapt-state\0\1", b"coadapt-state\0\2"), "another version"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_callers_can_catch(data: bytes, said: str) -> None:
    with pytest.raises(SavedStateError, match=said):
        load(data)


def test_state_with_other_fields_is_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    data = save(SchedulerState())
    monkeypatch.setattr(saved, "VERSION", saved.VERSION + 1)
    saved.header.cache_clear()
    try:
        with pytest.raises(SavedStateError, match="another version"):
            load(data)
    finally:
        monkeypatch.undo()
        saved.header.cache_clear()
