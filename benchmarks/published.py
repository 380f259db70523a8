"""The published setting of Pollux' simulator, as arguments to ours, and the figures its authors published.

16 nodes x 4 GPUs, decisions every 60 s, 30 s per change of placement, ends of epochs at whole seconds; ncf
fixed at one replica and batch 32768 (README of the data).
"""

from __future__ import annotations

import csv
import os
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.smoke import few
from coadapt.model import JobSpec, Role, parse_cluster
from coadapt.placement.most_free import MostFreePlacer
from coadapt.placement.packed import PackedPlacer
from coadapt.policies._base import Policy, traits_of
from coadapt.policies.optimus import OptimusPolicy
from coadapt.policies.pollux.policy import PolluxPolicy
from coadapt.policies.tiresias import TiresiasPolicy
from coadapt.simulation.engine.interference import FlatInterference
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.engine.training_model import TrainingOptions
from coadapt.simulation.run import Setting, Simulation, simulate
from coadapt.simulation.truth.measured_tables import TableTruth, read_profiles
from coadapt.simulation.truth.oracle_curves import TruthCurves
from coadapt.simulation.truth.profiles import spec_for
from coadapt.store import MemoryLog

#: What the result of a run depends on, besides the policy's own file.
CORE = (
    "model/*.py",
    # of the predictors those that schedulers ask
    "prediction/*.py",
    "prediction/remaining/*.py",
    "prediction/step_time/*.py",
    "configure/*.py",
    "placement/*.py",
    "scheduler/**/*.py",
    "runtime/*.py",
    "simulation/**/*.py",
    "policies/_base.py",
)


def data_dir() -> Path:
    """Where the measurements are; exits with one line where they are not."""
    path = Path(os.environ.get("COADAPT_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not (path / "pollux").is_dir():
        raise SystemExit(f"this benchmark needs the measurements in {path} (or $COADAPT_DATA)")
    return path


@cache
def truths() -> dict[str, TableTruth]:
    """The six measured tasks."""
    return read_profiles(data_dir() / "pollux")


@cache
def published() -> list[dict[str, str]]:
    """Rows of published.csv."""
    with (data_dir() / "pollux" / "published.csv").open() as stream:
        return list(csv.DictReader(stream))


def published_jct(
    experiment: str, policy: str, load: str, workload: int, interval_s: int = 60, interference: float = 0.0
) -> float:
    """The published average JCT of one cell."""
    for row in published():
        same = (row["experiment"], row["policy"], row["load"], int(row["workload"])) == (
            experiment,
            policy,
            load,
            workload,
        )
        if same and int(row["interval_s"]) == interval_s and float(row["interference"]) == interference:
            return float(row["avg_jct_s"])
    raise KeyError((experiment, policy, load, workload, interval_s, interference))


def workload(name: str, *, chooses_size: bool) -> list[tuple[float, str, JobSpec]]:
    """Submissions of a published workload; a policy that chooses sizes gives ncf one replica, as published."""
    jobs = []
    with (data_dir() / "pollux" / "workloads" / f"{name}.csv").open() as stream:
        for row in csv.DictReader(stream):
            task, replicas = row["application"], int(row["num_replicas"])
            spec = spec_for(
                row["name"], truths()[task], task, replicas=replicas, batch=int(row["batch_size"])
            )
            if task == "ncf":
                assert spec.batch is not None
                fixed = msgspec.structs.replace(spec.batch, mode="fixed")
                most = 1 if chooses_size else replicas
                spec = msgspec.structs.replace(spec, roles=(Role(max=most),), requested=most, batch=fixed)
            jobs.append((float(row["time"]), row["name"], spec))
    return list(few(jobs, 4))


def run(
    name: str, policy: Policy, *, interval_s: float = 60, interference: float = 0.0, seed: int = 0
) -> Simulation:
    """One workload in the published setting."""
    setting = Setting(
        interval_s=interval_s,
        change_cost=constant(30.0),
        interference=FlatInterference(interference),
        training=TrainingOptions(report_s=interval_s, resolution_s=1.0),
        seed=seed,
    )
    placer = MostFreePlacer() if traits_of(policy).published_placer == "most-free" else PackedPlacer()
    curves = TruthCurves(truths()) if traits_of(policy).wants_truth else None
    return simulate(
        workload(name, chooses_size=policy.chooses_size),
        parse_cluster("16x4"),
        policy,
        MemoryLog(keep=False),
        placer=placer,
        truths=truths(),
        curves=curves,
        setting=setting,
    )


def policy_of(name: str, options: dict[str, Any]) -> Policy:
    """The published policies by name."""
    if name == "tiresias":
        return TiresiasPolicy(**options)
    if name == "optimus":
        return OptimusPolicy(oracle=True, **options)
    return PolluxPolicy(**options)


def jcts(simulation: Simulation) -> list[float]:
    """Completion times of all jobs; all must have finished."""
    times = [
        job.finished_at - job.submitted_at
        for job in simulation.state.jobs.values()
        if job.finished_at is not None
    ]
    if len(times) != len(simulation.state.jobs):
        raise SystemExit(f"{len(simulation.state.jobs) - len(times)} jobs did not finish")
    return times


def figures(simulation: Simulation) -> dict[str, float]:
    """What a fidelity cell keeps."""
    times = np.array(jcts(simulation))
    return {
        "avg_jct_s": float(times.mean()),
        "p50_jct_s": float(np.median(times)),
        "p99_jct_s": float(np.percentile(times, 99)),
        "max_jct_s": float(times.max()),
        "num_jobs": len(times),
        "decisions": simulation.state.decisions,
        "cpu_s": simulation.cpu_s,
    }
