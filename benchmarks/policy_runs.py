"""Runs of our policy and of Pollux that ``benchmarks.policy`` compares: each a cell, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from benchmarks.cells import cell, source_hash
from benchmarks.published import CORE, data_dir, truths, workload
from benchmarks.smoke import either, few
from coadapt.model import Cluster, JobSpec, Node, parse_cluster
from coadapt.placement._base import Placer
from coadapt.placement.packed import PackedPlacer
from coadapt.placement.tidy import TidyPlacer
from coadapt.policies._base import Policy
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.policies.pollux.policy import PolluxPolicy
from coadapt.prediction.remaining.past_jobs import Pool
from coadapt.report import History, finish_time_fairness
from coadapt.scheduler import FittedCurves
from coadapt.simulation.case import AloneTimes
from coadapt.simulation.engine.interference import FlatInterference, LinkSharing
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.engine.training_model import TrainingOptions
from coadapt.simulation.generate import generate
from coadapt.simulation.run import Setting, simulate
from coadapt.store import MemoryLog

GENERATED = tuple(range(1, 21))
#: What rho is computed by.
FAIR = ("simulation/case.py", "report/fairness.py", "report/cluster_history.py", "report/job_history.py")
#: What our policy's runs depend on; what Pollux' do: its curves are fitted by the published method alone.
OURS = (
    *CORE,
    *FAIR,
    "policies/coadapt/policy.py",
    "policies/coadapt/knapsack.py",
    "policies/coadapt/offers.py",
    "policies/coadapt/offers.py",
    "policies/coadapt/priorities.py",
    "policies/coadapt/worth.py",
    "policies/coadapt/priorities.py",
    "policies/coadapt/reasons.py",
    "policies/coadapt/fluid_forecast.py",
    "policies/_base.py",
)
#: Pollux is fitted by the published step-time model and knows no pool, no noise model and no remaining work.
THEIRS = (
    *FAIR,
    "model/*.py",
    "prediction/step_time/pollux.py",
    "prediction/step_time/pollux.py",
    "prediction/step_time/step_table.py",
    "prediction/gradient_noise.py",
    "configure/best_batch.py",
    "configure/curve.py",
    "placement/packed.py",
    "scheduler/[!c]*.py",
    "scheduler/cycle.py",
    "runtime/*.py",
    "simulation/**/*.py",
    "policies/pollux/policy.py",
    "policies/pollux/genetic_search.py",
    "policies/pollux/genetic_search.py",
    "policies/_base.py",
)
Submissions = Sequence[tuple[float, str, JobSpec]]


@cache
def submissions(name: str) -> Submissions:
    """A published workload (``tuned-1.0x-1``), or ``generated-SEED``: odd seeds have no very long jobs."""
    if not name.startswith("generated-"):
        return few(workload(name, chooses_size=True), 2)
    seed = int(name.split("-")[1])
    drawn = generate(seed, profiles=truths(), long_jobs=seed % 2 == 0)
    # one user, as in the published workloads: what shares between users cost is measured by ``benchmarks.trust``
    return few([(at, spec.name, msgspec.structs.replace(spec, user="")) for at, spec in drawn], 2)


def run(policy: str, name: str, **options: Any) -> dict[str, Any]:
    """The cell of one run: JCT by job, and what else was seen. ``options``: see ``_run``."""
    sources = source_hash(THEIRS if policy == "pollux" else OURS, setting=("policy_runs.py", "published.py"))
    if policy == "pollux" and not name.startswith("generated"):
        data_dir()
    arguments = {"policy": policy, "workload": name, **options}
    return cell("policy", arguments, sources, lambda: _run(policy, name, **options))


def _run(
    policy: str,
    name: str,
    *,
    interval_s: float | None = 60.0,
    change_s: float = 30.0,
    interference: float = 0.0,
    pool_from: str = "",
    learns: bool = True,
    lengths: str = "declared",
    objective: str = "jct",
    links: str = "",
    placement: str = "tidy",
    fairness: bool = False,
    noise: float = 0.0,
) -> dict[str, Any]:
    made: Policy
    placer: Placer = PackedPlacer()
    curves = None
    if policy == "pollux":
        search: dict[str, Any] = either({"population": 4, "generations": 2}, {})
        made = PolluxPolicy(restart_s=change_s, **search)
    else:
        made = CoadaptPolicy(objective=objective)  # type: ignore[arg-type]
        placer = {"tidy": TidyPlacer, "blind": _blind, "packed": PackedPlacer}[placement]()
        curves = FittedCurves(learns=learns)
    cluster = _cluster(links)
    history = History()
    done = simulate(
        _declaring(submissions(name), lengths),
        cluster,
        made,
        MemoryLog(keep=False),
        placer=placer,
        truths=truths(),
        curves=curves,
        setting=Setting(
            interval_s=interval_s,
            change_cost=constant(change_s),
            interference=LinkSharing() if links else FlatInterference(interference),
            training=TrainingOptions(
                report_s=interval_s or 30.0,
                resolution_s=1.0,
                noise=noise,
                # where reports are noisy, some placements are slow as well
                straggler_chance=0.05 if noise else 0.0,
            ),
        ),
        pool=_pool(pool_from) if pool_from else None,
        on_record=history.add if fairness else None,
    )
    jobs = done.state.jobs
    unfinished = [job.id for job in jobs.values() if job.finished_at is None]
    if unfinished:
        raise SystemExit(f"{name} under {policy}: {len(unfinished)} jobs did not finish")
    result: dict[str, Any] = {
        "jct_s": {job.id: (job.finished_at or 0.0) - job.submitted_at for job in jobs.values()},
        "gpu_h": {job.id: job.attained_gpu_s(done.state.now) / 3600 for job in jobs.values()},
        "changes": sum(job.changes for job in jobs.values()),
        "decisions": done.state.decisions,
        "decision_ms": done.decision_ms,
        "cpu_s": done.cpu_s,
    }
    if fairness:
        alone = AloneTimes(truths(), cluster, chooses_size=True, restart_s=change_s)
        result["rho"] = finish_time_fairness(history, alone.of(history))
    return result


def _blind() -> Placer:
    """Our placement as if all links were alike."""
    return TidyPlacer(bandwidth=False)


def _cluster(links: str) -> Cluster:
    """16 x 4; ``links``: "fast,slow,slowest" in Gbit/s, nodes take turns."""
    plain = parse_cluster("16x4")
    if not links:
        return plain
    speeds = [float(each) * 1e9 / 8 for each in links.split(",")]
    nodes: list[Node] = [
        msgspec.structs.replace(node, link_bytes_per_s=speeds[at % len(speeds)])
        for at, node in enumerate(plain.nodes)
    ]
    return Cluster(nodes=tuple(nodes))


def _declaring(jobs: Submissions, lengths: str) -> Submissions:
    """Jobs that declare the truth, nothing ("unknown"), or a wrong size of their data ("wrong-SIGMA-DRAW"): the truth times a
    lognormal factor, fixed per job. All that is derived from it is wrong as well, what past jobs had declared included."""
    if lengths == "declared":
        return jobs
    if lengths == "unknown":
        return [(at, job, msgspec.structs.replace(spec, epochs=None)) for at, job, spec in jobs]
    _, sigma, draw = lengths.split("-")
    rng = np.random.default_rng((7, int(draw), len(jobs)))
    factors = np.exp(float(sigma) * rng.normal(size=len(jobs))).tolist()
    return [
        (at, job, msgspec.structs.replace(spec, data_size=max(round((spec.data_size or 0) * factor), 1)))
        for (at, job, spec), factor in zip(jobs, factors, strict=True)
    ]


@cache
def _pool(name: str) -> Pool:
    """What is known after another workload was run."""
    setting = Setting(interval_s=None, training=TrainingOptions(report_s=30.0, resolution_s=1.0))
    done = simulate(
        submissions(name),
        parse_cluster("16x4"),
        CoadaptPolicy(),
        MemoryLog(keep=False),
        placer=TidyPlacer(),
        truths=truths(),
        setting=setting,
    )
    return done.state.pool
