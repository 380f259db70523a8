"""Made-up tasks, from random physics: a test bed for planners that no measured table was looked at for.

A step on K GPUs of n nodes, m examples each (not the form that we fit, ``epoch_form``: pieces that a machine has)

    compute   G = (a + b q ceil(m / q)) (1 + h (K/n - 1))     launches, examples in waves of q, GPUs that share a host
    volume    S = v (ring of K) + l (K - 1)                   v by the slowest link: within a node, or between two
    step      G + max(S - w G, 0), longer by ln K x stragglers; an offset for each K; 1.5% for each cell

How v compares with G runs from a fiftieth to twenty times: from many GPUs being best to one. A pass at batch B does so much work as the noise scale
leaves (grows while training, and with B); metrics saturate, some with steps of the learning rate; each batch size strays by its own 3% in passes.
Run: python -m benchmarks.plan_made [COUNT] [--samples 60,240]: what our planner pays over the optimum on them.
"""

from __future__ import annotations

from argparse import ArgumentParser

import numpy as np

from benchmarks.plan_runs import OURS, runs
from benchmarks.plan_truth import TYPES, Truth, _curves, _step_s, _StepTimes
from benchmarks.smoke import either
from coadapt.planning.problem import Option
from coadapt.prediction._base import FloatArray

COUNT = 30
_COUNTS = (*range(1, 17), 20, 24, 32, 40, 48, 56, 64)


def made(seed: int) -> Truth:
    """Task number ``seed``."""
    rng = np.random.default_rng((7, seed))
    initial = int(2 ** rng.integers(3, 10))
    sizes = [initial * 2**i for i in range(int(rng.integers(4, 8)))]
    examples = float(initial * rng.integers(200, 5000))
    gpu_type = str(rng.choice(["t4", "rtx2080ti"]))
    higher = bool(rng.random() < 0.7)
    truth = Truth(task=f"made-{seed}", types=(gpu_type,), higher=higher)
    truth.curves = _curves(_validation(rng, initial, sizes, examples, higher), examples, higher)
    largest = float(initial * 2.0 ** rng.integers(0, 5))
    measured = _steps(rng, largest, per_node=TYPES[gpu_type][2])
    for workers in range(1, max(_COUNTS) + 1):
        for batch in truth.curves:
            step_s = _step_s(measured, workers, batch)
            if step_s is not None:
                nodes = -(-workers // TYPES[gpu_type][2])
                option = Option(gpu_type=gpu_type, replicas=workers, nodes=nodes, batch=batch)
                truth.pass_s[option] = examples / batch * step_s
    return truth


def _steps(rng: np.random.Generator, largest: float, per_node: int) -> dict[int, _StepTimes]:
    """Step times by workers and examples per GPU."""
    local = np.unique(np.round(largest * 2.0 ** -np.arange(0, rng.uniform(4, 7), 0.5))).clip(1)
    full = 10 ** rng.uniform(-1.5, 0.5)
    launch = 10 ** rng.uniform(-2, -0.2)
    wave = max(1.0, float(np.round(largest / rng.integers(4, 64))))
    host, apart = rng.uniform(0, 0.06), full * 10 ** rng.uniform(-1.7, 1.3)
    within, hop = apart * rng.uniform(0.05, 0.6), 10 ** rng.uniform(-3, -1.5)
    overlap, straggle = rng.uniform(0, 1), rng.uniform(0, 0.05)
    two = np.exp(rng.normal() * 0.15)
    found = {}
    for workers in _COUNTS:
        nodes = -(-workers // per_node)
        of_node = workers / nodes
        grad = full * (launch + (1 - launch) * wave * np.ceil(local / wave - 1e-9) / largest)
        grad = grad * (1 + host * (of_node - 1))
        link = 0.0 if workers == 1 else within if nodes == 1 else apart * (two if nodes == 2 else 1.0)
        sync = link * (2 * (workers - 1) / workers / 2 + hop * (workers - 1))
        step = grad + np.maximum(sync - overlap * grad, 0.0)
        step = step * (1 + straggle * np.log(workers)) * np.exp(0.03 * rng.normal())
        step = step * np.exp(0.015 * rng.normal(size=len(local)))
        found[workers] = _StepTimes({int(m): [float(t)] for m, t in zip(local, step, strict=True)}, np.inf)
    return found


def _validation(
    rng: np.random.Generator, initial: int, sizes: list[int], examples: float, higher: bool
) -> dict[int, list[dict[str, str]]]:
    """Rows as measured tables have them, one per epoch of work."""
    epochs = int(rng.choice([8, 15, 30, 60, 100]))
    work = np.arange(1, epochs + 1, dtype=np.float64)
    phi = initial * 10 ** rng.uniform(-0.3, 1.2) * work ** rng.uniform(0.1, 0.9)
    growth = rng.uniform(0.0, 0.4)
    gain = _gain(rng, work)
    scatter = 10 ** rng.uniform(-3.2, -2)
    found = {}
    for batch in sizes:
        there = phi * (batch / initial) ** growth
        rate = (there + batch) / (there + initial) * np.exp(0.03 * rng.normal() * (batch > initial))
        steps = np.cumsum(rate) * examples / batch
        last = 1 - 0.01 * abs(rng.normal()) * np.log2(batch / initial) / 4
        metric = gain * last + scatter * rng.normal(size=epochs)
        metric = 0.1 + 0.8 * metric if higher else 1.0 - 0.8 * metric
        found[batch] = [
            {
                "progress": str(examples / initial * w),
                "iteration": str(s),
                "metric": str(max(m, 0.0)),
                "grad_sqr": "1.0",
                "grad_var": str(p / initial),
            }
            for w, s, m, p in zip(work, steps, metric, there, strict=True)
        ]
    return found


def _gain(rng: np.random.Generator, work: FloatArray) -> FloatArray:
    """From 0 to 1 over work."""
    x = work / work[-1]
    curve = 1 - (1 + x * rng.uniform(3, 60)) ** -rng.uniform(0.5, 1.5)
    if rng.random() < 0.4:
        for at in (0.5, 0.75):
            curve = curve + rng.uniform(0.05, 0.2) / (1 + np.exp(-(x - at) * 60))
    return np.asarray(curve / curve[-1])


def main() -> None:
    """Prints what we pay over the optimum, per task."""
    reader = ArgumentParser()
    reader.add_argument("count", type=int, nargs="?", default=either(1, COUNT))
    reader.add_argument("--samples", default=either("60", "60,240"))
    given = reader.parse_args()
    samples = [int(count) for count in given.samples.split(",")]
    every: list[float] = []
    broken: list[bool] = []
    for seed in range(given.count):
        truth = made(seed)
        over: list[float] = []
        for count in samples:
            evidence = truth.evidence(count, np.random.default_rng((0, count)))
            for record in runs(truth, evidence, 0, (OURS,)):
                if record["objective"] == "cost":
                    holds = record["in_time"] and record["reached"]
                    broken.append(not holds)
                    over += [100 * (record["value"] / record["best"] - 1)] if holds else []
        every += over
        print(f"{truth.task:<10}{len(truth.options):>5} options{np.mean(over):>8.1f}% over", flush=True)
    print(f"mean {np.mean(every):.1f}%, median {np.median(every):.1f}%, limits broken {np.mean(broken):.1%}")


if __name__ == "__main__":
    main()
