"""Passes to a target at a batch size that was never run, on results of MLPerf Training: error, and share inside the 80% interval.

One task is one benchmark on all accelerators of one vendor (the others have too few runs), from round v0.7 on: the two rounds before state the batch of one accelerator. Each
batch size shows three runs, with at most fifteen of their evaluations. One batch size is left out at a time; the truth is the mean of all
its runs, and the interval is that of one run. Beside ours: the nearest batch size, a line in logarithms, and the hyperbola E0 (1 + B / Bn) alone. Evaluations of
BERT tell no number of samples, so that its runs are shown as two rows, half of the samples and the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks import realworld_records as records
from benchmarks.cells import cell, source_hash
from benchmarks.smoke import either
from coadapt.prediction.samples.passes import passes_to
from coadapt.prediction.samples.sample_table import MetricSample, metric_table

SOURCES = ("prediction/samples/*.py",)
SETTING = ("realworld_passes.py", "realworld_records.py")
#: Mean and median error, and share inside.
MUSTS, INSIDE = (0.075, 0.05), (0.75, 0.88)
Z80 = 1.2816
EARLY = ("v0.5", "v0.6")
SHOWN, POINTS, FEWEST = 3, 15, 4
LOWER_IS_BETTER = ("rnnt",)
OTHER_VENDORS = ("ASCEND",)

#: Passes and metric of each evaluation, the last one at the target.
Curve = list[tuple[float, float]]
#: Curves of the runs of each batch size.
Task = dict[int, list[Curve]]


def run() -> bool:
    """Prints the figures; whether all targets are met."""
    records.folder()
    sources = source_hash(SOURCES, setting=SETTING)
    met = True
    for title in METHODS:
        found = cell("realworld-passes", {"by": title}, sources, partial(rows_by, title))
        rows: list[Any] = found["rows"]
        errors = [abs(said / real - 1) for _, _, real, said, _ in rows]
        text = f"{len(rows)} batch sizes, error mean {fmean(errors):.1%}, median {median(errors):.1%}"
        if title == OURS:
            inside = fmean(row[4] for row in rows)
            met = (
                fmean(errors) <= MUSTS[0] and median(errors) <= MUSTS[1] and INSIDE[0] <= inside <= INSIDE[1]
            )
            text += f" (must {MUSTS[0]:.1%}, {MUSTS[1]:.0%}); inside the 80% interval {inside:.0%} (must {INSIDE[0]:.0%} to {INSIDE[1]:.0%})"
        print(f"  {title}: {text}")
        by_task: dict[str, list[float]] = defaultdict(list)
        for row, error in zip(rows, errors, strict=True):
            by_task[row[0]].append(error)
        print("    " + ", ".join(f"{name} {fmean(each):.1%}" for name, each in by_task.items()))
    return met


def tasks() -> dict[str, Task]:
    """Runs that reached their target, by benchmark and batch size; only benchmarks with enough batch sizes."""
    curves: dict[str, Curve] = defaultdict(list)
    for row in records.rows("mlperf_evals.csv.gz"):
        curves[row["run"]].append((float(row["x"]), float(row["metric"])))
    found: dict[str, Task] = defaultdict(lambda: defaultdict(list))
    for row in records.rows("mlperf_runs.csv.gz"):
        curve = curve_of(row, curves[row["run"]])
        if row["round"] not in EARLY and row["accelerator"] not in OTHER_VENDORS and curve is not None:
            found[row["benchmark"]][round(float(row["global_batch"]))].append(curve)
    return {name: task for name, task in sorted(found.items()) if len(task) >= FEWEST}


def curve_of(run: dict[str, str], evaluations: Curve) -> Curve | None:
    """Evaluations of a run up to its target; None if it did not reach it, or does not tell its batch size."""
    passes = float(run["epochs_to_target"] or run["samples_to_target"] or 0.0)
    if run["status"] == "aborted" or not run["global_batch"] or passes <= 0:
        return None
    final = float(run["final_metric"])
    before = [(x, y) for x, y in evaluations if x < passes * (1 - 1e-9)]
    if not run["epochs_to_target"] or not before:
        # a benchmark whose evaluations do not count as its target does
        before = [(passes / 2, final * (2.0 if run["benchmark"] in LOWER_IS_BETTER else 0.5))]
    return [*_thinned(before), (passes, final)]


def _thinned(curve: Curve) -> Curve:
    """At most ``POINTS`` - 1 evaluations, the last among them, passes rising."""
    rising = [one for at, one in enumerate(curve) if at == 0 or one[0] > curve[at - 1][0]]
    kept = {round(at) for at in np.linspace(0, len(rising) - 1, min(len(rising), POINTS - 1))}
    return [rising[at] for at in sorted(kept)]


def rows_by(method: str) -> dict[str, Any]:
    """Rows of benchmark, batch size, mean of real passes, predicted passes, and the share of runs inside the 80% interval."""
    found = []
    for name, task in list(tasks().items())[:: either(4, 1)]:
        shown = {batch: _some(curves) for batch, curves in task.items()}
        for batch, curves in sorted(task.items()):
            others = {other: each for other, each in shown.items() if other != batch}
            said, sd = METHODS[method](name, others, batch)
            ends = [curve[-1][0] for curve in curves]
            inside = fmean(abs(np.log(end / said)) <= Z80 * sd for end in ends)
            found.append((name, batch, fmean(ends), said, float(inside)))
    return {"rows": found}


def _some(curves: list[Curve]) -> list[Curve]:
    order = np.random.default_rng(0).permutation(len(curves))[:SHOWN]
    return [curves[at] for at in order]


def ours(name: str, others: Task, batch: int) -> tuple[float, float]:
    """Ours."""
    sign = -1 if name in LOWER_IS_BETTER else 1
    runs = [(size, curve) for size, curves in sorted(others.items()) for curve in curves]
    target = sign * min(sign * curve[-1][1] for _, curve in runs)
    samples = [
        MetricSample(batch=size, epochs=passes, metric=metric, run=number)
        for number, (size, curve) in enumerate(runs)
        for passes, metric in curve
    ]
    found = passes_to(metric_table(samples, higher_is_better=sign > 0), target, np.array([float(batch)]))
    return float(found.passes[0]), float(found.log_sd[0])


def _ends(others: Task) -> tuple[Any, Any]:
    sizes = sorted(others)
    return np.log(sizes), np.array([np.log([c[-1][0] for c in others[size]]).mean() for size in sizes])


def nearest(name: str, others: Task, batch: int) -> tuple[float, float]:
    """Passes of the nearest batch size."""
    x, y = _ends(others)
    return float(np.exp(y[np.argmin(np.abs(x - np.log(batch)))])), 0.0


def line(name: str, others: Task, batch: int) -> tuple[float, float]:
    """Between the two neighbours, linear in logarithms; beyond, the nearest."""
    x, y = _ends(others)
    return float(np.exp(np.interp(np.log(batch), x, y))), 0.0


def hyperbola(name: str, others: Task, batch: int) -> tuple[float, float]:
    """E0 (1 + B / Bn), least squares in logarithms over a grid of Bn."""
    x, y = _ends(others)

    def fitted(scale: float) -> tuple[float, float]:
        shape = np.logaddexp(0.0, x - scale)
        level = float((y - shape).mean())
        return float(((y - shape - level) ** 2).sum()), level + float(
            np.logaddexp(0.0, np.log(batch) - scale)
        )

    return float(np.exp(min(fitted(scale) for scale in np.linspace(x.min() - 3, x.max() + 6, 200))[1])), 0.0


OURS = "ours"
METHODS: dict[str, Callable[[str, Task, int], tuple[float, float]]] = {
    "nearest batch size": nearest,
    "line in logarithms": line,
    "hyperbola": hyperbola,
    OURS: ours,
}
