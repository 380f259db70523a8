"""The goodput of many jobs at the same options, all at once: what a decision asks of every curve.

The same answers as ``best_batch.best_goodput``, but for a third of its candidates (goodput is flat around its best) and
residuals in single precision; both stay within a fraction of a percent. Jobs with the same limits share one evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.configure._base import FloatArray, IntArray, SpeedModel
from coadapt.configure.best_batch import candidates
from coadapt.model import Batch
from coadapt.predict import step_aware
from coadapt.predict.noise import efficiencies_over
from coadapt.predict.step_aware import AwareParams
from coadapt.predict.step_terms import sync_terms

#: Of the candidates of ``best_batch`` every so many-th is looked at.
_EVERY = 3
#: Jobs evaluated at a time: more do not fit the processor's cache.
_CHUNK = 64


class _Grid(NamedTuple):
    """What all jobs with the same limits share; candidates x options, flattened."""

    atomic: FloatArray
    accumulation: FloatArray
    batch: FloatArray
    allowed: npt.NDArray[np.bool_]
    terms: FloatArray
    options: int
    most: float


def goodputs(
    models: Sequence[SpeedModel],
    limits: Batch,
    nodes: tuple[int, ...],
    replicas: tuple[int, ...],
    fixed: int | None,
) -> FloatArray:
    """goodput[job, option]; every model has parameters of ours."""
    grid = _grid(limits, nodes, replicas, fixed)
    alike: dict[int, list[int]] = {}
    for row, model in enumerate(models):
        assert isinstance(model.step_time, AwareParams)
        alike.setdefault(step_aware.padded(model.step_time), []).append(row)
    found = np.empty((len(models), grid.options))
    for rows in alike.values():
        for at in range(0, len(rows), _CHUNK):
            some = rows[at : at + _CHUNK]
            found[some] = _goodputs([models[row] for row in some], grid, np.array(nodes), np.array(replicas))
    return found


@lru_cache(maxsize=256)
def _grid(limits: Batch, nodes: tuple[int, ...], replicas: tuple[int, ...], fixed: int | None) -> _Grid:
    found = candidates(limits, replicas, fixed)
    rows = np.unique(np.append(np.arange(0, len(found.atomic), _EVERY), len(found.atomic) - 1))
    atomic, accumulation = found.atomic[rows], found.accumulation[rows]
    batch = np.array(replicas) * atomic * (accumulation + 1)
    terms = np.broadcast_to(sync_terms(np.array(nodes), np.array(replicas)), (*atomic.shape, 8))
    return _Grid(
        atomic.ravel().astype(np.float64),
        accumulation.ravel().astype(np.float64),
        batch.ravel().astype(np.float64),
        found.allowed[rows].ravel(),
        np.ascontiguousarray(terms.reshape(-1, 8)),
        len(replicas),
        float(limits.max),
    )


def _goodputs(models: Sequence[SpeedModel], grid: _Grid, nodes: IntArray, replicas: IntArray) -> FloatArray:
    params = [model.step_time for model in models]
    assert all(isinstance(one, AwareParams) for one in params)
    grad, step = step_aware.times_many(
        [one for one in params if isinstance(one, AwareParams)], grid.terms, grid.atomic, nodes, replicas
    )
    speed = grid.batch / (grid.accumulation * grad + step)
    useful = efficiencies_over(
        [(*model.grad, model.grad_batch or model.initial_batch) for model in models],
        float(models[0].initial_batch),
        grid.batch,
        grid.most,
        carry=np.array([model.grad_batch > 0 for model in models]),
    )
    goodput = np.where(grid.allowed, speed * useful, 0.0)
    return np.asarray(goodput.reshape(len(models), -1, grid.options).max(axis=1))
