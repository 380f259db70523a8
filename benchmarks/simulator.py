"""How fast is the simulator? ``python -m benchmarks.simulator [--quick]``

CPU seconds on one core, each run in a process of its own: reading the trace and the measurements and simulating, caches
cold. Beside it the whole process, which adds the interpreter's start and imports (about 0.7 s). The Pollux artifact needs 21 s for Tiresias, 106 s
for Optimus and about 3,300 s for Pollux on the same workload (tuned-1.0x-1, 160 jobs, 64 GPUs).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cells import ROOT, cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.smoke import either, few

WORKLOAD = "tuned-1.0x-1"
ARTIFACT_S = {"tiresias": 21.0, "optimus": 106.0, "pollux-full": 3300.0, "pollux": 3300.0}


def published_run(policy: str) -> dict[str, Any]:
    """One published workload, cold."""
    from benchmarks import published

    options = {"patience": 0} if policy == "pollux-full" else {}
    began = time.process_time()
    simulation = published.run(WORKLOAD, published.policy_of(policy.partition("-")[0], options))
    return {"simulate_s": time.process_time() - began, **published.figures(simulation)}


def philly(policy: str, jobs: int, nodes: int) -> dict[str, Any]:
    """The first ``jobs`` jobs of the Philly trace on nodes of 8 GPUs, decided on events."""
    from benchmarks.published import data_dir
    from coadapt.model import parse_cluster
    from coadapt.policies.fifo import FifoPolicy
    from coadapt.policies.tiresias import TiresiasPolicy
    from coadapt.simulation.run import simulate
    from coadapt.simulation.traces import open_trace
    from coadapt.store import MemoryLog

    began = time.process_time()
    trace = open_trace(data_dir() / "philly" / "philly.csv")
    submissions = [(s.at, s.job, s.spec) for s in trace.jobs[:jobs]]
    chosen = FifoPolicy() if policy == "fifo" else TiresiasPolicy()
    simulation = simulate(submissions, parse_cluster(f"{nodes}x8"), chosen, MemoryLog())
    unfinished = sum(job.finished_at is None for job in simulation.state.jobs.values())
    return {
        "simulate_s": time.process_time() - began,
        "decisions": simulation.state.decisions,
        "unfinished": unfinished,
    }


def early_stopping(rounds: int = 50) -> dict[str, Any]:
    """Fitness of the early-stopped search over the full one's, on rounds sampled from a whole run."""
    import numpy as np

    from benchmarks import published
    from coadapt.policies.pollux import genetic_search
    from coadapt.policies.pollux import policy as pollux

    policy = pollux.PolluxPolicy()
    seen: list[tuple[Any, Any]] = []
    original = genetic_search.search

    def spy(problem: Any, population: Any, rng: Any, **options: Any) -> Any:
        seen.append((problem, population))
        return original(problem, population, rng, **options)

    # the policy's own name for it: what it imported is not looked up again
    vars(pollux)["search"] = spy
    try:
        published.run(WORKLOAD, policy)
    finally:
        vars(pollux)["search"] = original
    busy = [entry for entry in seen if entry[0].current.shape[0] > 1]
    ratios, generations = [], []
    for i in np.linspace(0, len(busy) - 1, rounds).astype(int):
        problem, population = busy[i]
        options: dict[str, Any] = {
            "pop_size": policy.population,
            "generations": policy.generations,
            "p": policy.p,
        }
        full = original(problem, population, np.random.default_rng(int(i)), **options)
        early = original(
            problem,
            population,
            np.random.default_rng(int(i)),
            patience=policy.patience,
            tolerance=policy.tolerance,
            **options,
        )
        ratios.append(early.fitness / full.fitness)
        generations.append(early.generations_run)
    return {
        "mean": statistics.fmean(ratios),
        "min": min(ratios),
        "p10": float(np.percentile(ratios, 10)),
        "share": sum(ratio >= 0.995 for ratio in ratios) / len(ratios),
        "generations": statistics.fmean(generations),
        "rounds": rounds,
    }


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "published": published_run,
    "philly": philly,
    "early": early_stopping,
}


def child(task: str, arguments: list[Any]) -> dict[str, Any]:
    """Runs a task in a fresh process and adds the whole process' CPU time and largest memory."""
    load = os.getloadavg()[0]
    command = [sys.executable, "-m", "benchmarks.simulator", "--task", task, json.dumps(arguments)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{task} {arguments} failed: {done.stderr[-2000:]}")
    return {**json.loads(done.stdout), "load": load}


def measured(task: str, arguments: list[Any], repeats: int = 1) -> dict[str, Any]:
    """A saved cell: the medians of ``repeats`` runs."""

    def compute() -> dict[str, Any]:
        runs = [child(task, arguments) for _ in range(repeats)]
        print(f"{task} {arguments}: {runs[-1]}", file=sys.stderr, flush=True)
        numbers = [key for key, value in runs[0].items() if isinstance(value, int | float)]
        return {key: statistics.median(run[key] for run in runs) for key in numbers}

    return cell(
        "simulator",
        {"task": task, "arguments": arguments, "repeats": repeats},
        source_hash(["**/*.py"]),
        compute,
    )


def main() -> int:
    """Measures, prints, and returns 1 where a must falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without Pollux' full search and without growth")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        result = TASKS[options.task[0]](*json.loads(options.task[1]))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        result |= {"process_s": usage.ru_utime + usage.ru_stime, "rss_gib": usage.ru_maxrss / 2**20}
        print(json.dumps(result))
        return 0
    rows: list[Row] = []
    for policy, must, repeats in (
        ("tiresias", 1.0, 3),
        ("optimus", 2.0, 3),
        ("pollux", 60.0, 1),
        ("pollux-full", 170.0, 1),
    )[: either(1, None)]:
        if options.quick and policy == "pollux-full":
            continue
        found = measured("published", [policy], either(1, repeats))
        note = f"whole process {found['process_s']:.2f} s; artifact {ARTIFACT_S[policy]:g} s; load {found['load']:.1f}"
        rows.append(Row(f"{policy}, {WORKLOAD}", found["simulate_s"], must, unit=" s", note=note))
    early = measured("early", either([2], []))
    note = f"{100 * early['share']:.0f}% of rounds; min {early['min']:.4f}, p10 {early['p10']:.4f}, {early['generations']:.0f} of 100 generations"
    rows.append(
        Row(
            "pollux: early-stopped fitness over full, 50 rounds",
            early["mean"],
            0.995,
            note=note,
            at_least=True,
        )
    )
    for policy in few(("fifo", "tiresias")):
        found = measured("philly", [policy, either(100, 82_247), 75])
        rows.append(
            Row(
                f"{policy}, all 82,247 Philly jobs on 600 GPUs",
                found["process_s"],
                300,
                aim=120,
                unit=" s",
                note=f"load {found['load']:.1f}",
            )
        )
        rows.append(Row(f"{policy}, all Philly jobs, memory", found["rss_gib"], 2, unit=" GiB"))
        if found["unfinished"]:
            raise SystemExit(f"{policy}: {found['unfinished']} Philly jobs did not finish")
    good = show("Speed of the simulator (CPU seconds)", rows)
    if either(False, not options.quick):
        print("\nGrowth (CPU seconds of the whole process)")
        for policy in ("fifo", "tiresias"):
            for jobs, nodes in (
                (1_000, 75),
                (10_000, 75),
                (82_247, 75),
                (10_000, 19),
                (10_000, 38),
                (10_000, 150),
            ):
                found = measured("philly", [policy, jobs, nodes])
                print(
                    f"  {policy:<9} {jobs:>7,} jobs {8 * nodes:>6,} GPUs: {found['process_s']:8.2f} s {found['rss_gib']:6.2f} GiB, {int(found['decisions']):,} decisions"
                )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
