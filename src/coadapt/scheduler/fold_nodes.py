"""What happens to nodes: they join, are lost, drained and opened again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coadapt.model import NOWHERE, NodeDrained, NodeJoined, NodeLost, NodeOpened
from coadapt.model.snapshot import HOLDING
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.node_state import NodeState, touches

if TYPE_CHECKING:
    from coadapt.scheduler.state import SchedulerState


def node_joined(state: SchedulerState, event: NodeJoined) -> None:
    """It is new, or back: as it was, or as another. What was drained stays so: only an administrator opens it."""
    name = event.node.name
    known = state.all_nodes.get(name)
    if known is None:
        known = state.all_nodes[name] = NodeState(event.node)
    else:
        _close(state, known)
        if not known.would_bear(event.node):
            known.up = False  # as it was, it is gone
            _evict(state, known, lambda job: True)
        known.node, known.up = event.node, True
        known.shrunk = not known.has_free(0, {})
    if known.open:
        _open(state, known)
    state.undecided = True


def node_lost(state: SchedulerState, event: NodeLost) -> None:
    """Nothing runs there any more; what was held is held until its end is confirmed."""
    node = state.all_nodes.get(event.node)
    if node is not None:
        _close(state, node)
        node.up = False
        _evict(state, node, lambda job: True)
        state.undecided = True


def node_drained(state: SchedulerState, event: NodeDrained) -> None:
    """It takes nobody new."""
    node = state.all_nodes.get(event.node)
    if node is not None:
        _close(state, node)
        node.drained = True
        # a job that may not be preempted stays; one that has only been promised its place never comes
        _evict(state, node, lambda job: job.spec.preemptible or job.phase not in HOLDING)
        state.undecided = True


def node_opened(state: SchedulerState, event: NodeOpened) -> None:
    """A drained node takes replicas again, if it is there; a lost one has to join."""
    node = state.all_nodes.get(event.node)
    if node is not None and node.drained:
        node.drained = False
        if node.up:
            _open(state, node)


def _open(state: SchedulerState, node: NodeState) -> None:
    # in the order of the cluster, whatever became of its nodes
    state.nodes = {name: each for name, each in state.all_nodes.items() if each.open}
    state.gpus += node.node.gpus
    state.free_gpus += node.node.gpus - node.promised
    state.undecided = True


def _close(state: SchedulerState, node: NodeState) -> None:
    if state.nodes.pop(node.node.name, None):
        state.gpus -= node.node.gpus
        state.free_gpus -= node.node.gpus - node.promised


def _evict(state: SchedulerState, node: NodeState, leaves: Callable[[JobState], bool]) -> None:
    """Jobs that are on the node or are promised to it lose their target, except those on their way elsewhere
    from a node that is still there."""
    name, up = node.node.name, node.up
    for job in list(state.placed.values()):
        if (touches(job.target, name) or (not up and touches(job.held, name))) and leaves(job):
            state.set_target(job, NOWHERE)


APPLY: dict[type, Callable[[Any, Any], None]] = {
    NodeJoined: node_joined,
    NodeLost: node_lost,
    NodeDrained: node_drained,
    NodeOpened: node_opened,
}
