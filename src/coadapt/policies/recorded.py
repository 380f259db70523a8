"""Replays the starts a trace recorded: what the cluster that wrote it did, under our accounting.

Job j starts at its recorded start, on the GPUs it asked for, and runs to its end; nothing is preempted. If
they are not free at that moment (the trace's cluster was larger, or faster in stopping jobs) it starts as soon as
they are, in order of recorded starts, and its reason says how late. A job without a recorded start is
taken to have started when it was submitted.
"""

from __future__ import annotations

from coadapt.model import Allocation, Reason
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng, as_requested, gpus_needed
from coadapt.policies._ranked import Ranked


class RecordedPolicy(BasePolicy):
    """Starts each job when the trace says it was started."""

    name = "recorded"
    order = 90
    help = "Replays the start times recorded in a trace."
    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Starts the jobs of ``snapshot`` whose recorded start has come; ``curves``, ``memory`` and ``rng`` are not used."""
        ranked, next_at = Ranked(), float("inf")
        late: dict[str, float] = {}
        for job in snapshot.waiting.values():
            start_s = _start_s(job)
            if start_s > snapshot.now:
                next_at = min(next_at, start_s)
            else:
                ranked.add(job, (start_s, job.order))
                late[job.id] = snapshot.now - start_s
        allocations: dict[str, Allocation] = {}
        reasons: dict[str, Reason] = {}
        # only waiting jobs are ranked, so no job can lose GPUs
        for name, gpu_type in ranked.settle(snapshot).items() if late else ():
            allocations[name] = as_requested(snapshot.active[name].spec, gpu_type or "")
            reasons[name] = _started(late[name])
        for name, late_s in late.items():
            if name not in allocations and late_s == 0.0:
                reasons[name] = _waits(snapshot, name)
        return Proposal(
            allocations=allocations, reasons=reasons, wake_at=next_at if next_at < float("inf") else None
        )


def _start_s(job: JobView) -> float:
    recorded = job.spec.recorded
    return job.submitted_at if recorded is None or recorded.start_s is None else recorded.start_s


def _started(late_s: float) -> Reason:
    text = "Running. It started as recorded."
    if late_s > 0:
        text = f"Running. It started {late_s:.0f} s after its recorded start, because no GPUs were free."
    return Reason(code="recorded", text=text, numbers={"late_s": late_s})


def _waits(snapshot: Snapshot, name: str) -> Reason:
    needed, free = gpus_needed(snapshot.active[name].spec), snapshot.free_gpus
    text = f"Waiting. It was recorded to start now, but it needs {needed} GPUs and {free} are free."
    return Reason(code="waits", text=text, numbers={"free": float(free), "needed": float(needed)})
