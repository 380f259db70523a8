"""Optimus: GPUs to whoever saves the most time with one more.

Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters" (EuroSys 2018). With Q_j
the steps job j still needs at its batch size and T_j(k) the time of one of them on k workers, every job
first gets its least size in order of submission; then the worker (or parameter server) with the largest

    (remaining time before - remaining time after) / dominant share of its demand

is added until nothing gains or nothing is left. With all-reduce the remaining time is Q_j T_j(k), on as few nodes as
hold k workers; with parameter servers Q_j / speed_j(p, w), from a curve with ``steps_per_s`` (``ServerSpeed``). The batch
size is the user's; at most requested_batch / per_gpu_min workers have something to do.

The paper measures a new job at a few sizes before it counts: a job with parameter servers and fewer than
``SAMPLES`` measured sizes gets the next of them; one with all-reduce stays at its least size until its first
measurement. ``oracle=True`` asks for true curves (``wants_truth``), as in the simulator published with Pollux.

A job whose counts do not change keeps its places; the others are placed anew, small ones first. No change is
too expensive: neither the paper nor the published simulation weighs the cost of a restart.

The paper predicts the steps left from the loss curve: ``loss_curve=True`` does so for jobs with a target loss
(``prediction.remaining.learning_curve``). A curve of fewer than three points, or one that levels off above the target, leaves
the steps as declared.

Where we deviate: by default the steps left are those declared, as in the simulations published since. The paper fits the
speed of all-reduce by its own form; here it is the fit that all policies share (``prediction.step_time._base``). Jobs that may not be preempted keep what they have; a job without a model (or not elastic) gets
its requested size or nothing. The paper decides every 10 minutes: set the interval for that. Optimus knows
one GPU type: on a mixed cluster a job takes, and keeps, the first type that has room for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from typing import ClassVar, Protocol, cast, runtime_checkable

from coadapt.configure import Curve
from coadapt.errors import InputError
from coadapt.model import SERVER, WORKER, Allocation, Reason, Role, Share
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng
from coadapt.policies._budget import Budget
from coadapt.prediction.remaining.learning_curve import fit_loss, progress_to
from coadapt.spec.target import stored_target
from coadapt.units import format_duration

#: (servers, workers) at which a job with parameter servers is measured before it is fitted.
SAMPLES = ((1, 1), (1, 2), (2, 2), (2, 4), (4, 2), (4, 4))


@runtime_checkable
class ServerSpeed(Protocol):
    """Additional methods of the curve of a job with parameter servers."""

    @property
    def measured_sizes(self) -> int:
        """Number of distinct (servers, workers) pairs measured."""

    def steps_per_s(self, servers: int, workers: int, batch: int) -> float:
        """Predicted steps per second of the whole job."""


@dataclass(slots=True)
class _Plan:
    """The planned allocation of one job."""

    job: JobView
    counts: dict[str, int]
    gpu_type: str
    curve: Curve | None = None
    remaining_steps: float = 0.0
    time_s: float = 0.0
    gain_s: float = 0.0


class OptimusPolicy(BasePolicy):
    """Adds GPUs where one more saves the most time.

    Args:
        oracle: Use true curves, known from the start.
        loss_curve: Predict the steps left of a job with a target loss from its loss curve.
        every_s: Where decisions are made on events: seconds until the next decision, since measurements have arrived.
    """

    name = "optimus"
    order = 60
    help = "Optimus: each GPU goes to the job whose remaining time it shortens most."
    option_help: ClassVar[dict[str, str]] = {
        "oracle": "use the true speed and length of jobs instead of fitted ones",
        "loss_curve": "predict the remaining steps of jobs with a target loss from their loss curve, as in the paper",
        "every_s": "without --interval: seconds until the next decision, which uses new measurements",
    }
    placer = "packed"
    #: Of the simulator published with Pollux; the paper spreads evenly (placer "even").
    published_placer = "most-free"
    adapts_batch = False
    chooses_size = True
    step_time_model = "pollux"

    def __init__(self, *, oracle: bool = False, loss_curve: bool = False, every_s: float = 60.0) -> None:
        if not every_s > 0:
            raise InputError(f"optimus: every_s must be above 0; got {every_s}")
        if oracle and loss_curve:
            raise InputError(
                "optimus: oracle and loss_curve exclude each other; an oracle knows the remaining steps"
            )
        self.oracle = self.wants_truth = oracle
        self.loss_curve = loss_curve
        self.every_s = every_s

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Adds workers by largest marginal gain, from ``snapshot`` and ``curves``.

        ``memory`` and ``rng`` are not used.
        """
        budget = Budget(snapshot)
        jobs = [job for job in snapshot.active.values() if job.spec.preemptible or not job.target]
        for job in jobs:
            if job.target:
                budget.give_back(job)
        plans = [plan for job in jobs if (plan := _least(job, curves, budget)) is not None]
        for plan in plans:
            if plan.curve is not None:
                work = _work_left(plan.job) if self.loss_curve else None
                plan.remaining_steps = plan.curve.remaining_steps(_batch(plan), work)
        _grow(plans, budget)
        proposal = _proposal(jobs, {plan.job.id: plan for plan in plans})
        return replace(proposal, wake_at=snapshot.now + self.every_s) if plans else proposal


def _least(job: JobView, curves: Curves, budget: Budget) -> _Plan | None:
    """The job at the size it begins with; None if that is not left."""
    spec = job.spec
    counts = {role.name: role.min for role in spec.roles}
    curve: Curve | None = None
    if spec.batch is None or not (spec.elastic or len(spec.roles) > 1):
        counts[WORKER] = spec.requested
    else:
        curve = curves[job.id]
        if SERVER in counts and isinstance(curve, ServerSpeed) and curve.measured_sizes < len(SAMPLES):
            sample = SAMPLES[curve.measured_sizes]
            counts[SERVER], counts[WORKER] = (
                _within(spec.role(SERVER), sample[0]),
                _within(spec.worker, sample[1]),
            )
            curve = None
        elif SERVER in counts and not isinstance(curve, ServerSpeed):
            curve = None
    needed = [(role, counts[role.name]) for role in spec.roles]
    gpu_type = budget.type_for(spec, needed, job.target.gpu_type)
    if gpu_type is None:
        return None
    for role, count in needed:
        budget.take(role.demand, count, gpu_type)
    return _Plan(job, counts, gpu_type, curve if curve is not None and curve.fitted else None)


def _work_left(job: JobView) -> float | None:
    """Work until the job's target loss, by its loss curve; None if the curve does not tell."""
    target = stored_target(job.spec.target or "")
    if target is None or target.higher_is_better:
        return None
    curve = fit_loss(job.course)
    reached = None if curve is None else progress_to(curve, target.value)
    return None if reached is None else max(reached.value - (job.work or 0.0), 0.0)


def _within(role: Role, count: int) -> int:
    return min(max(count, role.min), role.max)


def _grow(plans: list[_Plan], budget: Budget) -> None:
    """Adds replicas by gain until none gains or none is left."""
    offers: list[tuple[float, int, str, float]] = []
    for number, plan in enumerate(plans):
        if plan.curve is not None:
            plan.time_s = _time_s(plan, plan.counts, budget)
            best = _best_offer(plan, budget)
            if best is not None:
                offers.append((-best[0], number, best[1], best[2]))
    heapify(offers)
    while offers:
        _, number, role, time_s = offers[0]
        plan = plans[number]
        demand = plan.job.spec.role(role).demand
        if budget.fits(demand, 1, plan.gpu_type):
            budget.take(demand, 1, plan.gpu_type)
            plan.gain_s += plan.time_s - time_s
            plan.counts[role] += 1
            plan.time_s = time_s
            best = _best_offer(plan, budget)
            if best is not None:
                heapreplace(offers, (-best[0], number, best[1], best[2]))
                continue
        heappop(offers)


def _best_offer(plan: _Plan, budget: Budget) -> tuple[float, str, float] | None:
    """(gain per dominant share, role, remaining time with it) of the best replica to add, if any gains."""
    best: tuple[float, str, float] | None = None
    spec = plan.job.spec
    for role in spec.roles:
        count = plan.counts[role.name]
        if count >= (_most_workers(plan) if role.name == WORKER else role.max):
            continue
        if not budget.fits(role.demand, 1, plan.gpu_type):
            continue
        time_s = _time_s(plan, {**plan.counts, role.name: count + 1}, budget)
        share = budget.dominant_share(role.demand)
        gain = (plan.time_s - time_s) / share if share else plan.time_s - time_s
        if gain > 0 and (best is None or gain > best[0]):
            best = (gain, role.name, time_s)
    return best


def _batch(plan: _Plan) -> int:
    spec = plan.job.spec
    assert spec.batch is not None
    return spec.requested_batch or spec.batch.initial


def _most_workers(plan: _Plan) -> int:
    """Beyond this, workers would be left without the least batch a GPU takes."""
    spec = plan.job.spec
    assert spec.batch is not None
    return min(spec.worker.max, max(_batch(plan) // spec.batch.per_gpu_min, spec.worker.min))


def _time_s(plan: _Plan, counts: Mapping[str, int], budget: Budget) -> float:
    """Remaining time with these counts."""
    batch, workers, curve = _batch(plan), counts[WORKER], plan.curve
    assert curve is not None
    if SERVER in counts:
        speed = cast(ServerSpeed, curve).steps_per_s(counts[SERVER], workers, batch)
        return plan.remaining_steps / speed
    per_node = max(budget.largest[plan.gpu_type] // max(plan.job.spec.gpus_per_replica, 1), 1)
    nodes = -(-workers // per_node)
    return plan.remaining_steps * curve.step_time_at(batch, nodes, workers, plan.gpu_type)


def _proposal(jobs: list[JobView], plans: Mapping[str, _Plan]) -> Proposal:
    """Only what differs from the targets, small jobs first."""
    changed: list[tuple[int, str, Allocation]] = []
    reasons: dict[str, Reason] = {}
    for job in jobs:
        plan = plans.get(job.id)
        if plan is None:
            if job.target:
                changed.append((0, job.id, Allocation()))
                reasons[job.id] = Reason(
                    code="preempted", text="Waiting. Jobs that come before it leave no GPU for it."
                )
            continue
        same = plan.gpu_type == job.target.gpu_type
        if job.target and same and all(job.target.count(r) == n for r, n in plan.counts.items()):
            continue
        shares = tuple(
            Share(count=n, role=role, gpu_type=plan.gpu_type if job.spec.role(role).demand.gpus else "")
            for role, n in plan.counts.items()
            if n
        )
        changed.append((sum(plan.counts.values()), job.id, Allocation(shares=shares)))
        reasons[job.id] = _reason(plan)
    changed.sort(key=lambda item: item[0])
    return Proposal(allocations={name: allocation for _, name, allocation in changed}, reasons=reasons)


def _reason(plan: _Plan) -> Reason:
    size = " + ".join(f"{n} {role}s" for role, n in plan.counts.items())
    if plan.curve is None:
        return Reason(code="least-size", text=f"Running with {size}, as requested or until it is measured.")
    numbers = {"remaining_s": round(plan.time_s, 1), "saved_s": round(plan.gain_s, 1)}
    text = (
        f"Running with {size}. It has {format_duration(plan.time_s)} left, "
        f"{format_duration(plan.gain_s)} less than at its smallest size."
    )
    return Reason(code="marginal-gain", text=text, numbers=numbers)
