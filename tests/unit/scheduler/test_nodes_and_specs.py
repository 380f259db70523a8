"""Nodes that go, come back smaller or are drained; specifications that change."""

from __future__ import annotations

import msgspec
import pytest

from coadapt.model import (
    NOWHERE,
    JobResized,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Node,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    SpecChanged,
)
from coadapt.model.snapshot import Phase
from coadapt.scheduler.ready_actions import settle
from tests.builders import a_cluster, a_job, on
from tests.unit.scheduler.phases import HERE, THERE, Told, job_in


def test_promise_on_a_drained_node_is_void_also_for_a_job_that_may_not_be_preempted() -> None:
    """b has been promised n0 but never ran: a drained node takes nobody new."""
    told = job_in(Phase.STOPPING).tell(JobSubmitted(job="b", spec=a_job(preemptible=False)))
    told.decide(on("n0"), "b").tell(NodeDrained(node="n0"))
    assert told.state.jobs["b"].target == NOWHERE
    assert "b" in told.state.waiting


def test_job_that_may_not_be_preempted_stays_on_a_drained_node() -> None:
    told = Told().tell(NodeJoined(node=a_cluster("1x2").nodes[0]), at=0.0)
    told.tell(JobSubmitted(job="a", spec=a_job(2, preemptible=False)))
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1), NodeDrained(node="n0"))
    assert told.state.jobs["a"].target == HERE
    assert told.state.free_gpus == 0 == told.state.gpus


@pytest.mark.parametrize("lost", [True, False])
def test_drained_node_that_joins_again_stays_drained_until_it_is_opened(lost: bool) -> None:
    """Its keeper was started anew, which knows nothing of what an administrator wants."""
    node = a_cluster("1x2").nodes[0]
    told = Told().tell(NodeJoined(node=node), NodeDrained(node="n0"))
    if lost:
        told.tell(NodeLost(node="n0"))
    told.tell(NodeJoined(node=node))
    assert not told.state.nodes
    assert told.state.free_gpus == 0 == told.state.gpus
    told.tell(NodeOpened(node="n0"))
    assert (list(told.state.nodes), told.state.free_gpus) == (["n0"], 2)


def test_job_that_stays_on_a_drained_node_stays_when_the_node_joins_again() -> None:
    node = a_cluster("1x2").nodes[0]
    told = Told().tell(NodeJoined(node=node), JobSubmitted(job="a", spec=a_job(2, preemptible=False)))
    told.decide(HERE).start(HERE, 1).tell(JobStarted(job="a", attempt=1), NodeDrained(node="n0"))
    told.tell(NodeJoined(node=node))
    assert told.state.jobs["a"].target == HERE
    told.tell(NodeJoined(node=Node(name="n0", gpus=1)))
    assert told.state.jobs["a"].target == NOWHERE
    assert told.state.undecided


def test_job_on_its_way_from_a_lost_node_is_lost_with_it() -> None:
    """It has been promised n1 but still runs on n0 when that is lost."""
    told = job_in(Phase.RUNNING).decide(on(("n1", 2))).tell(NodeLost(node="n0"))
    assert told.state.jobs["a"].target == NOWHERE
    assert [action.why for action in settle(told.state)] == ["node-lost"]  # type: ignore[union-attr]


def test_lost_node_counts_as_held_until_the_end_is_confirmed() -> None:
    told = job_in(Phase.RUNNING).tell(NodeLost(node="n0")).stop(2)
    assert told.state.all_nodes["n0"].held == 2
    told.tell(JobStopped(job="a", attempt=2, cause="node-lost"))
    assert told.state.all_nodes["n0"].held == 0


@pytest.mark.parametrize(
    "node", [Node(name="n0", gpus=1), Node(name="n0", gpus=2, gpu_type="other"), Node(name="n0", gpus=8)]
)
def test_node_that_comes_back_as_another_keeps_only_what_it_bears(node: Node) -> None:
    told = job_in(Phase.RUNNING).tell(NodeJoined(node=node))
    kept = node.gpus == 8
    assert told.state.jobs["a"].target == (HERE if kept else NOWHERE)
    assert told.state.gpus == node.gpus + 2
    if not kept:
        told.stop(2).tell(JobStopped(job="a", attempt=2, cause="paused"))
        assert not told.state.all_nodes["n0"].shrunk


def test_node_that_says_again_it_is_there_changes_nothing_for_its_jobs() -> None:
    told = job_in(Phase.RUNNING).tell(NodeJoined(node=a_cluster("2x2").nodes[0]))
    assert told.state.jobs["a"].target == HERE
    assert (told.state.gpus, told.state.free_gpus) == (4, 2)


def test_changed_bounds_void_a_target_outside_them() -> None:
    told = job_in(Phase.RUNNING)
    spec = told.state.jobs["a"].spec
    inside = msgspec.structs.replace(spec, roles=(msgspec.structs.replace(spec.roles[0], max=2),), priority=7)
    told.tell(SpecChanged(job="a", spec=inside))
    assert told.state.jobs["a"].spec.priority == 7
    assert told.state.jobs["a"].target == HERE
    outside = msgspec.structs.replace(inside, roles=(msgspec.structs.replace(spec.roles[0], max=1),))
    told.tell(SpecChanged(job="a", spec=outside))
    assert told.state.jobs["a"].target == NOWHERE


def test_changed_demand_is_refused_because_processes_hold_the_old_one() -> None:
    told = job_in(Phase.RUNNING)
    told.tell(SpecChanged(job="a", spec=a_job(2, at_most=4, per_replica=2, priority=7)))
    assert told.state.jobs["a"].spec.priority == 0


def test_seconds_trained_leave_out_starts_and_what_was_lost() -> None:
    """Attempt 1 ran 3-4 and was lost; attempt 2 runs from 5, is resized at 10 for 2 s, and is at 20 now."""
    told = job_in(Phase.RUNNING)
    told.tell(NodeJoined(node=Node(name="n9", gpus=1)), at=10.0)
    told.decide(THERE).resize(HERE, THERE, 2)
    told.tell(JobResized(job="a", attempt=2, placement=THERE), at=12.0)
    assert told.state.jobs["a"].ran_s(20.0) == 5.0 + 8.0
