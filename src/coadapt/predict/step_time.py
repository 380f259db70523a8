"""Step time of a data-parallel job: one contract, two methods.

``"ours"`` (``step_aware``) is the product's; ``"published"`` (``step_published``) is Pollux' own, for policies
that are reproduced as published. The params say which they are, and every function here takes either.

    throughput = K m (s + 1) / T(n, K, m, s)      n nodes, K replicas, m examples per GPU, s accumulation steps
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from coadapt.model import Configuration
from coadapt.predict import step_aware, step_published
from coadapt.predict._base import Estimate, FloatArray
from coadapt.predict.step_aware import AwareParams
from coadapt.predict.step_published import StepTimeParams
from coadapt.predict.step_table import EMPTY_TABLE, Point, StepTimeRow, StepTimeTable, observe
from coadapt.predict.step_terms import NODE_LEVELS, node_level

__all__ = [
    "EMPTY_TABLE",
    "AnyParams",
    "AwareParams",
    "Method",
    "StepTimeParams",
    "StepTimeRow",
    "StepTimeTable",
    "distinct_nodes",
    "fit",
    "fit_count",
    "fit_many",
    "grad_time",
    "node_rows",
    "observe",
    "predict",
    "step_time",
    "throughput",
]

Method = Literal["ours", "published"]
AnyParams: TypeAlias = StepTimeParams | AwareParams
_Key: TypeAlias = tuple[tuple[Point, ...], AwareParams | None]

#: Fits kept. A plain memo, because ``fit_many`` must put many into it at once.
_KEPT = 32768
_memo: OrderedDict[_Key, AwareParams] = OrderedDict()
_fits = {"ours": 0}


def fit(
    table: StepTimeTable,
    prior: AnyParams | None = None,
    *,
    gpu_type: str = "gpu",
    method: Method = "ours",
) -> AnyParams | None:
    """Parameters for one GPU type; ``prior`` while nothing was measured on it. Memoised.

    Ours goes on to lean on a ``prior`` of its own kind once there are measurements.
    """
    points = table.points(gpu_type)
    if not points:
        return prior
    if method == "published":
        return step_published.fit_points(points)
    usable = _usable(prior)
    if usable is not None:
        return _fitted([(points, usable)])[0]
    known: AwareParams | None = table.fitted.get(gpu_type)
    if known is None:
        known = table.fitted[gpu_type] = _fitted([(points, None)])[0]
    return known


def fit_many(
    tables: Sequence[StepTimeTable],
    priors: Sequence[AnyParams | None] | None = None,
    *,
    gpu_type: str = "gpu",
    method: Method = "ours",
) -> list[AnyParams | None]:
    """``fit`` of each table, all at once: what a decision does with every stale job before it asks for curves."""
    around = priors if priors is not None else [None] * len(tables)
    if method == "published":
        return [
            fit(table, prior, gpu_type=gpu_type, method=method)
            for table, prior in zip(tables, around, strict=True)
        ]
    points = [table.points(gpu_type) for table in tables]
    keys = [(some, _usable(prior)) for some, prior in zip(points, around, strict=True) if some]
    fitted = iter(_fitted(keys))
    return [next(fitted) if some else prior for some, prior in zip(points, around, strict=True)]


def _usable(prior: AnyParams | None) -> AwareParams | None:
    return prior if isinstance(prior, AwareParams) else None


def _fitted(keys: Sequence[_Key]) -> list[AwareParams]:
    # a key is long, and so is the time to look it up: once, where it is known
    found = [_memo.get(key) for key in keys]
    new = list(dict.fromkeys(key for key, params in zip(keys, found, strict=True) if params is None))
    if new:
        jobs, priors = zip(*new, strict=True)
        _fits["ours"] += len(new)
        fitted = dict(zip(new, step_aware.fit_points_many(jobs, priors), strict=True))
        found = [fitted[key] if one is None else one for key, one in zip(keys, found, strict=True)]
        _memo.update(fitted)
        while len(_memo) > _KEPT:
            _memo.popitem(last=False)
    return [one for one in found if one is not None]


def fit_count() -> int:
    """Fits really computed by this process so far, not answered from a memo."""
    return step_published.fit_points.cache_info().misses + _fits["ours"]


def step_time(
    params: AnyParams,
    nodes: npt.ArrayLike,
    replicas: npt.ArrayLike,
    atomic: npt.ArrayLike,
    accumulation: npt.ArrayLike = 0,
) -> FloatArray:
    """Seconds of one optimizer step, accumulation included; arguments broadcast."""
    if isinstance(params, StepTimeParams):
        return step_published.step_time(params, nodes, replicas, atomic, accumulation)
    return step_aware.step_time(params, nodes, replicas, atomic, accumulation)


def grad_time(
    params: AnyParams, nodes: npt.ArrayLike, replicas: npt.ArrayLike, atomic: npt.ArrayLike
) -> FloatArray:
    """Seconds of one backward pass, synchronisation apart; arguments broadcast."""
    if isinstance(params, StepTimeParams):
        shape = np.broadcast_shapes(np.shape(nodes), np.shape(replicas), np.shape(atomic))
        return np.asarray(np.broadcast_to(step_published.grad_time(params, atomic), shape))
    return step_aware.times(params, nodes, replicas, atomic)[0]


def throughput(
    params: AnyParams,
    nodes: npt.ArrayLike,
    replicas: npt.ArrayLike,
    atomic: npt.ArrayLike,
    accumulation: npt.ArrayLike = 0,
) -> FloatArray:
    """Examples per second; arguments broadcast."""
    examples = np.asarray(replicas) * np.asarray(atomic) * (np.asarray(accumulation) + 1)
    return np.asarray(examples / step_time(params, nodes, replicas, atomic, accumulation))


def distinct_nodes(nodes: npt.ArrayLike, params: AnyParams | None = None) -> npt.NDArray[np.int_]:
    """Index of the node counts that ``params`` tell apart, from 1 (0: no node); saves evaluating the others."""
    return node_level(nodes) if isinstance(params, AwareParams) else step_published.distinct_nodes(nodes)


def node_rows(params: AnyParams | None = None) -> npt.NDArray[np.int_]:
    """The node counts that ``distinct_nodes`` counts: its index i stands for ``node_rows(params)[i - 1]``."""
    return NODE_LEVELS if isinstance(params, AwareParams) else np.array([1, 2])


def predict(params: AnyParams, x: Configuration) -> Estimate:
    """Seconds of one optimizer step in configuration ``x``."""
    if isinstance(params, StepTimeParams):
        return step_published.predict(params, x)
    return step_aware.predict(params, x)
