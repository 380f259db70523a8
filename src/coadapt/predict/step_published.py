"""Step time of a data-parallel job as published: Pollux (Qiao et al., OSDI 2021), section 3.2, seven parameters.

    T_grad(m)     = alpha_c + beta_c m                         one backward pass, m examples per GPU
    T_sync(n, K)  = alpha_n + beta_n max(K - 2, eps)           n > 1 nodes, K replicas
                    alpha_r + beta_r max(K - 2, eps)           one node, K > 1
                    eps                                        K = 1
    T(n, K, m, s) = s T_grad + (T_grad^g + T_sync^g)^(1/g)     s accumulation steps, g >= 1 overlap

The fit is in ``step_fit``: objective, start and bounds of the released code. Where we deviate: repeated
measurements of a configuration are averaged (there the first one stays), and a prediction has an interval,
from the scatter of the residuals and from what was never measured.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from coadapt.model import Configuration, Fact
from coadapt.predict._base import Estimate, FloatArray, relative_interval, t_quantile
from coadapt.predict.step_fit import EPS, solve
from coadapt.predict.step_table import Point

#: What the scatter of log step times is taken to be before there are residuals, worth so many points.
_PRIOR_SCATTER, _PRIOR_POINTS = 0.15, 3
#: Added scatter where no configuration of the kind (alone, one node, several nodes) was measured,
#: and per doubling of replicas beyond the most that were.
_UNSEEN_SCATTER, _DOUBLING_SCATTER = 0.5, 0.1

_NAMES = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")


class StepTimeParams(Fact, frozen=True):
    """Fitted parameters, in seconds, and what an interval needs to know about the fit."""

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float
    #: Standard deviation of log step time around the fit.
    scatter: float = _PRIOR_SCATTER
    #: Configurations fitted: one replica, one node, several nodes.
    points: tuple[int, int, int] = (0, 0, 0)
    max_replicas: int = 1


@lru_cache(maxsize=4096)
def fit_points(points: tuple[Point, ...]) -> StepTimeParams:
    """Parameters of at least one point. Memoised."""
    params = StepTimeParams(**dict(zip(_NAMES, solve(points).tolist(), strict=True)))
    nodes, replicas, atomic, _, step_s = np.array(points).T
    residual = np.log(step_time(params, nodes, replicas, atomic) / step_s)
    squares = float(residual @ residual) + _PRIOR_POINTS * _PRIOR_SCATTER**2
    kinds = [kind(point[0], point[1]) for point in points]
    return replace(
        params,
        scatter=math.sqrt(squares / (len(points) + _PRIOR_POINTS)),
        points=(kinds.count(0), kinds.count(1), kinds.count(2)),
        max_replicas=int(replicas.max()),
    )


def grad_time(params: StepTimeParams, atomic: npt.ArrayLike) -> FloatArray:
    """Seconds of one backward pass."""
    return np.asarray(params.alpha_c + params.beta_c * np.asarray(atomic))


def step_time(
    params: StepTimeParams,
    nodes: npt.ArrayLike,
    replicas: npt.ArrayLike,
    atomic: npt.ArrayLike,
    accumulation: npt.ArrayLike = 0,
) -> FloatArray:
    """Seconds of one optimizer step, accumulation included; arguments broadcast."""
    nodes, replicas = np.asarray(nodes), np.asarray(replicas)
    grad = params.alpha_c + params.beta_c * np.asarray(atomic)
    beyond_two = np.maximum(replicas - 2, EPS)
    sync = np.where(
        nodes > 1,
        params.alpha_n + params.beta_n * beyond_two,
        np.where(replicas > 1, params.alpha_r + params.beta_r * beyond_two, EPS),
    )
    step = (grad**params.gamma + sync**params.gamma) ** (1 / params.gamma)
    return np.asarray(np.asarray(accumulation) * grad + step)


def distinct_nodes(nodes: npt.ArrayLike) -> npt.NDArray[np.int_]:
    """The node counts this model can tell apart: one and several."""
    return np.asarray(np.minimum(nodes, 2))


def predict(params: StepTimeParams, x: Configuration) -> Estimate:
    """Seconds of one optimizer step in configuration ``x``."""
    value = float(step_time(params, x.nodes, x.replicas, x.atomic_batch, x.accumulation))
    near = params.points[kind(x.nodes, x.replicas)]
    variance = params.scatter**2 * (1 + 1 / near) if near else params.scatter**2 + _UNSEEN_SCATTER**2
    doublings = math.log2(max(x.replicas / params.max_replicas, 1))
    width = math.sqrt(variance + (_DOUBLING_SCATTER * doublings) ** 2)
    return relative_interval(value, width * t_quantile(sum(params.points)))


def kind(nodes: float, replicas: float) -> int:
    """0: one replica, 1: several on one node, 2: several nodes."""
    return 2 if nodes > 1 else int(replicas > 1)
