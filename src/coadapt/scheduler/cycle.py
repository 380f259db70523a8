"""One decision, in numbered steps: snapshot -> curves -> policy -> placer -> check -> DecisionMade."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from coadapt.errors import InputError, InvariantError
from coadapt.model import WORKER, DecisionMade, Placement
from coadapt.model.snapshot import HOLDING
from coadapt.placement import Placer
from coadapt.policies._base import Curves, Memory, Policy, Proposal, traits_of
from coadapt.scheduler.node_ends import within_ends
from coadapt.scheduler.placed_first import with_placements
from coadapt.scheduler.quotas import WithinQuotas, cut, without
from coadapt.scheduler.state.node_state import Needs
from coadapt.scheduler.state.state import SchedulerState


def decide(
    state: SchedulerState,
    policy: Policy,
    placer: Placer,
    curves: Curves,
    *,
    seed: int,
    warm: Any,
    hidden: Collection[str] = (),
) -> tuple[DecisionMade, Any]:
    """Asks the policy for a proposal and turns it into a decision; returns it with the policy's new warm start.

    Args:
        state: the scheduler's state; not changed.
        policy: proposes allocations or placements.
        placer: finds nodes for allocations.
        curves: scaling curves by job id.
        seed: with the number of the decision, the seed of its random generator.
        warm: warm start that the policy returned last; None: none.
        hidden: active jobs that policy and placer do not see; they keep what they have.
    """
    number = state.decisions + 1
    visible: Any = without(state, hidden) if hidden else state
    # 1. the policy proposes changes, knowing the state, the curves and its own memory
    shown = WithinQuotas(visible) if state.quotas and not traits_of(policy).knows_quotas else None
    proposal = policy.decide(
        shown or visible,
        curves,
        Memory(kept=state.memory, warm=warm),
        lambda: np.random.default_rng((seed, number)),
    )
    if not isinstance(proposal, Proposal):
        raise InputError(
            f"{type(policy).__name__}.decide returned {type(proposal).__name__}; it must return a coadapt.policies.Proposal"
        )
    _check_names(visible, proposal)
    # 2. the placer finds places for what the policy did not place itself
    beside = with_placements(visible, proposal.placements) if proposal.placements else visible
    placed = placer.place(beside, proposal.allocations, proposal.fixed) if proposal.allocations else {}
    targets = {**placed, **proposal.placements}
    targets, ends_too_early = within_ends(state, targets, proposal, placer, curves)
    reasons = dict(proposal.reasons) | ends_too_early
    if state.quotas:
        targets, cut_short = cut(state, targets)
        reasons |= cut_short | (shown.reasons if shown is not None else {})
    # 3. only real changes are decided
    targets = {name: t for name, t in targets.items() if t != state.jobs[name].target}
    # 4. no decision leaves here that the cluster or the job cannot bear
    check(state, targets)
    reasons = {n: r for n, r in reasons.items() if r != state.jobs[n].reason}
    decision = DecisionMade(
        decision=number,
        targets=targets,
        reasons=reasons,
        memory=dict(proposal.memory),
        # a moment that is not to come would be woken for again and again
        wake_at=proposal.wake_at if proposal.wake_at is None or proposal.wake_at > state.now else None,
        price=dict(proposal.price),
        forecasts=dict(proposal.forecasts),
    )
    return decision, proposal.warm


def _check_names(state: SchedulerState, proposal: Proposal) -> None:
    for name in {**proposal.allocations, **proposal.placements, **proposal.reasons, **proposal.forecasts}:
        if name not in state.active:
            raise InvariantError(f"decision for job {name!r}, which may not run")


def check(state: SchedulerState, targets: Mapping[str, Placement]) -> None:
    """Raises InvariantError where targets break a job's bounds or types, move what must not move, or are too much
    for a node."""
    more = Needs()
    for name, target in targets.items():
        job = state.jobs[name]
        more.add(target.slots, job.spec)
        more.add(job.target.slots, job.spec, -1)
        if job.phase in HOLDING and not job.spec.preemptible and job.target:
            raise InvariantError(f"job {name!r} is not preemptible and was given another target")
        if not target:
            continue
        for role in job.spec.roles:
            count = target.count(role.name)
            if not role.min <= count <= role.max:
                raise InvariantError(
                    f"job {name!r}: {count} replicas of role {role.name}, allowed {role.min}..{role.max}"
                )
        types = {slot.gpu_type for slot in target.slots if slot.role == WORKER}
        if job.spec.gpu_types and not types <= set(job.spec.gpu_types):
            raise InvariantError(f"job {name!r} may not use GPUs of type {types}")
        if len(types) > 1 and not job.spec.mixed:
            raise InvariantError(f"job {name!r} was placed on several GPU types: {types}")
        for slot in target.slots:
            if slot.node not in state.nodes or state.nodes[slot.node].node.gpu_type != slot.gpu_type:
                raise InvariantError(f"job {name!r} was placed on {slot}, which the cluster does not offer")
            if slot.replicas < 1:
                raise InvariantError(f"job {name!r} was placed on {slot}")
    for node in {**more.gpus, **more.shared}:
        state.all_nodes[node].check_promised(
            more.gpus.get(node, 0), more.other.get(node), more.shared.get(node)
        )
