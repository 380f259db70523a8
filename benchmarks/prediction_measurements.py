"""Predictions from a job's own measurements: step time, parameter servers, noise scale, cost of a fit.

    python -m benchmarks.prediction_measurements [--quick] [--sia]

Splits (README of the data): ``12 points``: twelve random rows of a task, the rest held out; ``70/30``: random rows;
``up to 4 nodes -> 6-16``: one split. Errors are MRE = sum |error| / sum true, in percent, averaged over seeds, then over
tasks; the published fit stands beside ours, fitted to the same rows. ``--sia`` looks at the GPU types that design
did not use: a look, to be noted in docs/looks/measurements.md.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from benchmarks.cells import cell, source_hash
from benchmarks.errors import Errors, errors
from benchmarks.measure import Row, show
from benchmarks.published import data_dir
from benchmarks.smoke import either, few
from coadapt.model import Configuration, Measurement
from coadapt.prediction import gradient_noise, parameter_server
from coadapt.prediction.parameter_server import ServerParams, ServerRow, ServerTable
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time import node_aware, step_table
from coadapt.prediction.step_time.node_aware import AwareParams
from coadapt.prediction.step_time.step_table import StepTimeTable

Floats = npt.NDArray[np.float64]
#: (rows, seed) -> indices to fit on, indices held out
Split = Callable[[Floats, int], tuple[Floats, Floats]]

TASKS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
SOURCES = (
    "prediction/step_time/*.py",
    "prediction/parameter_server.py",
    "prediction/parameter_server.py",
    "prediction/gradient_noise.py",
)


def task_rows(folder: Path, suffix: str = "") -> Floats:
    """nodes, replicas, batch per GPU, step, sync: all rows of one task."""
    rows = []
    with (folder / f"placements{suffix}.csv").open() as stream:
        for r in csv.DictReader(stream):
            shape = [int(digit) for digit in r["placement"]]
            rows.append(
                (len(shape), sum(shape), int(r["local_bsz"]), float(r["step_time"]), float(r["sync_time"]))
            )
    with (folder / f"scalability{suffix}.csv").open() as stream:
        for r in csv.DictReader(stream):
            shape = [int(r["num_nodes"]), int(r["num_replicas"]), int(r["local_bsz"])]
            rows.append((shape[0], shape[1], shape[2], float(r["step_time"]), float(r["sync_time"])))
    return np.array(rows, dtype=np.float64)


def _distinct(folder: Path, suffix: str) -> Floats:
    """Sia's two files of a type repeat rows, which must not be on both sides of a split."""
    rows = task_rows(folder, suffix)
    return np.unique(rows, axis=0) if suffix else rows


def table_of(rows: Floats) -> StepTimeTable:
    """As an agent's reports would make it."""
    table = step_table.EMPTY_TABLE
    for nodes, replicas, atomic, step_s, sync_s in rows.tolist():
        config = Configuration(nodes=int(nodes), replicas=int(replicas), atomic_batch=int(atomic))
        table = step_table.observe(table, Measurement(config=config, step_s=step_s, sync_s=max(sync_s, 0.0)))
    return table


def random_points(count: int) -> Split:
    """So many random rows to fit on."""

    def split(rows: Floats, seed: int) -> tuple[Floats, Floats]:
        order = np.random.default_rng(seed).permutation(len(rows))
        return rows[order[:count]], rows[order[count:]]

    return split


def seventy_thirty(rows: Floats, seed: int) -> tuple[Floats, Floats]:
    """Random rows, 70% to fit on."""
    return random_points(int(0.7 * len(rows)))(rows, seed)


def more_nodes(rows: Floats, seed: int) -> tuple[Floats, Floats]:
    """Up to 4 nodes, beyond."""
    return rows[rows[:, 0] <= 4], rows[rows[:, 0] > 4]


def more_replicas(rows: Floats, seed: int) -> tuple[Floats, Floats]:
    """Up to 8 replicas, beyond: where no task has more than three nodes."""
    return rows[rows[:, 1] <= 8], rows[rows[:, 1] > 8]


def mre(predicted: Floats, true: Floats) -> float:
    """Sum of errors over sum of true values, in percent."""
    return float(100 * np.abs(predicted - true).sum() / true.sum())


def _task_scores(folder: Path, suffix: str, split: Split, seeds: int) -> dict[str, Any]:
    return step_scores(_distinct(folder, suffix), split, range(seeds))


def step_scores(rows: Floats, split: Split, seeds: Iterable[int]) -> dict[str, Any]:
    """Both methods on one task."""
    found: dict[str, list[float]] = {}
    for seed in seeds:
        fitted_on, held_out = split(rows, seed)
        table = table_of(fitted_on)
        nodes, replicas, atomic, step_s, sync_s = held_out.T
        ours, published = step_time.fit(table), step_time.fit(table, model="pollux")
        assert isinstance(ours, AwareParams)
        assert published is not None
        value = ours.step_time(nodes, replicas, atomic)
        wide = node_aware.log_widths(ours, held_out[:, :3])
        compute = np.maximum(step_s - sync_s, 1e-3 * step_s)
        for name, figure in {
            "ours": mre(value, step_s),
            "published": mre(published.step_time(nodes, replicas, atomic), step_s),
            "compute": mre(ours.grad_time(nodes, replicas, atomic), compute),
            "covered": float(np.mean(np.abs(np.log(value / step_s)) <= wide)),
            "mape": float(100 * np.mean(np.abs(value / step_s - 1))),
            "rmse": float(np.sqrt(np.mean((value - step_s) ** 2)) / step_s.mean() * 100),
            "rank": float(spearmanr(value, step_s).statistic),
            "values": float(len(step_s)),
        }.items():
            found.setdefault(name, []).append(figure)
    return {name: float(np.mean(figures)) for name, figures in found.items()}


def mean_of(cells: Sequence[dict[str, Any]], name: str) -> float:
    """Over tasks."""
    return float(np.mean([one[name] for one in cells]))


def step_row(
    what: str,
    split: Split,
    seeds: int,
    must: float | None,
    aim: float | None,
    suffix: str = "",
    folder: str = "pollux",
) -> list[Row]:
    """The figure, and the coverage of its intervals. Without ``must``: 25% below the published fit's error."""
    sources = source_hash(SOURCES, setting=("prediction_measurements.py", "errors.py"))
    cells = [
        cell(
            "prediction-step",
            {"what": what, "task": task, "seeds": seeds, "folder": folder, "suffix": suffix},
            sources,
            partial(_task_scores, data_dir() / folder / task, suffix, split, seeds),
        )
        for task in few(TASKS)
        if (data_dir() / folder / task / f"placements{suffix}.csv").exists()
    ]
    published = mean_of(cells, "published")
    by_task = " ".join(f"{one['ours']:.1f}" for one in cells)
    note = (
        f"published {published:.1f}%; by task {by_task}; compute "
        f"{mean_of(cells, 'compute'):.1f}%, MAPE {mean_of(cells, 'mape'):.1f}%, RMSE {mean_of(cells, 'rmse'):.0f}% "
        f"of the mean, rank {mean_of(cells, 'rank'):.3f}"
    )
    target = must if must is not None else 0.75 * published
    return [
        Row(f"step time, {what}", mean_of(cells, "ours"), target, aim, "%", note),
        *coverage(
            f"step time, {what}",
            sum(one["covered"] * one["values"] for one in cells) / sum(one["values"] for one in cells),
            seeds * sum(one["values"] for one in cells),
            " ".join(f"{100 * one['covered']:.0f}" for one in cells),
        ),
    ]


def coverage(what: str, share: float, values: float = math.inf, by_task: str = "") -> list[Row]:
    """75-85% of the true values in stated 80% intervals (fewer than 250 values: within two standard errors), as two rows."""
    room = 5.0 if values >= 250 else 200 * math.sqrt(0.8 * 0.2 / values)
    note = ("" if values == math.inf else f"of {values:.0f} values") + (
        f"; by task {by_task}" if by_task else ""
    )
    return [
        Row(f"  80% intervals hold ({what})", 100 * share, 80 - room, None, "%", note, at_least=True),
        Row("    and no more than", 100 * share, 80 + room, None, "%"),
    ]


def server_rows() -> list[Row]:
    """Optimus' f(p, w) from 10 points, 20 draws, eight models."""
    found = cell(
        "prediction-servers",
        {"points": 10, "draws": 20, "errors": 4},
        source_hash(SOURCES, setting=("prediction_measurements.py", "errors.py")),
        _server_scores,
    )
    published = f"published {found['published']:.2f}%"
    ours, prior = (
        f"{published}; {Errors(**{each: found[f'{name}_{each}'] for each in ('rmse', 'mape', 'mre', 'rank')})}"
        for name in ("ours", "prior")
    )
    return [
        Row("servers f(p, w) from 10 points, 8 models", found["ours"], 9.0, 7.0, "%", ours),
        *coverage("servers", found["ours_covered"]),
        Row("  with a prior from the other seven", found["prior"], 8.0, 7.0, "%", prior),
        *coverage("servers with a prior", found["prior_covered"]),
    ]


def _server_scores() -> dict[str, Any]:
    models: dict[str, list[tuple[int, int, int, float]]] = {}
    with (data_dir() / "dl2" / "config_speed.csv").open() as stream:
        for r in csv.DictReader(stream):
            if float(r["total_speed"]) > 0:
                batch = int(r["total_batch_size"])
                row = int(r["num_ps"]), int(r["num_workers"]), batch, batch / float(r["total_speed"])
                models.setdefault(r["model"], []).append(row)
    full = {model: parameter_server.fit(_server_table(rows)) for model, rows in models.items()}
    scores: dict[str, list[float]] = {}
    for model, rows in models.items():
        others = [params for other, params in full.items() if other != model and params is not None]
        prior = parameter_server.prior_from(others)
        for draw in range(either(1, 20)):
            order = np.random.default_rng(draw).permutation(len(rows)).tolist()
            table = _server_table([rows[i] for i in order[:10]])
            held_out = np.array([rows[i] for i in order[10:]])
            fits = {
                "published": parameter_server.fit_published(table),
                "ours": parameter_server.fit(table),
                "prior": parameter_server.fit(table, prior),
            }
            for name, params in fits.items():
                assert params is not None
                _score_servers(scores, name, params, held_out)
    return {name: float(np.mean(figures)) for name, figures in scores.items()}


def _server_table(rows: Sequence[tuple[int, int, int, float]]) -> ServerTable:
    return ServerTable(
        rows=tuple(ServerRow(servers=p, workers=w, batch=b, count=1, step_s=t) for p, w, b, t in sorted(rows))
    )


def _score_servers(scores: dict[str, list[float]], name: str, params: ServerParams, held_out: Floats) -> None:
    servers, workers, batch, step_s = held_out.T
    value = parameter_server.speed(params, servers, workers, batch)
    scores.setdefault(name, []).append(mre(value, 1 / step_s))
    if name != "published":
        for each, figure in asdict(errors(value, 1 / step_s)).items():
            scores.setdefault(f"{name}_{each}", []).append(figure)
        wide = [parameter_server.log_width(params, *row) for row in held_out[:, :3].tolist()]
        inside = np.abs(np.log(value * step_s)) <= np.array(wide)
        scores.setdefault(f"{name}_covered", []).append(float(np.mean(inside)))


def noise_rows() -> list[Row]:
    """Steps a task needs at another batch size, from the noise scale at one: all ordered pairs, six tasks."""
    pairs = np.concatenate([_noise_pairs(data_dir() / "pollux" / task) for task in few(TASKS)])
    steps, simple, true, inside = pairs.T
    error, naive = 100 * np.abs(steps / true - 1), 100 * np.abs(simple / true - 1)
    note = (
        f"{len(pairs)} pairs; {errors(steps, true)}, 90% below {np.quantile(error, 0.9):.0f}%; phi as measured: "
        f"median {np.median(naive):.2f}%, mean {naive.mean():.1f}%"
    )
    row = Row("steps at another batch size, median error", float(np.median(error)), 10, 6, "%", note)
    return [row, *coverage("steps", float(inside.mean()), len(inside))]


def _noise_pairs(folder: Path) -> Floats:
    """Steps by ours, by phi taken as it is, the true ones, and whether the interval held, by pair of batch sizes."""
    runs: dict[int, Floats] = {}
    for path in folder.glob("validation-*.csv"):
        with path.open() as stream:
            names = ("progress", "iteration", "grad_sqr", "grad_var")
            runs[int(path.stem.split("-")[1])] = np.array(
                [[float(r[n]) for n in names] for r in csv.DictReader(stream)]
            )
    initial, found = min(runs), []
    for batch, run in runs.items():
        table, before = gradient_noise.NoiseTable(initial_batch=initial), 0.0
        for progress, _, grad_sqr, grad_var in run.tolist():
            config = Configuration(nodes=1, replicas=1, atomic_batch=batch)
            work = (progress + before) / 2 * initial  # the epoch's statistics belong to its middle
            report = Measurement(config=config, grad_sqr=grad_sqr, grad_var=grad_var, work=work)
            table, before = gradient_noise.observe(table, report), progress
        params = gradient_noise.fit(table)
        assert params is not None
        ratio = np.maximum(run[:, 3], 0) / np.maximum(run[:, 2], 1e-300)
        for other, target in runs.items():
            if other == batch:
                continue
            estimate = gradient_noise.steps(params, other, float(target[-1, 0]) * initial)
            gain = (ratio + 1) / (ratio * initial / other + 1)
            naive = float(np.sum(np.diff(run[:, 0], prepend=0.0) / gain)) * target[-1, 0] / run[-1, 0]
            true = float(target[-1, 1])
            found.append((estimate.value, naive, true, estimate.low <= true <= estimate.upper))
    return np.array(found, dtype=np.float64)


def cost_row(points: int = 24) -> Row:
    """CPU time of a fit in a batch of 100 stale jobs, median of five batches; none is answered from a memo."""
    rows = {task: task_rows(data_dir() / "pollux" / task) for task in TASKS}
    spent = []
    for batch in range(either(1, 5)):
        tables = []
        for job in range(either(4, 100)):
            task = TASKS[job % len(TASKS)]
            tables.append(table_of(random_points(points)(rows[task], 1000 * batch + job)[0]))
        before, started = step_time.fit_count(), time.process_time()
        step_time.fit_many(tables)
        spent.append(10 * (time.process_time() - started))
        assert step_time.fit_count() - before == len(tables)
    return Row(f"cost of a fit of {points} points, 100 at once", float(np.median(spent)), 3.0, None, " ms")


def rows(quick: bool) -> list[Row]:
    """Everything but the look at other GPU types."""
    seeds = either(1, 3 if quick else 10)
    return [
        *step_row("12 points", random_points(12), seeds, 9, 8),
        *step_row("70/30", seventy_thirty, either(1, 1 if quick else 3), 5, 4.3),
        *step_row("up to 4 nodes -> 6-16", more_nodes, 1, 11, 9),
        *server_rows(),
        *noise_rows(),
        cost_row(),
    ]


def sia_rows() -> list[Row]:
    """GPU types that design did not use: 25% below the published fit's error."""
    found = []
    for gpu in ("dgx-ext", "rtx"):
        for what, split, seeds in (
            ("12 points", random_points(12), 10),
            ("70/30", seventy_thirty, 3),
            ("up to 8 replicas -> more", more_replicas, 1),
        ):
            found += step_row(f"{what}, {gpu}", split, seeds, None, None, f"-{gpu}", "sia")
    return found


def main() -> None:
    """Prints target beside figure; exit code 1 where a must falls short."""
    holds = show("From a job's measurements", rows("--quick" in sys.argv))
    if "--sia" in sys.argv:
        holds = show("Other GPU types", sia_rows()) and holds
    raise SystemExit(0 if holds else 1)


if __name__ == "__main__":
    main()
