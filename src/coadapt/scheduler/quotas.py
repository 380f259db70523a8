"""Quotas, enforced for policies that do not know them.

Before the decision, waiting jobs whose user or team has no room for their least size are hidden from the policy, so
that no job queues behind them. After the decision, the target of a job is cut to the room that is left: slots are
only removed from a target, so a feasible target stays feasible. A group above its quota, because the quota was
lowered, keeps what it has and gets nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from coadapt.model import NOWHERE, JobSpec, Placement, Reason, Slot, gpus_of
from coadapt.policies._base import gpus_needed
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState


def groups_of(state: SchedulerState, spec: JobSpec) -> list[str]:
    """Returns the user and the team of a job, as far as they have a quota."""
    return [group for group in {spec.user: None, spec.team: None} if group and group in state.quotas]


def used(state: SchedulerState) -> Counter[str]:
    """GPUs promised, by user or team that has a quota."""
    found: Counter[str] = Counter()
    for job in state.placed.values():
        for group in groups_of(state, job.spec):
            found[group] += job.target_gpus
    return found


class WithinQuotas:
    """The state without waiting jobs that no quota leaves room for. Implements ``model.snapshot.Snapshot``."""

    def __init__(self, state: SchedulerState) -> None:
        taken = used(state)
        self._state = state
        #: Jobs that are not shown, and why.
        self.reasons: dict[str, Reason] = {}
        for job in state.waiting.values():
            needs = least_gpus(job.spec)
            for group in groups_of(state, job.spec):
                if needs and taken[group] + needs > state.quotas[group]:
                    self.reasons[job.id] = _reason(0, group, taken[group], state.quotas[group], needs)
        self.active = _without(state.active, self.reasons)
        self.waiting = _without(state.waiting, self.reasons)

    def __iter__(self) -> Iterator[JobState]:
        return iter(self.active.values())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


class Without:
    """The state without some jobs. Implements ``model.snapshot.Snapshot``; what the jobs have stays taken."""

    def __init__(self, state: SchedulerState, hidden: Collection[str]) -> None:
        self._state = state
        self.active = _without(state.active, hidden)
        self.waiting = _without(state.waiting, hidden)
        self.placed = _without(state.placed, hidden)

    def __iter__(self) -> Iterator[JobState]:
        return iter(self.active.values())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def without(state: SchedulerState, hidden: Collection[str]) -> Any:
    """Returns the state as a policy sees it without the jobs in ``hidden``."""
    return Without(state, frozenset(hidden))


def _without(jobs: dict[str, JobState], hidden: Collection[str]) -> dict[str, JobState]:
    return {name: job for name, job in jobs.items() if name not in hidden} if hidden else jobs


def cut(
    state: SchedulerState, targets: Mapping[str, Placement]
) -> tuple[dict[str, Placement], dict[str, Reason]]:
    """Cuts the targets to the quotas, those that shrink or go first; returns them and the reasons of jobs that got less."""
    taken, reasons = used(state), dict[str, Reason]()
    allowed: dict[str, Placement] = {}
    grows: list[str] = []
    for name, target in targets.items():
        job = state.jobs[name]
        allowed[name] = target
        if gpus_of(target, job.spec) > job.target_gpus:
            grows.append(name)
        else:
            _count(state, job, taken, gpus_of(target, job.spec))
    for name in grows:
        job, target = state.jobs[name], targets[name]
        for group in groups_of(state, job.spec):
            room = state.quotas[group] - (taken[group] - job.target_gpus)
            if gpus_of(allowed[name], job.spec) > max(room, job.target_gpus):
                allowed[name] = _cut(allowed[name], job.spec, max(room, job.target_gpus))
                needs = gpus_of(target, job.spec)
                gets = gpus_of(allowed[name], job.spec)
                reasons[name] = _reason(gets, group, taken[group], state.quotas[group], needs)
        _count(state, job, taken, gpus_of(allowed[name], job.spec))
    return allowed, reasons


def _count(state: SchedulerState, job: JobState, taken: Counter[str], gpus: int) -> None:
    for group in groups_of(state, job.spec):
        taken[group] += gpus - job.target_gpus


def _cut(target: Placement, spec: JobSpec, gpus: int) -> Placement:
    """As many of the workers as so many GPUs allow, from the front; nowhere, if that is too few or other roles need GPUs."""
    each, role = spec.gpus_per_replica, spec.worker
    room = gpus // each if each else 0
    # those who share GPUs have equally many
    if room < role.min or target.shared or gpus_of(target, spec) != target.replicas * each:
        return NOWHERE
    slots: list[Slot] = []
    for slot in target.slots:
        if slot.role != role.name:
            slots.append(slot)
        elif room:
            kept = min(slot.replicas, room)
            room -= kept
            slots.append(Slot(node=slot.node, replicas=kept, gpu_type=slot.gpu_type, role=slot.role))
    return Placement(slots=tuple(slots))


def least_gpus(spec: JobSpec) -> int:
    """GPUs of the least size the job can run at."""
    return sum(role.min * role.demand.gpus for role in spec.roles) if spec.elastic else gpus_needed(spec)


def _reason(gets: int, group: str, taken: int, quota: int, needs: int) -> Reason:
    what = f"Running on {gets} of" if gets else "Waiting for"
    text = f"{what} {needs} GPU{'' if needs == 1 else 's'}. The quota of {group} is {quota}, of which {taken} are in use."
    return Reason(
        code="quota",
        text=text,
        numbers={"quota": float(quota), "used": float(taken), "needs_gpus": float(needs)},
    )
