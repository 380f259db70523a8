"""Tiresias: least attained service first, in few queues; nothing needs to be known about a job.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning" (NSDI 2019): discretised 2D-LAS. With
service a_j = GPUs x time received so far and thresholds h_1 < h_2 < ... (GPU-seconds), job j is in queue

    q_j = number of thresholds with h <= a_j

Jobs are ranked by (queue, time they entered it). Each decision walks them by rank and runs whatever fits
at its requested size; the others wait or are preempted (``_ranked.py``). A job enters queue 0 when it is submitted.

``promote_after`` = k (the paper's PROMOTEKNOB): a preempted job that has waited k times as long as it has
run goes back to the end of queue 0 and its service counts from 0 again. Off by default.

``gittins``: 2D-Gittins, for when the distribution of service is known (``samples``, GPU-seconds, or else learned
from jobs that ended). Rank = Gittins index at a_j, largest first (``predict.gittins``), in one queue
(``discretised=False``) or within each queue (default, as in the released simulator). Before any job has ended the
index is not known; until then the order is that of 2D-LAS: by queue, or by service if not discretised.

Defaults are those of the simulator published with Pollux: two queues, 16 GPU-hours. The released Tiresias
simulator uses thresholds=(3250, 7200), and 3250 GPU-seconds as the quantum of the index.

Where we deviate: jobs that may not be preempted keep their GPUs, and the walk divides the rest; the paper
looks at services continuously, so in event mode we ask to be woken when the next one crosses its threshold.
Where the paper ranks a queue by start time (a job that was preempted goes behind those that run), we keep
the published Pollux setting: time of entry, never changed by a preemption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coadapt.errors import InputError
from coadapt.model import Allocation, Reason
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._base import Curves, Memory, Proposal, Rng
from coadapt.policies._gittins import Services
from coadapt.policies._queues import Queues, Rules
from coadapt.policies._ranked import Ranked
from coadapt.policies._requested import as_requested


class TiresiasPolicy:
    """``thresholds`` in GPU-seconds; ``queues`` uses only the first ``queues - 1`` of them."""

    placer = "packed"
    #: Of the simulator published with Pollux; the paper places by model skew (placer "skew").
    published_placer = "most-free"
    adapts_batch = False
    chooses_size = False

    def __init__(
        self,
        *,
        thresholds: Sequence[float] = (57600.0,),
        queues: int | None = None,
        promote_after: float | None = None,
        gittins: bool = False,
        discretised: bool = True,
        samples: Iterable[float] = (),
        quantum_gpu_s: float = 3250.0,
    ) -> None:
        limits = tuple(thresholds)
        if queues is not None:
            if not 1 <= queues <= len(limits) + 1:
                raise InputError(f"{queues} queues need {queues - 1} thresholds; {len(limits)} were given")
            limits = limits[: queues - 1]
        if any(h <= 0 for h in limits) or sorted(set(limits)) != list(limits):
            raise InputError(f"thresholds {limits} must be positive and rise")
        if promote_after is not None and promote_after <= 0:
            raise InputError(f"promote_after {promote_after} must be positive")
        if gittins and not discretised:
            limits = ()
        self.rules = Rules(thresholds=limits, promote_after=promote_after)
        self.gittins, self.discretised = gittins, discretised
        self.samples, self.quantum_gpu_s = tuple(samples), quantum_gpu_s

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """See ``Policy``."""
        queues = self._queues(memory.warm)
        patch = queues.update(snapshot, memory.kept)
        ranked, services = queues.ranked, None
        if self.gittins:
            services = Services(memory.kept, self.samples)
            services.note_ended(snapshot)
            ranked = self._by_index(snapshot, queues, services)
        changed = ranked.settle(snapshot)
        allocations: dict[str, Allocation] = {}
        reasons: dict[str, Reason] = {}
        for name, gpu_type in changed.items():
            job = snapshot.active[name]
            allocations[name] = Allocation() if gpu_type is None else as_requested(job.spec, gpu_type)
            reasons[name] = _reason(job, queues.queue_of(name), gpu_type, snapshot.now)
        if services is not None:
            services.note_started((n for n, gpu_type in changed.items() if gpu_type is not None), snapshot)
            patch |= services.patch
        return Proposal(
            allocations=in_order(allocations, ranked),
            reasons=reasons,
            memory=patch,
            warm=(queues, queues.version) if services is None else None,
            wake_at=queues.commit(snapshot, changed),
        )

    def _queues(self, warm: Any) -> Queues:
        """The queues as the last decision left them; new ones if there are none or they have moved on."""
        if isinstance(warm, tuple) and isinstance(warm[0], Queues) and warm[0].version == warm[1]:
            return warm[0]
        return Queues(self.rules)

    def _by_index(self, snapshot: Snapshot, queues: Queues, services: Services) -> Ranked:
        """All jobs anew, for every running job's index has moved."""
        index, jobs = services.index(self.quantum_gpu_s), list(snapshot.active.values())
        attained = [job.attained_gpu_s(snapshot.now) for job in jobs]
        if index is not None:
            worth = index(attained).tolist()
        else:
            worth = [0.0 if self.discretised else -service for service in attained]
        ranked = Ranked()
        for job, value in zip(jobs, worth, strict=True):
            if job.spec.preemptible or not job.target:
                queue, *rest = queues.rank_of(job)
                ranked.add(job, (queue, -value, *rest))
        return ranked


def in_order(allocations: dict[str, Allocation], ranked: Ranked) -> dict[str, Allocation]:
    """By rank, which is the order the placer gives out nodes in."""
    if len(allocations) < 2:
        return allocations
    entries = ranked.entries
    return {name: allocations[name] for name in sorted(allocations, key=lambda n: entries[n].rank)}


def _reason(job: JobView, queue: int, gpu_type: str | None, now: float) -> Reason:
    hours = job.attained_gpu_s(now) / 3600
    numbers: dict[str, Any] = {"queue": queue, "service_gpu_h": round(hours, 4)}
    if gpu_type is None:
        return Reason(
            code="preempted", text=f"jobs ranked before queue {queue} need its GPUs", numbers=numbers
        )
    return Reason(
        code="started", text=f"next in queue {queue} that fits, {hours:.2f} GPU-h so far", numbers=numbers
    )
