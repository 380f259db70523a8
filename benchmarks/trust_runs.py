"""Runs of published workloads with users, for ``benchmarks.trust``: each a cell, computed once.

60 s rounds and 30 s changes on 16 nodes x 4 GPUs, as in ``benchmarks.policy``. Jobs belong to users in turn, or each to its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from benchmarks.cells import cell, source_hash
from benchmarks.policy_runs import FAIR, submissions
from benchmarks.published import CORE, truths
from benchmarks.trust_world import DueOf, Meter, Outcome
from coadapt.model import parse_cluster
from coadapt.model.snapshot import HOLDING, Snapshot
from coadapt.placement.tidy import TidyPlacer
from coadapt.policies import Curves
from coadapt.policies._base import gpus_needed
from coadapt.policies.coadapt.offers import offers
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.policies.coadapt.shares import claims, dues
from coadapt.report import History, finish_time_fairness
from coadapt.simulation.case import AloneTimes
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.engine.training_model import TrainingOptions
from coadapt.simulation.run import Setting, simulate
from coadapt.store import MemoryLog

_SOURCES = (*CORE, *FAIR, "policies/coadapt/*.py")
CHANGE_S, ROUND_S = 30.0, 60.0


def due_by(weights: Mapping[str, float]) -> DueOf:
    """GPUs that users are due by the policy's own definition: by weight, water-filled, no more than their jobs use well."""
    return lambda snapshot, curves: due_now(snapshot, curves, weights)


def due_now(
    snapshot: Snapshot, curves: Curves, weights: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The same, at one decision."""
    if not snapshot.nodes:
        return {}
    jobs = [job for job in snapshot if gpus_needed(job.spec)]
    stays = [job for job in jobs if job.target and job.phase in HOLDING and not job.spec.preemptible]
    others = [job for job in jobs if job not in stays]
    if not others:
        return {}
    found = offers(snapshot, curves, others, growth=4.0)
    return dues(claims(found, stays, weights or {}, {}, {}, snapshot.now), sum(found.capacity))


def run(workload: str, *, users: int, rho: bool = False, **options: Any) -> dict[str, Any]:
    """The cell of one run. ``users``: jobs belong to so many users in turn; 0: each to its own. ``options``: of the policy."""
    sources = source_hash(
        _SOURCES, setting=("trust_runs.py", "trust_world.py", "policy_runs.py", "published.py")
    )
    arguments = {"workload": workload, "users": users, "rho": rho, **options}
    return cell("trust", arguments, sources, lambda: _run(workload, users=users, rho=rho, **options))


def _run(workload: str, *, users: int, rho: bool, **options: Any) -> dict[str, Any]:
    jobs = [
        (at, name, msgspec.structs.replace(spec, user=f"u{number % users}" if users else name))
        for number, (at, name, spec) in enumerate(submissions(workload))
    ]
    cluster, history = parse_cluster("16x4"), History()
    meter = Meter(CoadaptPolicy(**options), due_now)
    done = simulate(
        jobs,
        cluster,
        meter,
        MemoryLog(keep=False),
        placer=TidyPlacer(),
        truths=truths(),
        setting=Setting(
            interval_s=ROUND_S,
            change_cost=constant(CHANGE_S),
            training=TrainingOptions(report_s=ROUND_S, resolution_s=1.0),
        ),
        on_record=history.add if rho else None,
    )
    states = done.state.jobs
    unfinished = [job.id for job in states.values() if job.finished_at is None]
    if unfinished:
        raise SystemExit(f"{workload}: {len(unfinished)} jobs did not finish")
    outcome = Outcome(done.state, meter.samples)
    worst = {user: outcome.worst_hour(user) for user in meter.samples[-1].had}
    result: dict[str, Any] = {
        "jct_s": {job.id: (job.finished_at or 0.0) - job.submitted_at for job in states.values()},
        "changes": sum(job.changes for job in states.values()),
        "decisions": done.state.decisions,
        "decision_ms": done.decision_ms,
        "worst_hour": {user: each for user, each in worst.items() if each is not None},
    }
    if rho:
        alone = AloneTimes(truths(), cluster, chooses_size=True, restart_s=CHANGE_S)
        result["rho"] = finish_time_fairness(history, alone.of(history))
    return result
