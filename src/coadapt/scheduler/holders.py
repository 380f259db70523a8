"""Who has what a job waits for."""

from __future__ import annotations

from coadapt.model import Fact, JobSpec
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.quotas import least_gpus
from coadapt.scheduler.standing import Standings
from coadapt.scheduler.state import SchedulerState

MOST_HOLDERS = 5


class Holder(Fact, frozen=True):
    """Somebody who has what the job waits for; ``eta``: when it ends, where that can be told."""

    job: str
    user: str
    gpus: int
    eta: float | None = None


class Room(Fact, frozen=True):
    """GPUs of the types that a job may use: how many there are, are free, and are needed for its least size."""

    needs: int
    gpus: int
    free: int
    types: str


def room_for(state: SchedulerState, spec: JobSpec) -> Room:
    """What the cluster has for a job."""
    gpus = free = 0
    for node in state.nodes.values():
        if not spec.gpu_types or node.node.gpu_type in spec.gpu_types:
            gpus += node.node.gpus
            free += node.node.gpus - max(node.promised, node.held)
    types = " or ".join(spec.gpu_types)
    return Room(needs=least_gpus(spec), gpus=gpus, free=max(free, 0), types=types)


def gpus_used(state: SchedulerState, job: JobState, spec: JobSpec) -> int:
    """GPUs of types that ``spec`` may use, which ``job`` has or has been promised."""
    where = job.held if job.held_gpus >= job.target_gpus else job.target
    return sum(
        slot.replicas * job.spec.role(slot.role).demand.gpus
        for slot in where.slots
        if not spec.gpu_types or slot.gpu_type in spec.gpu_types
    )


def holders(
    state: SchedulerState,
    job: JobState,
    standings: Standings,
    now: float,
    *,
    nodes: frozenset[str] = frozenset(),
) -> tuple[Holder, ...]:
    """Jobs that hold GPUs the job could use, the largest first; ``nodes``: on these nodes only."""
    found: list[tuple[int, JobState]] = []
    # those in ``unsettled`` may hold GPUs that are no longer promised to them
    for other in {**state.placed, **state.unsettled}.values():
        if other is job or (nodes and not any(slot.node in nodes for slot in other.held.slots)):
            continue
        gpus = gpus_used(state, other, job.spec)
        if gpus:
            found.append((gpus, other))
    found.sort(key=lambda pair: (-pair[0], pair[1].order))
    return tuple(_holder(state, other, gpus, standings, now) for gpus, other in found[:MOST_HOLDERS])


def _holder(state: SchedulerState, job: JobState, gpus: int, standings: Standings, now: float) -> Holder:
    left = standings.left(state, job, now)
    eta = None if left is None else now + left.quantile(0.5)
    return Holder(job=job.id, user=job.spec.user, gpus=gpus, eta=eta)
