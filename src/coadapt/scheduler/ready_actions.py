"""From target to actions: emits each action once the GPUs it needs are confirmed free.

Stops go out at once; starts and resizes wait until no process holds their slots. Resizes can wait for
each other in a circle (A moves to B's place and B to A's): when nothing is under way that could free
GPUs, the first of them is stopped and starts again at its target.
"""

from __future__ import annotations

from coadapt.model import Action, ResizeJob, Slot, StartJob, StopJob
from coadapt.model.actions import StopWhy
from coadapt.model.snapshot import Phase
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.node_state import Needs
from coadapt.scheduler.state.state import SchedulerState


def settle(state: SchedulerState) -> list[Action]:
    """Returns the actions that can be issued now. Checks unsettled jobs only."""
    actions: list[Action] = []
    claims = Needs()
    blocked: JobState | None = None
    moving = False
    for job in state.unsettled.values():
        number = state.actions + len(actions) + 1
        if job.phase in (Phase.PENDING, Phase.PAUSED):
            if _claim(state, job, claims, ()):
                actions.append(StartJob(id=number, job=job.id, attempt=job.attempt + 1, placement=job.target))
        elif job.phase is Phase.STOPPING:
            moving = True
        elif not job.target:
            actions.append(StopJob(id=number, job=job.id, attempt=job.attempt, why=_why(state, job)))
        elif job.phase is not Phase.RUNNING:
            # once it holds what it was promised, it only starts up there and will free nothing
            moving = moving or job.held != job.target
        elif _claim(state, job, claims, job.held.slots):
            actions.append(
                ResizeJob(id=number, job=job.id, attempt=job.attempt, before=job.held, placement=job.target)
            )
        elif blocked is None:
            blocked = job
    freeing = moving or any(not isinstance(action, StartJob) for action in actions)
    if blocked is not None and not freeing:
        actions.append(
            StopJob(id=state.actions + len(actions) + 1, job=blocked.id, attempt=blocked.attempt, why="pause")
        )
    return actions


def over_limit(state: SchedulerState) -> list[Action]:
    """Stops of jobs that have trained as long as they may, in the order they came to it."""
    jobs = [state.jobs[name] for name in state.limits.pop(state.now)]
    return [
        StopJob(id=number, job=job.id, attempt=job.attempt, why="time-limit")
        for number, job in enumerate(jobs, start=state.actions + 1)
    ]


def _claim(state: SchedulerState, job: JobState, claims: Needs, held: tuple[Slot, ...]) -> bool:
    """Claims the job's target slots beyond those it holds; False, claiming nothing, if one is not free."""
    more = list(_beyond(job.target.slots, held))
    claims.add(more, job.spec)
    for slot in more:
        node = state.all_nodes[slot.node]
        gpus, shared = claims.gpus.get(slot.node, 0), claims.shared.get(slot.node)
        if not node.up or not node.has_free(gpus, claims.other.get(slot.node, {}), shared):
            claims.add(more, job.spec, -1)
            return False
    return True


def _beyond(slots: tuple[Slot, ...], held: tuple[Slot, ...]) -> list[Slot]:
    """What has to be free before ``slots`` can be taken by someone who holds ``held``."""
    own = {(slot.node, slot.role, slot.group): slot.replicas for slot in held}
    more: list[Slot] = []
    for slot in slots:
        has = own.get((slot.node, slot.role, slot.group), 0)
        if not has:
            more.append(slot)
        elif slot.replicas > has:
            more.append(Slot(node=slot.node, replicas=slot.replicas - has, role=slot.role))
    return more


def _why(state: SchedulerState, job: JobState) -> StopWhy:
    if job.cancelling:
        return "cancel"
    if job.stopped_for is not None and job.stopped_for.kind == "hang":
        return "hang"
    nodes = [state.all_nodes[slot.node] for slot in job.held.slots]
    if not all(node.up for node in nodes):
        return "node-lost"
    return "pause" if job.on_hold or all(node.open for node in nodes) else "drain"
