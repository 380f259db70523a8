"""Epoch time over (batch, workers) and metric over (batch, epochs), from a user's own samples.

Run: python -m benchmarks.prediction_samples [--quick]

Time set: configurations packed on nodes of 4 GPUs (nodes = ceil(workers / 4)), total batch between the task's
reference and largest batch size, epoch time = N / B x measured step time, averaged over the measured placements with
as many workers and nodes. Metric set: all rows of validation-*.csv; epochs are epochs of work. Splits: 70/30 and small
samples at random over ten seeds; more than 16 workers from at most 16; whole batch sizes left out one at
a time ("inner": without the smallest and the largest, as in the figures to be met; "all": with them).
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.published import data_dir
from benchmarks.smoke import either, few
from coadapt.model.interval import Interval
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples import epoch_time, final_metric, selection
from coadapt.prediction.samples.epoch_time import EpochQuery
from coadapt.prediction.samples.final_metric import MetricQuery
from coadapt.prediction.samples.sample_table import EpochSample, MetricSample, epoch_table, metric_table

TASKS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
LOWER_IS_BETTER = ("deepspeech2", "yolov3")
GPUS_PER_NODE = 4
SEEDS, QUICK_SEEDS = 10, 2
#: Files under src/coadapt that the figures depend on.
SOURCES = ("prediction/_base.py", "prediction/samples/*.py")


@dataclass(slots=True)
class Scores:
    """Errors of one method on what one split holds out; percentages."""

    mre: float
    mape: float
    rmse: float
    rank: float
    inside: int = 0
    values: int = 0


def scores(true: FloatArray, found: FloatArray, intervals: Sequence[Interval] = ()) -> Scores:
    """All errors of one split; rank correlation is 1 where there is nothing to rank."""
    error = np.abs(found - true)
    flat = len(true) < 3 or np.ptp(true) == 0 or np.ptp(found) == 0
    return Scores(
        mre=100 * float(error.sum() / true.sum()),
        mape=100 * float((error / true).mean()),
        rmse=float(np.sqrt((error**2).mean())),
        rank=1.0 if flat else float(spearmanr(true, found).statistic),
        inside=sum(bool(e.low <= y <= e.upper) for e, y in zip(intervals, true, strict=False)),
        values=len(intervals),
    )


def epoch_rows(task: Path) -> FloatArray:
    """Rows of batch, workers, nodes, epoch_s of the time set."""
    seen: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for record in _records(task / "placements.csv"):
        shape = [int(digit) for digit in record["placement"]]
        seen[sum(shape), len(shape), int(record["local_bsz"])].append(float(record["step_time"]))
    for record in _records(task / "scalability.csv"):
        key = int(record["num_replicas"]), int(record["num_nodes"]), int(record["local_bsz"])
        seen[key].append(float(record["step_time"]))
    curves = metric_files(task)
    least, most = min(curves), max(curves)
    examples = least * float(curves[least][0]["progress"])
    rows = [
        (workers * atomic, workers, nodes, examples / (workers * atomic) * float(np.mean(step_s)))
        for (workers, nodes, atomic), step_s in sorted(seen.items())
        if nodes == -(-workers // GPUS_PER_NODE) and least <= workers * atomic <= most
    ]
    return np.array(rows, dtype=np.float64)


def metric_rows(task: Path) -> FloatArray:
    """Rows of batch, epochs, metric."""
    rows = [
        (batch, number, float(record["metric"]))
        for batch, records in sorted(metric_files(task).items())
        for number, record in enumerate(records, 1)
    ]
    return np.array(rows, dtype=np.float64)


def metric_files(task: Path) -> dict[int, list[dict[str, str]]]:
    """Records of each validation curve by its batch size."""
    return {int(p.stem.split("-")[1]): _records(p) for p in task.glob("validation-*.csv")}


def _records(path: Path) -> list[dict[str, str]]:
    with path.open() as stream:
        return list(csv.DictReader(stream))


def epoch_split(train: FloatArray, test: FloatArray) -> dict[str, Scores]:
    """Scores of ours, of the published method, and of the one chosen on the training samples alone."""
    samples = [
        EpochSample(batch=int(b), workers=int(k), nodes=int(n), epoch_s=float(s)) for b, k, n, s in train
    ]
    table = epoch_table(samples, gpus_per_node=GPUS_PER_NODE)
    ours, choice = epoch_time.fit(table), selection.fit_epoch(table)
    assert ours is not None
    assert choice is not None
    queries = [EpochQuery(batch=int(b), workers=int(k), nodes=int(n)) for b, k, n, _ in test]
    theirs = selection.epoch_methods(GPUS_PER_NODE)[selection.PUBLISHED](train, test[:, :3])
    return _scored(
        test[:, 3],
        [epoch_time.predict(ours, q) for q in queries],
        theirs,
        [selection.predict_epoch(choice, q) for q in queries],
    )


def metric_split(train: FloatArray, test: FloatArray, higher_is_better: bool) -> dict[str, Scores]:
    """The same for metrics."""
    samples = [MetricSample(batch=int(b), epochs=float(e), metric=float(y)) for b, e, y in train]
    table = metric_table(samples, higher_is_better=higher_is_better)
    ours, choice = final_metric.fit(table), selection.fit_metric(table)
    assert ours is not None
    assert choice is not None
    queries = [MetricQuery(batch=int(b), epochs=float(e)) for b, e, _ in test]
    theirs = selection.metric_methods(higher_is_better)[selection.PUBLISHED](train, test[:, :2])
    return _scored(
        test[:, 2],
        [final_metric.predict(ours, q) for q in queries],
        theirs,
        [selection.predict_metric(choice, q) for q in queries],
    )


def _scored(
    true: FloatArray, ours: list[Interval], theirs: FloatArray, chosen: list[Interval]
) -> dict[str, Scores]:
    return {
        "ours": scores(true, np.array([e.value for e in ours]), ours),
        "published": scores(true, theirs),
        "chosen": scores(true, np.array([e.value for e in chosen]), chosen),
    }


def epoch_splits(task: Path, split: str, seeds: int) -> list[dict[str, Scores]]:
    """All splits of one name."""
    rows = epoch_rows(task)
    if split == "more workers":
        few = rows[:, 1] <= 16
        return [epoch_split(rows[few], rows[~few])]
    size = int(0.7 * len(rows)) if split == "70/30" else int(split.split()[0])
    orders = (np.random.default_rng(seed).permutation(len(rows)) for seed in range(seeds))
    return [epoch_split(rows[order[:size]], rows[order[size:]]) for order in orders]


def metric_splits(task: Path, split: str, seeds: int) -> list[dict[str, Scores]]:
    """All splits of one name."""
    rows, higher = metric_rows(task), task.name not in LOWER_IS_BETTER
    if split == "70/30":
        size = int(0.7 * len(rows))
        orders = (np.random.default_rng(seed).permutation(len(rows)) for seed in range(seeds))
        return [metric_split(rows[order[:size]], rows[order[size:]], higher) for order in orders]
    batches = np.unique(rows[:, 0])
    left_out = batches[1:-1] if split == "inner" else batches
    return [metric_split(rows[rows[:, 0] != b], rows[rows[:, 0] == b], higher) for b in left_out]


Splits = Callable[[Path, str, int], list[dict[str, Scores]]]
#: question, split
CASES: tuple[tuple[str, str, Splits], ...] = (
    ("epoch time", "70/30", epoch_splits),
    ("epoch time", "20 samples", epoch_splits),
    ("epoch time", "8 samples", epoch_splits),
    ("epoch time", "more workers", epoch_splits),
    ("metric", "inner", metric_splits),
    ("metric", "all", metric_splits),
    ("metric", "70/30", metric_splits),
)


def results(
    quick: bool, tasks: Iterable[str] = TASKS
) -> dict[tuple[str, str], dict[str, list[dict[str, Any]]]]:
    """Per case and task: the scores of every split, as saved."""
    seeds, sources = (
        either(1, QUICK_SEEDS if quick else SEEDS),
        source_hash(SOURCES, setting=("prediction_samples.py",)),
    )
    found: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for question, split, splits in CASES:
        for task in few(tuple(tasks)):

            def compute(splits: Splits = splits, task: str = task, split: str = split) -> dict[str, Any]:
                done = splits(data_dir() / "pollux" / task, split, seeds)
                return {"splits": [{name: asdict(s) for name, s in one.items()} for one in done]}

            arguments = {"question": question, "split": split, "task": task, "seeds": seeds}
            saved = cell("prediction-samples", arguments, sources, compute)
            found.setdefault((question, split), {})[task] = saved["splits"]
    return found


def mean(by_task: dict[str, list[dict[str, Any]]], method: str, score: str) -> float:
    """Mean over tasks of the mean over splits."""
    return float(np.mean([np.mean([s[method][score] for s in splits]) for splits in by_task.values()]))


def coverage(by_task: dict[str, list[dict[str, Any]]], method: str = "ours") -> tuple[float, int]:
    """Percent of all held-out values inside their interval, and how many there were."""
    all_splits = [s[method] for splits in by_task.values() for s in splits]
    values = sum(s["values"] for s in all_splits)
    return 100 * sum(s["inside"] for s in all_splits) / values, values


def rows(quick: bool) -> list[Row]:
    """Promises beside figures."""
    found = results(quick)
    table = []
    for question, split, what, must, aim in (
        ("epoch time", "70/30", "epoch time over (batch, workers), 70/30", 6.0, 5.0),
        ("metric", "inner", "metric at a batch size left out", 1.8, 1.5),
    ):
        by_task = found[question, split]
        theirs, chosen = mean(by_task, "published", "mre"), mean(by_task, "chosen", "mre")
        by_rmse = " ".join(f"{mean({task: splits}, 'ours', 'rmse'):.3g}" for task, splits in by_task.items())
        note = (
            f"published method {theirs:.3g}%, chosen by cross-validation {chosen:.3g}%; MAPE "
            f"{mean(by_task, 'ours', 'mape'):.3g}%, rank {mean(by_task, 'ours', 'rank'):.3f}, RMSE by task {by_rmse}"
        )
        table.append(Row(f"{what}, MRE", mean(by_task, "ours", "mre"), must, aim, "%", note))
        inside, values = coverage(by_task)
        table.append(
            Row(
                f"{question}: coverage of 80% intervals, off by",
                abs(inside - 80),
                5.0,
                None,
                "%",
                f"{inside:.1f}% of {values}",
            )
        )
    return table


def details(quick: bool) -> None:
    """Everything by split and task."""
    for (question, split), by_task in results(quick).items():
        print(f"\n{question}, {split}")
        print(
            f"  {'':<12}{'MRE %':>8}{'MAPE %':>8}{'RMSE':>10}{'rank':>7}{'in 80%':>8}{'of':>6}{'published MRE %':>17}"
        )
        for task, splits in by_task.items():
            one = {task: splits}
            inside, values = coverage(one)
            m = {name: mean(one, "ours", name) for name in ("mre", "mape", "rmse", "rank")}
            print(
                f"  {task:<12}{m['mre']:>8.2f}{m['mape']:>8.2f}{m['rmse']:>10.3g}{m['rank']:>7.3f}"
                f"{inside:>8.1f}{values:>6}{mean(one, 'published', 'mre'):>17.2f}"
            )
        inside, values = coverage(by_task)
        print(
            f"  {'mean':<12}{mean(by_task, 'ours', 'mre'):>8.2f}{mean(by_task, 'ours', 'mape'):>8.2f}{'':>10}"
            f"{mean(by_task, 'ours', 'rank'):>7.3f}{inside:>8.1f}{values:>6}{mean(by_task, 'published', 'mre'):>17.2f}"
        )


def main() -> None:
    """Prints all and exits 1 where a must falls short."""
    quick = "--quick" in sys.argv[1:]
    details(quick)
    if not show("Epoch time and metric from samples", rows(quick)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
