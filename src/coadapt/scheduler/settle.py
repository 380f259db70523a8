"""From target to actions: emits each action once the GPUs it needs are confirmed free.

Stops go out at once; starts and resizes wait until no process holds their slots. Resizes can wait for
each other in a circle (A moves to B's place and B to A's): when nothing is under way that could free
GPUs, the first of them is stopped and starts again at its target.
"""

from __future__ import annotations

from coadapt.model import Action, ResizeJob, Slot, StartJob, StopJob
from coadapt.model.actions import StopWhy
from coadapt.model.snapshot import Phase
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.state import SchedulerState


def settle(state: SchedulerState) -> list[Action]:
    """The actions that can be issued now. Looks at unsettled jobs only."""
    actions: list[Action] = []
    claims: dict[str, int] = {}
    blocked: JobState | None = None
    moving = False
    for job in state.unsettled.values():
        number = state.actions + len(actions) + 1
        if job.phase in (Phase.PENDING, Phase.PAUSED):
            if _free(state, job, claims, ()):
                actions.append(StartJob(id=number, job=job.id, attempt=job.attempt + 1, placement=job.target))
        elif job.phase is Phase.STOPPING:
            moving = True
        elif not job.target:
            actions.append(StopJob(id=number, job=job.id, attempt=job.attempt, why=_why(state, job)))
        elif job.phase is not Phase.RUNNING:
            moving = True
        elif _free(state, job, claims, job.held.slots):
            actions.append(
                ResizeJob(id=number, job=job.id, attempt=job.attempt, before=job.held, placement=job.target)
            )
        elif blocked is None:
            blocked = job
    if blocked is not None and not moving and not actions:
        actions.append(StopJob(id=state.actions + 1, job=blocked.id, attempt=blocked.attempt, why="pause"))
    return actions


def _free(state: SchedulerState, job: JobState, claims: dict[str, int], held: tuple[Slot, ...]) -> bool:
    """Whether all the job's target slots, beyond those it holds, are free and not claimed in this pass."""
    own = {(slot.node, slot.role): slot.replicas for slot in held}
    wanted: list[tuple[str, int]] = []
    for slot in job.target.slots:
        more = slot.replicas - own.get((slot.node, slot.role), 0)
        if more <= 0:
            continue
        node = state.all_nodes[slot.node]
        gpus = more * job.spec.role(slot.role).demand.gpus
        extra = slot if more == slot.replicas else Slot(node=slot.node, replicas=more, role=slot.role)
        if node.held + claims.get(slot.node, 0) + gpus > node.node.gpus or not node.has_free(extra, job.spec):
            return False
        wanted.append((slot.node, gpus))
    for name, gpus in wanted:
        claims[name] = claims.get(name, 0) + gpus
    return True


def _why(state: SchedulerState, job: JobState) -> StopWhy:
    if job.cancelling:
        return "cancel"
    nodes = [state.all_nodes[slot.node] for slot in job.held.slots]
    if not all(node.up for node in nodes):
        return "node-lost"
    return "pause" if all(node.open for node in nodes) else "drain"
