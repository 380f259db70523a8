"""Two days of recorded arrivals on 64 GPUs, 30% of the jobs not preemptible: are reservations kept, and what do they cost?

Jobs of Philly and of ITP (``philly/philly.csv``, ``itp/jobs.csv.gz`` of the measurements): consecutive ones from a drawn place, as many as are 0.9 of the
capacity, their arrivals stretched to 48 hours. Sizes are those recorded, up to 64 GPUs; four users in turn. 30% of the jobs cannot be preempted and have
a time limit of 1.1 to 3 times their run. Decisions in 60 s rounds. A start counts as late if it is after the latest start that was promised when the reservation was made; a
reserved job whose moment comes at once counts as promised for that decision.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any

import numpy as np

from benchmarks.published import data_dir
from benchmarks.smoke import either
from coadapt.model import JobSpec, Resources, Role, parse_cluster
from coadapt.model.snapshot import Snapshot
from coadapt.placement.tidy import TidyPlacer
from coadapt.policies import Curves, Memory, Policy, Proposal, Rng
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.policies.coadapt.reservations import RESERVATIONS
from coadapt.scheduler.state.job_state import JobState
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.run import Setting, simulate
from coadapt.store import MemoryLog

TRACES = ("philly", "itp")
GPUS, LOAD, HOURS, USERS = 64, 0.9, 48.0, 4
FIRM, LIMIT = 0.3, (1.1, 3.0)
ROUND_S, CHANGE_S = 60.0, 30.0
#: Longer runs are cut: one of them would be a share of all two days' work.
_LONGEST_S = 12 * 3600.0


@cache
def recorded(trace: str) -> list[tuple[float, float, int]]:
    """(submission, run time, GPUs) of every job, in order of submission."""
    return sorted(_itp() if trace == "itp" else _philly())


def _itp() -> Iterator[tuple[float, float, int]]:
    with gzip.open(data_dir() / "itp" / "jobs.csv.gz", "rt") as stream:
        for row in csv.DictReader(stream):
            yield float(row["submission_s"]), float(row["duration_s"]), int(row["gpus"])


def _philly() -> Iterator[tuple[float, float, int]]:
    with (data_dir() / "philly" / "philly.csv").open() as stream:
        for row in csv.DictReader(stream):
            at = datetime.fromisoformat(row["timestamp"]).timestamp()
            yield at, float(row["duration"]), int(row["num_gpus"])


def jobs_of(trace: str, seed: int) -> list[tuple[float, str, JobSpec]]:
    """The jobs of one run."""
    rng = np.random.default_rng((19, seed, TRACES.index(trace)))
    hours = either(1.0, HOURS)
    everything = [
        (at, min(run_s, _LONGEST_S), gpus)
        for at, run_s, gpus in recorded(trace)
        if run_s >= 1 and 1 <= gpus <= GPUS
    ]
    first = int(rng.integers(0, len(everything) // 2))
    chosen, work = [], 0.0
    for each in everything[first:]:
        if work >= LOAD * GPUS * hours * 3600:
            break
        chosen.append(each)
        work += each[1] * each[2]
    start, end = chosen[0][0], chosen[-1][0]
    found = []
    for number, (at, run_s, gpus) in enumerate(chosen):
        firm = bool(rng.random() < FIRM)
        limit_s = run_s * float(rng.uniform(*LIMIT)) if firm else None
        spec = JobSpec(
            name=f"{trace}-{number}",
            user=f"u{number % USERS}",
            roles=(Role(min=gpus, max=gpus, demand=Resources(gpus=1)),),
            requested=gpus,
            duration_s=run_s,
            preemptible=not firm,
            time_limit_s=limit_s,
        )
        found.append(((at - start) / max(end - start, 1.0) * hours * 3600, spec.name, spec))
    return found


class Promises:
    """Passes everything to a policy, and notes the first start that each job is promised."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.placer = policy, policy.placer
        self.adapts_batch, self.chooses_size = policy.adapts_batch, policy.chooses_size
        self.knows_quotas = True
        self.first: dict[str, float] = {}
        self.at_once = 0

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """See ``Policy``."""
        proposal = self.policy.decide(snapshot, curves, memory, rng)
        for name, made in (proposal.memory.get(RESERVATIONS) or {}).items():
            if made["by"] is not None:
                self.first.setdefault(name, made["by"])
        for name, reason in proposal.reasons.items():
            if reason.code == "reserved":
                self.first.setdefault(name, snapshot.now)
                self.at_once += name not in memory.kept.get(RESERVATIONS, {})
        return proposal


def backlog(trace: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """JCT of all jobs, and how many started later than promised."""
    promises = Promises(CoadaptPolicy(**options))
    done = simulate(
        jobs_of(trace, seed),
        parse_cluster("8x8"),
        promises,
        MemoryLog(keep=False),
        placer=TidyPlacer(),
        setting=Setting(interval_s=ROUND_S, change_cost=constant(CHANGE_S)),
    )
    jobs = done.state.jobs
    late_s = [_started(jobs[name]) - at for name, at in promises.first.items()]
    return {
        "jct_s": {job.id: (job.finished_at or np.inf) - job.submitted_at for job in jobs.values()},
        "longest_wait_s": max(_started(job) - job.submitted_at for job in jobs.values()),
        "promised": len(late_s),
        "at_once": promises.at_once,
        "late": sum(late > 0 for late in late_s),
        "latest_s": max(late_s, default=0.0),
        "decision_ms": done.decision_ms,
    }


def _started(job: JobState) -> float:
    return np.inf if job.started_at is None else job.started_at
