"""Every schema version that was ever written is read: its events, its log, and the states saved under it."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import pytest

from coadapt.model import AnyEvent, Record, decode, encode
from coadapt.model._base import SCHEMA_VERSION
from coadapt.scheduler import SchedulerState
from coadapt.scheduler.state.saved_state import load
from tests.digests.digest import payload
from tests.properties.digest import state_digest

HERE = Path(__file__).parent
SCHEMAS = sorted(path.name for path in HERE.glob("schema-*"))
#: Files that came later, with what was added to the schema.
ADDED = ("quarantine.jsonl", "restored.jsonl")
EVENTS = {event.__name__ for event in typing.get_args(AnyEvent)}


def records_of(schema: str, name: str) -> list[Record]:
    return [decode(line) for line in (HERE / schema / name).read_bytes().splitlines()]


def folded(records: list[Record], state: SchedulerState | None = None) -> SchedulerState:
    state = SchedulerState() if state is None else state
    for record in records:
        state.apply(record)
    return state


def test_present_schema_has_its_files() -> None:
    assert f"schema-{SCHEMA_VERSION}" in SCHEMAS


@pytest.mark.parametrize("name", ["events.jsonl", "log.jsonl"])
def test_files_of_the_present_schema_have_every_type_of_event(name: str) -> None:
    """An event that is added later gets a schema version with it, or a file of its own: files are never made anew."""
    schema = f"schema-{SCHEMA_VERSION}"
    found = {type(record.event).__name__ for each in (name, *ADDED) for record in records_of(schema, each)}
    assert found == EVENTS


def test_log_with_quarantines_is_folded() -> None:
    records = records_of("schema-1", "quarantine.jsonl")
    state = folded(records[:-1])
    state.validate()
    assert {job.id: job.quarantine for job in state.jobs.values()} == {
        "a-1": "it overflows",
        "b-2": None,
        "c-3": "decisions with it do not end",
    }
    assert [job.quarantine for job in folded(records).jobs.values()] == [
        None,
        None,
        "decisions with it do not end",
    ]


def test_log_of_a_restored_home_is_folded() -> None:
    records = records_of("schema-1", "restored.jsonl")
    state = folded(records)
    state.validate()
    job = state.jobs["a"]
    # two reports stand in one record; the node of the old home is gone, and the code was missing for a while
    assert (job.work, job.metrics) == (640.0, {"val_acc": 0.5})
    assert (job.phase.name, job.missing_code, list(state.nodes)) == ("PAUSED", False, [])
    assert folded(records[:-1]).jobs["a"].missing_code


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", ["events.jsonl", "log.jsonl", *ADDED])
def test_every_record_is_read_and_written_as_it_was(schema: str, name: str) -> None:
    """The same data; a whole number where a fraction may be is written 2 by who made it, 2.0 by who read it."""
    for line in (HERE / schema / name).read_bytes().splitlines():
        again = encode(decode(line))
        assert json.loads(again) == json.loads(line)
        assert encode(decode(again)) == again


@pytest.mark.parametrize("schema", SCHEMAS)
def test_log_is_folded_to_a_state_that_holds_together(schema: str) -> None:
    state = folded(records_of(schema, "log.jsonl"))
    state.validate()
    assert len(state.jobs) == 10
    assert not state.active


@pytest.mark.parametrize(
    ("schema", "saved"),
    [(schema, path.name) for schema in SCHEMAS for path in sorted((HERE / schema).glob("state-*.bin"))],
)
def test_saved_state_is_the_one_that_its_part_of_the_log_is_folded_to(schema: str, saved: str) -> None:
    records, count = records_of(schema, "log.jsonl"), int(saved.removeprefix("state-").removesuffix(".bin"))
    state, again = load((HERE / schema / saved).read_bytes()), folded(records[:count])
    state.validate()
    assert state_digest(state) == state_digest(again)
    assert payload(state) == payload(again)
    # and the rest of the log goes on from it
    assert state_digest(folded(records[count:], state)) == state_digest(folded(records))


def test_saved_state_in_the_middle_has_jobs_in_nearly_every_phase() -> None:
    first = min(
        (HERE / "schema-1").glob("state-*.bin"), key=lambda path: int(path.stem.removeprefix("state-"))
    )
    phases = {job.phase for job in load(first.read_bytes()).jobs.values()}
    assert len(phases) >= 8
