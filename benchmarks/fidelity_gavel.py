"""Do we reproduce Gavel's simulator? ``python -m benchmarks.fidelity_gavel [--published] [--workers N]``

Ten policies on its 96-job trace `continuous` (8 V100, 16 P100, 24 K80; rounds of 360 s; seed 0), against runs of the released
simulator: average JCT and makespan within 2%, the largest rho (JCT over the same job's under `isolated`) within 5%. Policies
without a degenerate program are equal for every job. Gandiva draws its pairs: the released run lies in the range of five seeds.
``--published``: AlloX on the authors' generated jobs (seed 42, one job every 4,500 s), to 1e-6: minutes of CPU time.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from typing import Any

from benchmarks import published as setting
from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.smoke import either
from coadapt.model import JobFinished, JobSpec, Record, parse_cluster
from coadapt.plugins import POLICIES
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.run import Setting, simulate
from coadapt.simulation.truth.oracle_curves import TruthCurves
from coadapt.simulation.truth.rate_table import RateTruth, rate_file, read_rates
from coadapt.store import MemoryLog

Cell = dict[str, Any]
CLUSTER = "2x4:v100,4x4:p100,3x8:k80"
#: Of the published sweeps: 36 GPUs of each type.
LARGE = "9x4:v100,9x4:p100,9x4:k80"
ROUND_S = 360.0
#: Policies by their names in the released code.
NAMES = {
    "isolated": "gavel-isolated",
    "fifo": "gavel-fifo-agnostic",
    "fifo_perf": "gavel-fifo",
    "max_min_fairness": "gavel-agnostic",
    "max_min_fairness_perf": "gavel",
    "finish_time_fairness": "gavel-ftf-agnostic",
    "finish_time_fairness_perf": "gavel-ftf",
    "max_sum_throughput_perf": "gavel-throughput",
    "min_total_duration_perf": "gavel-makespan",
    "gandiva": "gandiva",
}
#: Without measured results: shown.
OTHERS = (
    "gavel-packed",
    "gavel-fifo-packed",
    "gavel-cost",
    "gavel-cost-slo",
    "gavel-water-filling",
    "gavel-hierarchical",
)
SEEDS = 5
PUBLISHED_ALLOX_S = 59_770.441018


@cache
def truths() -> dict[str, RateTruth]:
    """The rate table."""
    found = rate_file(setting.data_dir() / "gavel")
    if found is None:
        raise SystemExit(f"this benchmark needs gavel/throughputs.csv.gz in {setting.data_dir()}")
    return read_rates(found)


def continuous() -> list[tuple[float, str, JobSpec]]:
    """The 96 jobs."""
    with (setting.data_dir() / "gavel" / "jobs-continuous.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))[: either(12, None)]
    return [
        (
            float(r["arrival_s"]),
            r["job"],
            truths()[r["model"]].spec(r["job"], int(r["gpus"]), float(r["total_steps"])),
        )
        for r in rows
    ]


def run(
    jobs: list[tuple[float, str, JobSpec]], policy: str, cluster: str, *, seed: int = 0
) -> dict[str, float]:
    """JCT of every job."""
    arrived = {job: at for at, job, _ in jobs}
    jct_s: dict[str, float] = {}

    def note(record: Record) -> None:
        if isinstance(record.event, JobFinished):
            jct_s[record.event.job] = record.at - arrived[record.event.job]

    simulate(
        jobs,
        parse_cluster(cluster),
        POLICIES.make(policy, seed=seed),
        MemoryLog(keep=False),
        truths=truths(),
        curves=TruthCurves(truths()),
        setting=Setting(change_cost=constant(0.0), round_s=ROUND_S),
        on_record=note,
    )
    return jct_s


def compute(arguments: Cell) -> Cell:
    """Runs one cell, or finds it saved."""
    sources = source_hash((*setting.CORE, "policies/gavel/*.py"), setting=["fidelity_gavel.py"])
    if arguments["workload"] == "continuous":
        return cell(
            "gavel",
            arguments,
            sources,
            lambda: run(continuous(), arguments["policy"], CLUSTER, seed=arguments["seed"]),
        )
    return cell("gavel-published", arguments, sources, lambda: {"avg_jct_s": _published_allox()})


def _published_allox() -> float:
    """Average JCT of jobs 4000 to 4999 while later ones keep arriving."""
    jobs, last = [], either(150, 5300)
    with gzip.open(setting.data_dir() / "gavel" / "generated-single.csv.gz", "rt", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["seed"] == "42" and int(row["job"]) < last:
                spec = truths()[row["model"]].spec(row["job"], 1, float(row["total_steps"]))
                jobs.append((float(row["unit_arrival"]) * 4500.0, row["job"], spec))
    found = run(jobs, "allox", LARGE, seed=42)
    measured = [
        seconds for job, seconds in found.items() if either(100, 4000) <= int(job) < either(120, 5000)
    ]
    return sum(measured) / len(measured)


def measured() -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Results of the released simulator: JCT by policy and job, and the summary by policy."""
    jobs: dict[str, dict[str, float]] = {}
    with (setting.data_dir() / "gavel" / "measured-jobs.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            jobs.setdefault(row["policy"], {})[row["job"]] = float(row["jct_s"])
    with (setting.data_dir() / "gavel" / "measured.csv").open(newline="") as stream:
        summary = {
            row["policy"]: {key: float(row[key]) for key in ("avg_jct_s", "makespan_s")}
            for row in csv.DictReader(stream)
        }
    return jobs, summary


def figures(jct_s: Cell, alone: Cell) -> dict[str, float]:
    """Average JCT, makespan and largest rho."""
    ends = {job: at + jct_s[job] for at, job, _ in continuous() if job in jct_s}
    return {
        "avg_jct_s": sum(jct_s.values()) / len(jct_s),
        "makespan_s": max(ends.values()),
        "rho": max(jct_s[job] / alone[job] for job in jct_s),
    }


def judge(results: dict[tuple[str, int], Cell]) -> bool:
    """Prints ours beside the released simulator's, and the targets."""
    jobs, summary = measured()
    alone = results["gavel-isolated", 0]
    rows: list[Row] = []
    print(
        "| policy | avg JCT: released | ours | off | makespan: released | ours | off | max rho: released | ours | off | jobs equal |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, policy in NAMES.items():
        ours = figures(results[policy, 0], alone)
        theirs = {
            **summary[name],
            "rho": max(jobs[name][j] / jobs["isolated"][j] for j in results[policy, 0]),
        }
        off = {key: ours[key] / theirs[key] - 1 for key in ours}
        equal = sum(abs(jobs[name][j] - s) < 1e-3 for j, s in results[policy, 0].items())
        cells = [
            f"{theirs[k]:.{d}f} | {ours[k]:.{d}f} | {off[k]:+.2%}"
            for k, d in (("avg_jct_s", 1), ("makespan_s", 1), ("rho", 3))
        ]
        print(f"| {name} ({policy}) | {' | '.join(cells)} | {equal} of {len(jobs[name])} |")
        if policy == "gandiva":
            seeds = [figures(results[policy, s], alone)["avg_jct_s"] for s in range(SEEDS)]
            outside = max(min(seeds) / theirs["avg_jct_s"] - 1, 1 - max(seeds) / theirs["avg_jct_s"], 0.0)
            note = f"{min(seeds):.0f} to {max(seeds):.0f} s"
            rows.append(
                Row(
                    f"gandiva: average JCT outside the range of {SEEDS} seeds",
                    100 * outside,
                    0,
                    unit="%",
                    note=note,
                )
            )
            continue
        for key, must, what in (
            ("avg_jct_s", 2, "average JCT"),
            ("makespan_s", 2, "makespan"),
            ("rho", 5, "max rho"),
        ):
            rows.append(Row(f"{name}: {what}, off by", 100 * abs(off[key]), must, unit="%"))
    for policy in OTHERS:
        if (policy, 0) in results:
            ours = figures(results[policy, 0], alone)
            print(
                f"| {policy} | - | {ours['avg_jct_s']:.1f} | - | - | {ours['makespan_s']:.1f} | - | - | {ours['rho']:.3f} | - | - |"
            )
    return show("Fidelity to Gavel's released simulator (workload continuous)", rows)


def main() -> int:
    """Runs, prints, and returns 1 where a must falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", action="store_true", help="AlloX on the authors' generated jobs only")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.published:
        ours = compute({"workload": "generated-single", "policy": "allox", "seed": 42})["avg_jct_s"]
        off = abs(ours / PUBLISHED_ALLOX_S - 1)
        row = Row(
            "allox, published, seed 42: average JCT, off by",
            off,
            1e-6,
            note=f"{ours:.6f} s, published {PUBLISHED_ALLOX_S} s",
        )
        return 0 if show("Fidelity to Gavel's published values", [row]) else 1
    return 0 if compare_continuous(arguments.workers) else 1


def compare_continuous(workers: int) -> bool:
    """Runs all policies on `continuous`, prints, and returns whether every must is met."""
    wanted = [(policy, 0) for policy in (*NAMES.values(), *OTHERS)]
    wanted += [("gandiva", seed) for seed in range(1, SEEDS)]
    results: dict[tuple[str, int], Cell] = {}
    with ProcessPoolExecutor(either(1, workers)) as pool:
        pending = {
            pool.submit(compute, {"workload": "continuous", "policy": policy, "seed": seed}): (policy, seed)
            for policy, seed in wanted
        }
        for number, future in enumerate(as_completed(pending), start=1):
            results[pending[future]] = future.result()
            print(
                f"[{number}/{len(pending)}] {pending[future][0]} seed {pending[future][1]}",
                file=sys.stderr,
                flush=True,
            )
    return judge(results)


if __name__ == "__main__":
    raise SystemExit(main())
