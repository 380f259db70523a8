"""Nodes that are taken away at a known time: what may not be interrupted starts there only if it ends before."""

from __future__ import annotations

import pytest

from coadapt import plugins
from coadapt.model import AnyEvent, JobSpec, JobSubmitted, NodeJoined, StartJob, Woke
from coadapt.scheduler import Scheduler
from coadapt.scheduler.state.saved_state import load, save
from coadapt.scheduler.state.state import SchedulerState
from tests.builders import a_cluster, a_job, a_trained_job, records_of

SHORT, LONG = a_cluster("2x2").nodes


def starts(*nodes: NodeJoined, **jobs: JobSpec) -> tuple[dict[str, str], SchedulerState]:
    """The node on which each job starts, with fifo on the given nodes at time 1000."""
    scheduler = Scheduler(plugins.POLICIES.make("fifo"), plugins.PLACERS.make("packed"))
    events: list[AnyEvent] = [
        *nodes,
        *(JobSubmitted(job=name, spec=spec) for name, spec in jobs.items()),
        Woke(),
    ]
    found: dict[str, str] = {}
    for record in records_of(*((1000.0, event) for event in events)):
        for event in scheduler.handle(record):
            for action in getattr(event, "actions", ()):
                assert isinstance(action, StartJob)
                found[action.job] = action.placement.slots[0].node
    scheduler.state.validate()
    return found, scheduler.state


def test_job_that_ends_in_time_or_may_move_starts_on_a_node_that_goes() -> None:
    short = NodeJoined(node=SHORT, until=1500.0)
    found, _ = starts(
        short,
        a=a_job(1, duration_s=400.0, preemptible=False),
        b=a_job(1, duration_s=9000.0, preemptible=True),
    )
    assert found == {"a": SHORT.name, "b": SHORT.name}


def test_job_that_may_not_be_interrupted_waits_and_says_why() -> None:
    found, state = starts(
        NodeJoined(node=SHORT, until=1500.0), a=a_job(1, duration_s=501.0, preemptible=False)
    )
    assert found == {}
    reason = state.jobs["a"].reason
    assert reason is not None
    assert reason.code == "node-ends"
    assert reason.text == (
        f"Waiting. Node {SHORT.name} is taken away in 8m 20s; the job may not be interrupted, and needs 8m 21s."
    )


def test_it_starts_on_a_node_that_stays_where_there_is_one() -> None:
    found, _ = starts(
        NodeJoined(node=SHORT, until=1500.0),
        NodeJoined(node=LONG),
        a=a_job(2, duration_s=9000.0, preemptible=False),
        b=a_job(2, duration_s=9000.0, preemptible=True),
    )
    assert found == {"a": LONG.name, "b": SHORT.name}


def test_job_that_finds_no_room_on_nodes_that_stay_takes_none_from_others() -> None:
    found, state = starts(
        NodeJoined(node=SHORT, until=1500.0),
        NodeJoined(node=LONG),
        a=a_job(2, duration_s=9000.0, preemptible=False),
        b=a_job(1, duration_s=9000.0, preemptible=True),
        c=a_job(1, duration_s=9000.0, preemptible=False),
    )
    assert found == {"b": LONG.name, "c": LONG.name}
    assert state.jobs["a"].reason is not None
    assert state.jobs["a"].reason.code == "node-ends"


@pytest.mark.parametrize(("limit_s", "begins"), [(None, False), (600.0, False), (400.0, True)])
def test_job_of_unknown_length_is_judged_by_its_time_limit(limit_s: float | None, begins: bool) -> None:
    spec = a_trained_job(1, preemptible=False, time_limit_s=limit_s)
    found, state = starts(NodeJoined(node=SHORT, until=1500.0), a=spec)
    assert bool(found) == begins
    if limit_s is None:
        assert state.jobs["a"].reason is not None
        assert "has no known end (give it a time_limit)" in state.jobs["a"].reason.text


def test_end_of_a_node_is_kept_and_forgotten_when_it_joins_without_one() -> None:
    _, state = starts(NodeJoined(node=SHORT, until=1500.0))
    assert state.all_nodes[SHORT.name].until == 1500.0
    assert load(save(state)).all_nodes[SHORT.name].until == 1500.0
    _, state = starts(NodeJoined(node=SHORT, until=1500.0), NodeJoined(node=SHORT))
    assert state.all_nodes[SHORT.name].until is None
