"""Makes src/coadapt/simulation/truth/data/profiles.json from the measurements of Pollux. Run by hand:

    python benchmarks/fit_profiles.py --data ../shared/data/pollux

The formulas are those of ``coadapt.simulation.truth.profiles``; everything written is a fitted number or a fact of a
datasheet. Errors are in sample and go into the file.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import least_squares

from benchmarks.published import data_dir
from benchmarks.smoke import either, few_of, is_set
from coadapt.simulation.truth._base import solo_time_s
from coadapt.simulation.truth.measured_tables import TableTruth, read_profiles, read_timings
from coadapt.simulation.truth.profiles import ProfileFile, ProfileTruth

TARGET = Path(__file__).parents[1] / "src/coadapt/simulation/truth/data/profiles.json"
NODES, PER_NODE = np.array([1, 2, 3, 4, 6, 8, 12, 16.0]), np.array([1, 2, 3, 4.0])
BATCH_KNOTS, EPOCH_KNOTS = 9, 18

ABOUT = {
    "licence": "Apache-2.0",
    "source": "fitted to the measurements of Pollux (petuum/adaptdl, branch osdi21-artifact, Apache-2.0): "
    "T4 GPUs, 4 per node, up to 16 nodes; made by benchmarks/fit_profiles.py",
    "formula": "see coadapt/simulation/truth/profiles.py",
    "fit": "shares, in sample: step_mean, step_p95 = |formula/measured - 1| of step time over all measured rows; "
    "grad_mean = the same of step - sync; one_gpu = of one GPU's step time; "
    "finish_mean, finish_worst = of solo time to finish at the sizes of Pollux' tuned workloads, and "
    "finish_any = at 1 to 64 workers and every measured batch size that fits them",
    "projected": "never measured: datasheet ratios to t4; compute = geometric mean of the ratios of fp32_tflops and "
    "memory_gb_per_s, within = ratio of link_gb_per_s (between the GPUs of a node, per direction), largest per-GPU batch by "
    "memory_gb; the network between nodes is taken as the measured one",
    "datasheets": "NVIDIA T4 (PCIe 3.0 x16), Tesla V100 SXM2 16 GB, A100 SXM4 40 GB, GeForce RTX 2080 Ti",
}
#: FP32 TFLOP/s, memory GB, memory GB/s, link between GPUs of a node in GB/s per direction.
DATASHEETS = {
    "t4": (8.1, 16, 320, 15.75),
    "v100": (15.7, 16, 900, 150),
    "a100": (19.5, 40, 1555, 300),
    "rtx2080ti": (13.45, 11, 616, 15.75),
}


def gpu_types() -> dict[str, dict[str, Any]]:
    """Datasheets with the ratios to the measured type."""
    base = DATASHEETS["t4"]
    types = {}
    for name, (tflops, memory, bandwidth, link) in DATASHEETS.items():
        facts = {
            "fp32_tflops": tflops,
            "memory_gb": memory,
            "memory_gb_per_s": bandwidth,
            "link_gb_per_s": link,
        }
        if name != "t4":
            compute = math.sqrt(tflops / base[0] * bandwidth / base[2])
            facts |= {"compute": rounded(compute), "within": rounded(link / base[3]), "projected": True}
        types[name] = facts
    return types


def rounded(value: Any) -> Any:
    """Four significant digits, through lists; whole numbers stay as they are."""
    if isinstance(value, list | tuple | np.ndarray):
        return [rounded(item) for item in value]
    if isinstance(value, int):
        return value
    number = float(f"{float(value):.4g}")
    return int(number) if number == int(number) and abs(number) < 1e15 else number


def hats(at: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Weights of the knots in linear interpolation at ``at``; one row per point."""
    return np.stack([np.interp(at, knots, row) for row in np.eye(len(knots))], axis=1)


def fit_steps(rows: np.ndarray) -> tuple[dict[str, Any], dict[str, float]]:
    """Constants of the step-time formula; rows of (nodes, workers, most per node, batch, step, sync)."""
    nodes, workers, most, batch, step_s, sync_s = rows.T
    grad_s = np.maximum(step_s - sync_s, 1e-4)
    batches = np.unique(batch)
    if len(batches) > BATCH_KNOTS:
        batches = np.unique(np.round(np.geomspace(batches[0], batches[-1], BATCH_KNOTS)))
    by_batch = hats(batch, batches)
    by_place = (hats(nodes, NODES)[:, :, None] * hats(most, PER_NODE)[:, None, :]).reshape(len(rows), -1)
    count = len(batches)
    # One GPU is where every job starts, and packed placements are what schedulers choose: these must be right.
    weight = np.where(workers == 1, 4.0, np.where(nodes == np.ceil(workers / 4), 2.0, 1.0))

    def model(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slower = 1.0 + np.exp(x[count]) * (most - 1) + np.exp(x[count + 1]) * np.log(workers)
        grad = by_batch @ np.exp(x[:count]) * slower
        overlap = 1.0 + np.exp(x[count + 2])
        sync = by_place @ np.exp(x[count + 3 :])
        return grad, (grad**overlap + sync**overlap) ** (1.0 / overlap)

    def residuals(x: np.ndarray) -> np.ndarray:
        grad, step = model(x)
        # The last two hold what the data leave open: sync grows smoothly with the workers of a node, and
        # a constant without effect stays where it was.
        bends = np.diff(x[count + 3 :].reshape(len(NODES), len(PER_NODE))[:, 1:], 2, axis=1).ravel()
        wanted = [weight * np.log(step / step_s), 0.1 * weight * np.log(grad / grad_s)]
        return np.concatenate([*wanted, bends, 1e-3 * (x - start)])

    single = np.array([np.median(grad_s[batch == one]) for one in np.unique(batch)])
    start = np.concatenate(
        [
            np.log(np.interp(batches, np.unique(batch), single)),
            [math.log(0.01), math.log(0.01), 0.0],
            np.full(by_place.shape[1], math.log(np.median(sync_s[nodes > 1]))),
        ]
    )
    x = least_squares(residuals, start, loss="soft_l1", f_scale=0.1, max_nfev=200).x
    grad, step = model(x)
    error = np.abs(step / step_s - 1)
    facts = {
        "batches": [int(one) for one in batches],
        "grad_s": np.exp(x[:count]),
        "crowding": math.exp(x[count]),
        "stragglers": math.exp(x[count + 1]),
        "overlap": 1 + math.exp(x[count + 2]),
        "nodes": [int(one) for one in NODES],
        "per_node": [int(one) for one in PER_NODE],
        "sync_s": np.exp(x[count + 3 :]).reshape(len(NODES), len(PER_NODE)),
    }
    fit = {
        "step_mean": float(error.mean()),
        "step_p95": float(np.quantile(error, 0.95)),
        "grad_mean": float(np.abs(grad / grad_s - 1).mean()),
        "one_gpu": float(error[workers == 1].mean()),
    }
    return {key: rounded(value) for key, value in facts.items()}, fit


def fit_curves(truth: TableTruth, batches: list[int]) -> dict[str, Any]:
    """Curves at a few epochs: those where a straight line would miss the noise scale's effect most."""
    first, last = batches[0], batches[-1]
    epochs = np.arange(truth.epochs)
    logs = np.zeros((len(batches), truth.epochs))
    effect = np.zeros_like(logs)
    for row, batch in enumerate(batches):
        for epoch in epochs:
            sqr, var = truth.gradients(batch, int(epoch))
            # A vanishing gradient norm makes the ratio endless; above 100 x the largest batch it has no effect.
            noise = min(max(first * var / max(sqr, 1e-300), first / 100), 100.0 * last)
            logs[row, epoch] = math.log(noise)
            effect[row, epoch] = noise * max(batch, first * 2) / (noise + max(batch, first * 2)) ** 2
    knots = [0, truth.epochs - 1]
    while len(knots) < min(EPOCH_KNOTS, truth.epochs):
        line = np.stack([np.interp(epochs, knots, row[knots]) for row in logs])
        missed = (np.abs(line - logs) * (effect + 0.01)).sum(axis=0)
        missed[knots] = -1
        knots = sorted([*knots, int(missed.argmax())])
    weights = hats(epochs.astype(float), np.array(knots, float))
    noise_rows = [fit_noise(truth, batch, first, weights, logs[row]) for row, batch in enumerate(batches)]
    sqr_logs = [np.mean([math.log(max(truth.gradients(b, e)[0], 1e-12)) for b in batches]) for e in knots]
    return {
        "epochs": knots,
        "batches": batches,
        "noise_scale": rounded(noise_rows),
        "steps": rounded([[truth.steps_until(b, e) for e in knots] for b in batches]),
        "metric": rounded([[truth.metric(b, e) for e in knots] for b in batches]),
        "grad_sqr": rounded(np.exp(sqr_logs)),
    }


def fit_noise(truth: TableTruth, batch: int, first: int, weights: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Noise scale at the knots, such that the curve, the cost of an epoch and their sum come out right."""
    scale = max(batch, 2 * first) / first

    def costs(noise_logs: np.ndarray) -> np.ndarray:
        ratio = np.exp(noise_logs) / first
        return np.asarray(scale * (ratio / scale + 1) / (ratio + 1))

    wanted = costs(logs)

    def residuals(x: np.ndarray) -> np.ndarray:
        found = costs(weights @ x)
        total = (found.sum() / wanted.sum() - 1) * len(logs)
        return np.concatenate([(found - wanted) / wanted.mean(), [3 * total], 0.1 * (weights @ x - logs)])

    start = np.linalg.lstsq(weights, logs, rcond=None)[0]
    return np.asarray(np.exp(least_squares(residuals, start, x_scale="jac", max_nfev=100).x))


def measured_rows(folder: Path, largest: int) -> np.ndarray:
    """All rows a job may use, as ``fit_steps`` wants them."""
    rows = []
    for file in ("placements.csv", "scalability.csv"):
        with (folder / file).open(newline="") as stream:
            for row in read_timings(stream, str(folder / file)):
                most = max(map(int, row.placement)) if row.placement else row.replicas / row.nodes
                if row.atomic_batch <= largest:
                    rows.append((row.nodes, row.replicas, most, row.atomic_batch, row.step_s, row.sync_s))
    return np.array(rows, float)


def finish_errors(table: TableTruth, formula: ProfileTruth, sizes: list[tuple[int, int]]) -> list[float]:
    """|formula/table - 1| of the solo time to finish."""
    return [abs(solo_time_s(formula, *size) / solo_time_s(table, *size) - 1) for size in sizes]


def tuned_sizes(workloads: Path) -> dict[str, list[tuple[int, int]]]:
    """Sizes asked for in the tuned workloads, by task."""
    sizes: dict[str, set[tuple[int, int]]] = {}
    for path in sorted(workloads.glob("tuned-*.csv")):
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                sizes.setdefault(row["application"], set()).add(
                    (int(row["num_replicas"]), int(row["batch_size"]))
                )
    return {task: sorted(found) for task, found in sizes.items()}


def all_sizes(truth: TableTruth, batches: list[int]) -> list[tuple[int, int]]:
    """Worker counts and measured batch sizes that fit each other."""
    low = truth.limits("").per_gpu_min
    return [(w, b) for w in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64) for b in batches if b >= low * w]


def write(content: dict[str, Any]) -> str:
    """JSON with a list of numbers on one line."""
    text = json.dumps(content, indent=1)
    return re.sub(
        r"\[[^\[\]{}]*\]",
        lambda found: re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]"),
        text,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        required=not is_set(),
        default=None if not is_set() else data_dir() / "pollux",
        help="the folder pollux/ of the measurements",
    )
    data: Path = parser.parse_args().data
    types, sizes = gpu_types(), tuned_sizes(data / "workloads")
    tasks: dict[str, Any] = {}
    for name, table in few_of(read_profiles(data)).items():
        limits = table.limits("")
        batches = sorted(int(path.stem.split("-")[1]) for path in (data / name).glob("validation-*.csv"))
        step, fit = fit_steps(measured_rows(data / name, limits.per_gpu_max))
        tasks[name] = {
            "epochs": table.epochs,
            "data_size": table.data_size,
            "max_workers": table.max_workers,
            "batch": msgspec.to_builtins(limits),
            "fit": fit,
            "step": step,
            "curves": fit_curves(table, batches),
        }
        file = msgspec.convert({"about": {}, "gpu_types": types, "tasks": {name: tasks[name]}}, ProfileFile)
        formula = ProfileTruth(file.tasks[name], file.gpu_types)
        tuned = finish_errors(table, formula, sizes[name])
        fit |= {"finish_mean": float(np.mean(tuned)), "finish_worst": max(tuned)}
        fit["finish_any"] = float(np.mean(finish_errors(table, formula, all_sizes(table, batches))))
        tasks[name]["fit"] = {key: round(float(value), 4) for key, value in fit.items()}
        print(name, tasks[name]["fit"])
    text = write({"about": ABOUT, "gpu_types": types, "tasks": tasks}) + "\n"
    if either(False, True):
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(text)


if __name__ == "__main__":
    main()
