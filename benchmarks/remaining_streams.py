"""Generated streams of batch times: seven kinds of runs, each with what makes an ETA hard in it.

noise, stragglers, epochs with validation, stops, resizes (which a scheduler reports), batch changes (which are not reported), all of it.
Constants were tuned on seeds from 1000 on; rows use 0 to 59.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.remaining_jobs import SHARES, Score
from coadapt.prediction.remaining import eta_estimate
from coadapt.prediction.remaining.eta_estimate import eta

KINDS = ("noise", "stragglers", "epochs", "stops", "resizes", "batches", "all")
Floats = npt.NDArray[np.float64]


def stream(kind: str, rng: np.random.Generator) -> tuple[Floats, Floats, list[str]]:
    """Times and work after each batch, and the configuration where a scheduler would tell it."""
    n = int(rng.integers(400, 4000))
    base = float(np.exp(rng.normal(-1, 1)))
    took = base * np.exp(rng.normal(0, rng.uniform(0.02, 0.3), n))
    took *= np.exp(np.cumsum(rng.normal(0, rng.uniform(0, 0.08) / math.sqrt(n), n)))
    work, told = np.full(n, 64.0), [""] * n
    if kind in ("stragglers", "all"):
        took = np.where(rng.random(n) < rng.uniform(0.005, 0.04), took * rng.uniform(2, 8), took)
    if kind in ("resizes", "all"):
        told = ["start"] * n
        for number in range(1 + rng.poisson(0.5)):
            at = int(rng.integers(1, n))
            took[at:] *= math.exp(rng.choice([-1, 1]) * rng.uniform(0.2, 0.8))
            took[at] += 30.0 * base
            told[at:] = [f"resize {number}"] * (n - at)
    if kind in ("batches", "all"):
        at = int(rng.integers(1, n))
        took[at:] *= 2 ** rng.uniform(0.5, 0.95)
        work[at:] *= 2
    if kind in ("epochs", "all"):
        every = n // int(rng.integers(5, 30))
        took[every - 1 :: every] += base * rng.uniform(0.03, 0.15) * every
    if kind in ("stops", "all"):
        for _ in range(rng.poisson(0.6)):
            took[int(rng.integers(1, n))] += took.sum() * rng.uniform(0.005, 0.05)
    return np.cumsum(took), np.cumsum(work), told


def follow(at: Floats, work: Floats, told: list[str]) -> Iterator[Score]:
    """Scores of one run at the shares."""
    state, total = eta_estimate.observe(eta_estimate.START, 0.0, 0.0, told[0]), float(work[-1])
    marks = {int(np.searchsorted(work, share * total)): share for share in SHARES}
    for i, (now, done) in enumerate(zip(at.tolist(), work.tolist(), strict=True)):
        state = eta_estimate.observe(state, now, done, told[i])
        if i in marks:
            estimate, true = eta(state, total - done), float(at[-1]) - now
            assert estimate is not None
            yield marks[i], estimate.value, true, estimate.low <= true <= estimate.upper


def scores(seeds: int) -> list[Score]:
    """Scores of a number of runs of every kind."""
    return [
        score
        for number, kind in enumerate(KINDS)
        for seed in range(seeds)
        for score in follow(*stream(kind, np.random.default_rng((number, seed))))
    ]
