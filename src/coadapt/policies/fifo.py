"""First in, first out, with backfill.

Jobs start in order of priority, then of submission, at the size their users asked for, and run to
their end. With ``backfill`` (default) a job that does not fit is passed over by smaller ones behind it,
as in SkyPilot and dstack; without, it blocks the queue. Nothing is reserved for the job that was passed over, so a
large one may wait as long as small ones keep coming.
"""

from __future__ import annotations

from typing import ClassVar

from coadapt.model import Allocation
from coadapt.model.snapshot import JobView, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng, as_requested, gpus_needed


class FifoPolicy(BasePolicy):
    """Order of priority and submission, no preemption."""

    name = "fifo"
    order = 20
    help = "First in, first out, with backfill."
    option_help: ClassVar[dict[str, str]] = {
        "backfill": "smaller jobs behind a job that does not fit may start before it",
    }
    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def __init__(self, *, backfill: bool = True) -> None:
        self.backfill = backfill

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Starts the waiting jobs of ``snapshot`` in order of priority and submission.

        ``curves``, ``memory`` and ``rng`` are not used.
        """
        free = snapshot.free_gpus
        started: dict[str, Allocation] = {}
        if not free or not snapshot.waiting:
            return Proposal()
        for job in sorted(snapshot.waiting.values(), key=_rank):
            needed = gpus_needed(job.spec)
            if needed <= free:
                started[job.id] = as_requested(job.spec)
                free -= needed
                if not free:
                    break
            elif not self.backfill:
                break
        return Proposal(allocations=started)


def _rank(job: JobView) -> tuple[int, int]:
    return (-job.spec.priority, job.order)
