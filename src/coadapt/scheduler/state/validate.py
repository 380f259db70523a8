"""Every invariant of the scheduler's state, in one place. Called after each event in tests."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import TYPE_CHECKING

from coadapt.errors import InvariantError
from coadapt.model import gpus_of
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.scheduler.state.node_state import Needs, within_shares

if TYPE_CHECKING:
    from coadapt.scheduler.state.state import SchedulerState


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)


def validate(state: SchedulerState) -> None:
    """Raises InvariantError with the first invariant that does not hold."""
    _validate_jobs(state)
    _validate_nodes(state)


def _validate_jobs(state: SchedulerState) -> None:
    for job in state.jobs.values():
        name = f"job {job.id!r} ({job.phase})"
        _require(bool(job.held) == (job.phase in HOLDING), f"{name} holds {job.held}")
        _require(job.held_gpus == gpus_of(job.held, job.spec), f"{name} counts its held GPUs wrongly")
        _require(job.target_gpus == gpus_of(job.target, job.spec), f"{name} counts its target GPUs wrongly")
        _require((job.finished_at is not None) == (job.phase in ENDED), f"{name} has end {job.finished_at}")
        if job.phase in ENDED:
            _require(not job.target, f"{name} has a target after its end")
            _require(job.id not in state.active and job.id not in state.blocked, f"{name} is active")
            _require(not job.on_hold and job.retry_at is None, f"{name} waits after its end")
        else:
            may_run = job.free_to_run and job.id not in state.blocked
            _require(
                (job.id in state.active) == may_run,
                f"{name} is active={not may_run}, though it may run={may_run}",
            )
            _require(may_run or not job.target, f"{name} may not run and has a target")
            _require(bool(state.blocked.get(job.id, True)), f"{name} is blocked by nothing")
            _require((job.id in state.placed) == bool(job.target), f"{name} is indexed wrongly")
            _require(
                (job.id in state.waiting) == (job.id in state.active and not job.target),
                f"{name} is indexed wrongly",
            )
            settled = job.held == job.target and job.in_flight is None
            _require(
                (job.id in state.unsettled) != settled, f"{name} is settled={settled} but listed otherwise"
            )
        _require(
            (job.in_flight is not None) == (job.phase in (Phase.STARTING, Phase.RESIZING, Phase.STOPPING)),
            f"{name} has action {job.in_flight} under way",
        )
        _require(job.retry_at is None or job.phase is Phase.PAUSED, f"{name} is to be tried again")
        _require(job.stopped_for is None or job.phase in HOLDING, f"{name} is stopped for {job.stopped_for}")
        _require(
            (job.running_since is None) == (job.phase is not Phase.RUNNING), f"{name} counts time wrongly"
        )
        _require(state.retries.of(job.id) == job.retry_at, f"{name} is woken at the wrong moment")
        _require(state.limits.of(job.id) == job.limit_at, f"{name} reaches its limit at another moment")
        for role in job.spec.roles if job.target else ():
            count = job.target.count(role.name)
            _require(
                role.min <= count <= role.max, f"{name} was promised {count} replicas of role {role.name}"
            )
    _require(
        state.ended == sum(job.phase in ENDED for job in state.jobs.values()), "ended jobs are miscounted"
    )
    for index in (state.active, state.waiting, state.placed, state.unsettled):
        _require(
            all(state.jobs.get(n) is j for n, j in index.items()), "an index names a job that does not exist"
        )


def _validate_nodes(state: SchedulerState) -> None:
    held, promised = Needs(), Needs()
    for job in state.jobs.values():
        held.add(job.held.slots, job.spec)
        promised.add(job.target.slots, job.spec)
    gpus = free = 0
    for name, node in state.all_nodes.items():
        _require(node.held == held.total(name), f"node {name} counts {node.held} held GPUs, wrongly")
        _require(
            node.promised == promised.total(name),
            f"node {name} counts {node.promised} promised GPUs, wrongly",
        )
        for groups, needs in ((node.held_groups, held), (node.promised_groups, promised)):
            shared = {n: (g.members, g.gpus) for n, g in needs.shared.get(name, {}).items()}
            _require(
                {n: (g.members, g.gpus) for n, g in groups.items()} == shared,
                f"node {name} counts its shared GPUs wrongly",
            )
            _require(within_shares(groups), f"more than the whole of a GPU of node {name} is shared out")
        _require(
            _alike(node.held_other, held.other.get(name, {})),
            f"node {name} counts held {node.held_other} wrongly",
        )
        _require(
            _alike(node.promised_other, promised.other.get(name, {})),
            f"node {name} counts promised {node.promised_other} wrongly",
        )
        _require(
            node.shrunk or node.has_free(0, {}),
            f"more is held than node {name} has: {node.held} GPUs, {node.held_other}",
        )
        node.check_promised()
        _require((name in state.nodes) == node.open, f"node {name} is indexed wrongly")
        if node.open:
            gpus += node.node.gpus
            free += node.node.gpus - node.promised
    _require(
        (state.gpus, state.free_gpus) == (gpus, free),
        f"cluster counts {state.free_gpus} of {state.gpus} GPUs free, not {free} of {gpus}",
    )


def _alike(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return all(
        isclose(one.get(n, 0.0), other.get(n, 0.0), rel_tol=1e-9, abs_tol=1e-6) for n in {**one, **other}
    )
