"""Time of a pass on more accelerators than were sampled, on results of MLPerf Training: error and width of the 80% interval.

A job (``fit_public_scaling``) shows the smaller half of its sizes; its larger ones are predicted. The prior of public runs is fitted
anew without the job's round, and without its benchmark, before it is used: a job never informs its own prior. "Form alone" is
the same fit with no share for public runs, and the rule scales the largest sample by n^-0.88.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from benchmarks import realworld_records as records
from benchmarks.cells import cell, source_hash
from benchmarks.fit_public_scaling import PublicJob, public_jobs
from benchmarks.smoke import either
from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples import epoch_time
from coadapt.prediction.samples.public_scaling import ScalingPrior, fit_prior
from coadapt.prediction.samples.sample_table import EpochSample, EpochTable, epoch_table

SOURCES = ("prediction/samples/*.py", "model/hardware.py")
SETTING = ("realworld_scaling.py", "fit_public_scaling.py")
PER_NODE = 8
EXPONENT = -0.88
#: Most times as many accelerators as were sampled, for each column of the table.
REACHES = {"up to 2x": (1.0, 2.0), "2 to 8x": (2.0, 8.0), "beyond": (8.0, np.inf)}
#: Largest mean errors, by what is left out.
MUSTS = {"round": (0.14, 0.22, 0.35), "benchmark": (0.18, 0.26, 0.40)}
#: Largest median of upper over lower end of the 80% interval, up to so many times the accelerators.
WIDTH, NEAR = 2.2, (1.0, 8.0)
#: Rows: times as many accelerators, real seconds, low, predicted and high seconds.
Row = tuple[float, float, float, float, float]


def run() -> bool:
    """Prints the figures; whether all targets are met."""
    records.folder()
    sources = source_hash(SOURCES, setting=SETTING)
    met = True
    for title in ("rule n^-0.88", "form alone", *MUSTS):
        found = cell("realworld-scaling", {"by": title}, sources, partial(rows_by, title))
        rows: list[Any] = found["rows"]
        errors = [_error(_within(rows, reach)) for reach in REACHES.values()]
        name = f"{title} left out" if title in MUSTS else title
        text = ", ".join(f"{reach} {error:.0%}" for reach, error in zip(REACHES, errors, strict=True))
        if title in MUSTS:
            met = met and all(error <= must for error, must in zip(errors, MUSTS[title], strict=True))
            met = met and _width(rows) <= WIDTH
            text += f" (must {' / '.join(f'{must:.0%}' for must in MUSTS[title])})"
        print(f"  {name}: {len(rows)} predictions, mean error {text}{_interval(rows)}")
    return met


def _interval(rows: list[Row]) -> str:
    if all(low == high for _, _, low, _, high in rows):
        return ""
    near = _within(rows, NEAR)
    inside = [fmean(low <= real <= high for _, real, low, _, high in some) for some in (near, rows) if some]
    return f"; 80% interval up to 8x {_width(rows):.2f} times wide (must {WIDTH}); inside up to 8x, all: {', '.join(f'{each:.0%}' for each in inside)}"


def _width(rows: list[Row]) -> float:
    near = _within(rows, NEAR)
    return median(high / low for _, _, low, _, high in near) if near else 0.0


def _within(rows: list[Row], reach: tuple[float, float]) -> list[Row]:
    return [row for row in rows if reach[0] < row[0] <= reach[1]]


def _error(rows: list[Row]) -> float:
    return fmean(abs(row[3] / row[1] - 1) for row in rows) if rows else 0.0


def rows_by(method: str) -> dict[str, Any]:
    """Predictions of one method, or of ours with the round or benchmark of each job left out."""
    jobs = public_jobs()
    found: list[Row] = []
    for job in jobs[:: either(20, 1)]:
        sizes = np.unique(job.rows[:, 1])
        largest = sizes[(len(sizes) - 1) // 2]
        shown, hidden = job.rows[job.rows[:, 1] <= largest], job.rows[job.rows[:, 1] > largest]
        for row, answer in zip(hidden, _answers(method, job, jobs)(shown, hidden), strict=True):
            found.append((float(row[1] / largest), float(row[3]), *answer))
    return {"rows": found}


_Answers = Callable[[FloatArray, FloatArray], list[tuple[float, float, float]]]


def _answers(method: str, job: PublicJob, jobs: list[PublicJob]) -> _Answers:
    """Low, predicted and high seconds of hidden rows, from those that are shown."""
    if method == "rule n^-0.88":
        return _by_rule
    scaling = prior_without(method, getattr(job, method), jobs) if method in MUSTS else None

    def by_fit(shown: FloatArray, hidden: FloatArray) -> list[tuple[float, float, float]]:
        params = epoch_time.fit(_table(shown, job.accelerator), scaling=scaling)
        assert params is not None
        if scaling is None:
            params = msgspec.structs.replace(params, share=0.0)
        middle, half = epoch_time.log_widths_at(params, hidden[:, :3])
        low, high = np.exp(middle - half), np.exp(middle + half)
        return list(zip(low.tolist(), np.exp(middle).tolist(), high.tolist(), strict=True))

    return by_fit


def _by_rule(shown: FloatArray, hidden: FloatArray) -> list[tuple[float, float, float]]:
    last = shown[shown[:, 1] == shown[:, 1].max()]
    found = []
    for batch, workers, *_ in hidden:
        # of several batch sizes on the most accelerators, the one whose share of an accelerator is nearest
        nearest = last[np.argmin(np.abs(np.log(last[:, 0] / last[:, 1]) - np.log(batch / workers)))]
        seconds = float(nearest[3] * (workers / nearest[1]) ** EXPONENT)
        found.append((seconds, seconds, seconds))
    return found


def prior_without(what: str, left_out: str, jobs: list[PublicJob]) -> ScalingPrior:
    """The prior of all jobs of other rounds, or of other benchmarks."""
    if (what, left_out) not in _priors:
        others = [other.rows for other in jobs if getattr(other, what) != left_out]
        _priors[what, left_out] = fit_prior(others, either(2, 60))
    return _priors[what, left_out]


_priors: dict[tuple[str, str], ScalingPrior] = {}


def _table(rows: FloatArray, gpu_type: str) -> EpochTable:
    samples = [
        EpochSample(batch=round(batch), workers=round(workers), nodes=round(nodes), epoch_s=seconds)
        for batch, workers, nodes, seconds in rows.tolist()
    ]
    return epoch_table(samples, gpus_per_node=PER_NODE, gpu_type=gpu_type)
