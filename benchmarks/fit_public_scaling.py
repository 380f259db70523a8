"""Makes src/coadapt/prediction/samples/data/public_scaling.json from results of MLPerf Training. Run by hand:

    python -m benchmarks.fit_public_scaling

A job is one benchmark on one accelerator in one round; a configuration is its batch size, accelerators and nodes, with the
median time of a pass over its runs (seconds from start to stop over passes to the target, so evaluations count).
Everything written is a fitted number (``prediction.samples.public_scaling``).
"""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.published import data_dir
from benchmarks.smoke import either, is_set
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples.public_scaling import fit_prior

TARGET = Path(__file__).parents[1] / "src/coadapt/prediction/samples/data/public_scaling.json"
SOURCE = (
    "fitted to results of MLPerf Training v0.5 to v2.1 (mlcommons/training_results_*, Apache-2.0) "
    "by benchmarks/fit_public_scaling.py"
)
_PER_NODE = 8


class PublicJob(NamedTuple):
    """Configurations of one benchmark, accelerator and round: rows of batch, accelerators, nodes, seconds of a pass."""

    benchmark: str
    accelerator: str
    round: str
    rows: FloatArray


def public_jobs() -> list[PublicJob]:
    """All jobs that ran on at least two numbers of accelerators."""
    seen: dict[tuple[str, str, str], dict[tuple[float, float, float], list[float]]]
    seen = defaultdict(lambda: defaultdict(list))
    for run in _runs():
        passes = _number(run["epochs_to_target"]) or _number(run["samples_to_target"])
        accelerators, batch = _number(run["n_accel"]), _number(run["global_batch"])
        if run["status"] == "aborted" or not passes or not accelerators or not batch:
            continue
        nodes = _number(run["nodes"]) or math.ceil(accelerators / _PER_NODE)
        key = run["benchmark"], run["accelerator"], run["round"]
        where = batch, accelerators, min(nodes, accelerators)
        seen[key][where].append(float(run["seconds"]) / passes)
    jobs = []
    for key, found in sorted(seen.items()):
        rows = np.array([(*where, float(np.median(times))) for where, times in sorted(found.items())])
        if len(np.unique(rows[:, 1])) > 1:
            jobs.append(PublicJob(*key, rows))
    return jobs


def _runs() -> Iterator[dict[str, str]]:
    with gzip.open(data_dir() / "realworld" / "mlperf_runs.csv.gz", "rt", encoding="utf-8") as stream:
        yield from csv.DictReader(stream)


def _number(text: str) -> float:
    """The number, 0 where there is none."""
    return float(text) if text else 0.0


def main() -> int:
    """Fits and writes."""
    prior = fit_prior([job.rows for job in public_jobs()], either(2, 60))
    prior = msgspec.structs.replace(prior, source=SOURCE)
    if not is_set():
        TARGET.write_bytes(msgspec.json.format(msgspec.json.encode(prior), indent=1) + b"\n")
    print(f"{TARGET.name}: {prior.jobs} jobs, {prior.configurations} configurations, noise {prior.noise:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
