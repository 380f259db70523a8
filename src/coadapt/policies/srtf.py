"""Shortest remaining time first, preemptive, at the requested sizes; a reference that knows how long jobs take.

Classical (Schrage 1968); in GPU clusters the baseline of Tiresias (Gu et al., NSDI 2019), whose SRSF weighs
time by GPUs (``service=True``). With r_j the seconds job j still needs at its requested size, jobs are ranked by

    r_j          or, with ``service``, by      r_j x GPUs of j

and each decision runs whatever fits by rank and preempts the rest (``_ranked``). r_j is remaining steps x step
time of the job's curve at its requested batch size; for a job known by its duration, the duration less the
time its GPUs were held.

Where we deviate: a job that was never measured goes first, since what it needs can only be learned by
running it; a job whose end is unknown goes last, in order of submission. Change costs are not weighed.
"""

from __future__ import annotations

import math
from typing import ClassVar

from coadapt.model import Allocation, Reason
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng, as_requested, gpus_needed
from coadapt.policies._ranked import Ranked
from coadapt.policies.tiresias import in_order
from coadapt.units import format_duration


class SrtfPolicy(BasePolicy):
    """``service``: rank by remaining GPU-seconds instead of seconds."""

    name = "srtf"
    order = 30
    help = "Shortest remaining time first, preemptive, at the requested sizes; a reference that knows how long jobs take."
    option_help: ClassVar[dict[str, str]] = {
        "service": "rank by remaining GPU-seconds instead of seconds",
    }
    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def __init__(self, *, service: bool = False) -> None:
        self.service = service

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Ranks the jobs of ``snapshot`` by the time they still need by ``curves``.

        ``memory`` and ``rng`` are not used.
        """
        if not snapshot.waiting:
            return Proposal()
        per_node = max((view.node.gpus for view in snapshot.nodes.values()), default=1)
        ranked = Ranked()
        remaining: dict[str, float] = {}
        for job in snapshot.active.values():
            if job.target and not job.spec.preemptible:
                continue
            left_s = remaining[job.id] = remaining_s(job, curves, snapshot.now, per_node)
            ranked.add(job, (left_s * gpus_needed(job.spec) if self.service else left_s, job.order))
        changed = ranked.settle(snapshot)
        allocations, reasons = {}, {}
        for name, gpu_type in changed.items():
            spec = snapshot.active[name].spec
            allocations[name] = Allocation() if gpu_type is None else as_requested(spec, gpu_type)
            reasons[name] = _reason(remaining[name], gpu_type)
        return Proposal(allocations=in_order(allocations, ranked), reasons=reasons)


def remaining_s(job: JobView, curves: Curves, now: float, gpus_per_node: int) -> float:
    """Returns the seconds that a job still needs at its requested size; 0 if never measured, inf if its end is not known.

    Args:
        job: the job.
        curves: scaling curves by job id.
        now: time of the decision.
        gpus_per_node: GPUs of a node, from which the number of nodes follows.
    """
    spec = job.spec
    if spec.batch is None:
        if spec.duration_s is None:
            return math.inf
        held_s = job.attained_gpu_s(now) / max(gpus_needed(spec), 1)
        return max(spec.duration_s - held_s, 0.0)
    curve = curves[job.id]
    if not curve.fitted:
        return 0.0
    batch = spec.requested_batch or spec.batch.initial
    nodes = -(-spec.requested_gpus // gpus_per_node)
    gpu_type = job.target.gpu_type or (spec.gpu_types[0] if spec.gpu_types else "gpu")
    return curve.remaining_steps(batch) * curve.step_time_at(batch, nodes, spec.requested, gpu_type)


def _reason(left_s: float, gpu_type: str | None) -> Reason:
    numbers = {"remaining_s": round(left_s, 3)} if left_s < math.inf else {}
    left = (
        f"It has {format_duration(left_s)} left." if left_s < math.inf else "Its remaining time is not known."
    )
    if gpu_type is None:
        return Reason(code="preempted", text=f"Waiting. Shorter jobs need its GPUs. {left}", numbers=numbers)
    return Reason(code="started", text=f"Running as the shortest job that fits. {left}", numbers=numbers)
