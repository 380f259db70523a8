"""Saved states: everything is in them, and what cannot be read is said."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from coadapt.errors import SavedStateError
from coadapt.model.snapshot import Phase
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state import saved_state
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.node_state import NodeState
from coadapt.scheduler.state.saved_state import SavedJob, SavedNode, SavedState, load, save
from tests.properties.digest import state_digest
from tests.unit.scheduler.phases import job_in


def slots(kind: type) -> set[str]:
    return {name for each in kind.__mro__ for name in getattr(each, "__slots__", ())}


def test_every_field_of_jobs_nodes_and_state_is_saved() -> None:
    # a quarantine, and code that is missing, are saved by the name of the job
    # what a job is charged for follows from what it holds; groups that share GPUs are saved by the name of the node
    assert {*SavedJob.__struct_fields__, "quarantine", "missing_code", "held_charge"} == slots(JobState)
    groups = {"held_groups", "promised_groups"}
    assert {*SavedNode.__struct_fields__, *groups} == slots(NodeState)
    # open nodes and moments follow from the rest
    kept = set(vars(SchedulerState())) - {"all_nodes", "retries", "limits"}
    assert set(SavedState.__struct_fields__) == kept | {"quarantined", "without_code"} | groups


@pytest.mark.parametrize("phase", Phase)
def test_state_with_a_job_in_every_phase_comes_back(phase: Phase) -> None:
    state = job_in(phase).state
    for dense in (False, True):
        again = load(save(state, dense=dense))
        again.validate()
        assert state_digest(again) == state_digest(state)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not by coadapt"),
        (b"something else", "not by coadapt"),
        (save(SchedulerState())[:20], "another version"),
        (save(SchedulerState())[:-3], "damaged"),
        (save(SchedulerState(), dense=True)[:-3], "damaged"),
        (save(SchedulerState()).replace(b"coadapt-state\0\1", b"coadapt-state\0\2"), "another version"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_callers_can_catch(data: bytes, said: str) -> None:
    with pytest.raises(SavedStateError, match=said):
        load(data)


def test_state_saved_before_there_were_more_fields_is_loaded_and_lacks_nothing_else() -> None:
    """Written by the coadapt before ``share`` was known; a log may have been forgotten up to such a state."""
    data = (Path(__file__).parent / "saved_state_1.bin").read_bytes()
    assert data[: len(saved_state.header())] != saved_state.header()
    state = load(data)
    state.validate()
    job = state.jobs["a"]
    assert (job.phase, job.work, job.share, job.share_of) == (Phase.RUNNING, 16.0 * 90, None, 0.0)
    assert job.spec.deadline_s == 300.0
    assert len(job.table.rows) == 3
    assert load(save(state)).jobs["a"].work == job.work


def test_fields_of_a_saved_state_are_only_added_behind_the_others() -> None:
    """Jobs and nodes are saved as rows: what moved would be read as something else."""
    assert SavedJob.__struct_fields__[-4:] == ("first_forecast", "first_forecast_at", "share", "share_of")
    assert SavedJob.__struct_fields__[:4] == ("id", "spec", "order", "submitted_at")
    order = hashlib.sha256(" ".join(SavedJob.__struct_fields__[:59]).encode()).hexdigest()[:8]
    assert (len(SavedJob.__struct_fields__), order) == (61, "b2f49ff2")
    assert SavedNode.__struct_fields__[:8] == (
        *("node", "up", "drained", "shrunk"),
        *("held", "promised", "held_other", "promised_other"),
    )


def test_state_with_other_fields_is_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    data = save(SchedulerState())
    monkeypatch.setattr(saved_state, "VERSION", saved_state.VERSION + 1)
    saved_state.header.cache_clear()
    try:
        with pytest.raises(SavedStateError, match="another version"):
            load(data)
    finally:
        monkeypatch.undo()
        saved_state.header.cache_clear()
