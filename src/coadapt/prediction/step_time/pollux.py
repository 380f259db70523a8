"""The step-time model of Pollux (Qiao et al., OSDI 2021), section 3.2: seven parameters, fitted as its released code does.

    T_grad(m)     = alpha_c + beta_c m                         one backward pass, m examples per GPU
    T_sync(n, K)  = alpha_n + beta_n max(K - 2, eps)           n > 1 nodes, K replicas
                    alpha_r + beta_r max(K - 2, eps)           one node, K > 1
                    eps                                        K = 1
    T(n, K, m, s) = s T_grad + (T_grad^g + T_sync^g)^(1/g)     s accumulation steps, g >= 1 overlap

The fit has objective, start and bounds of the released code. Where we deviate: repeated
measurements of a configuration are averaged (there the first one stays), and a prediction has an interval,
from the scatter of the residuals and from what was never measured.

    minimise  RMSE(log T_grad) + RMSE(log T_step) + 1e-3 (g - 1)^2
              + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)

over all configurations measured, each counting once, by L-BFGS-B from a fixed start within bounds.
What the data cannot tell is pinned: to the optimistic side, so that a scheduler tries it.

The gradient is derived by hand. With L = log T, c the compute and u the synchronisation time,
T_step = (c^g + u^g)^(1/g):  dL/dlog c = p,  dL/dlog u = 1 - p = q,  dL/dg = (p log c + q log u - L)/g,
where p = (c / T_step)^g; and (c, u) is linear in the six times, so one matrix carries the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from coadapt.model import Configuration
from coadapt.model.interval import Interval
from coadapt.prediction import parameter_server
from coadapt.prediction._base import FloatArray, relative_interval, t_quantile
from coadapt.prediction.parameter_server import ServerParams, ServerPrior, ServerTable
from coadapt.prediction.step_time._base import FittedStepTime, StepTimeModel
from coadapt.prediction.step_time.step_table import Point

#: What the scatter of log step times is assumed to be before there are residuals, and the number of points that the assumption counts.
_PRIOR_SCATTER, _PRIOR_POINTS = 0.15, 3
#: Added scatter where no configuration of the kind (alone, one node, several nodes) was measured,
#: and per doubling of replicas beyond the most that were.
_UNSEEN_SCATTER, _DOUBLING_SCATTER = 0.5, 0.1

_TIMES = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r")
_NAMES = (*_TIMES, "gamma")


class StepTimeParams(FittedStepTime, frozen=True):
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

    def grad_time(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, atomic: npt.ArrayLike) -> FloatArray:
        """One backward pass, wherever it runs."""
        shape = np.broadcast_shapes(np.shape(nodes), np.shape(replicas), np.shape(atomic))
        return np.asarray(np.broadcast_to(self.alpha_c + self.beta_c * np.asarray(atomic), shape))

    def step_time(
        self,
        nodes: npt.ArrayLike,
        replicas: npt.ArrayLike,
        atomic: npt.ArrayLike,
        accumulation: npt.ArrayLike = 0,
    ) -> FloatArray:
        """Seconds of one step of ``replicas`` on ``nodes``, ``atomic`` examples per GPU, ``accumulation`` extra passes."""
        nodes, replicas = np.asarray(nodes), np.asarray(replicas)
        grad = self.alpha_c + self.beta_c * np.asarray(atomic)
        beyond_two = np.maximum(replicas - 2, EPS)
        sync = np.where(
            nodes > 1,
            self.alpha_n + self.beta_n * beyond_two,
            np.where(replicas > 1, self.alpha_r + self.beta_r * beyond_two, EPS),
        )
        step = (grad**self.gamma + sync**self.gamma) ** (1 / self.gamma)
        return np.asarray(np.asarray(accumulation) * grad + step)

    def predict(self, x: Configuration) -> Interval:
        """See ``FittedStepTime``."""
        value = float(self.step_time(x.nodes, x.replicas, x.atomic_batch, x.accumulation))
        near = self.points[kind(x.nodes, x.replicas)]
        variance = self.scatter**2 * (1 + 1 / near) if near else self.scatter**2 + _UNSEEN_SCATTER**2
        doublings = math.log2(max(x.replicas / self.max_replicas, 1))
        width = math.sqrt(variance + (_DOUBLING_SCATTER * doublings) ** 2)
        return relative_interval(value, width * t_quantile(sum(self.points)))

    def projected(self, ratio: float, scatter: float) -> StepTimeParams:
        """All times divided by ``ratio``."""
        times = {name: getattr(self, name) / ratio for name in _TIMES}
        return replace(self, **times, scatter=math.hypot(self.scatter, scatter))

    def distinct_nodes(self, nodes: npt.ArrayLike) -> npt.NDArray[np.int_]:
        """Distinguish one node from several."""
        return np.asarray(np.minimum(nodes, 2))

    def node_counts(self) -> npt.NDArray[np.int_]:
        """See ``FittedStepTime``."""
        return np.array([1, 2])


class PolluxModel(StepTimeModel):
    """As published: nothing but the job's own measurements, fitted one job at a time."""

    name = "pollux"
    order = 20
    uses_past_jobs = False
    carries_noise = False
    by_grid = True

    def fit_points(
        self, jobs: Sequence[tuple[Point, ...]], priors: Sequence[FittedStepTime | None]
    ) -> list[FittedStepTime]:
        """See ``StepTimeModel``."""
        return [fit_points(points) for points in jobs]

    def fit_servers(
        self, table: ServerTable, prior: ServerParams | ServerPrior | None = None
    ) -> ServerParams | None:
        """Fit by the published method of Optimus."""
        return parameter_server.fit_published(table, prior)


def fit_points(points: tuple[Point, ...]) -> StepTimeParams:
    """Fit the parameters to ``points`` (at least one)."""
    params = StepTimeParams(**dict(zip(_NAMES, solve(points).tolist(), strict=True)))
    nodes, replicas, atomic, _, step_s = np.array(points).T
    residual = np.log(params.step_time(nodes, replicas, atomic) / step_s)
    squares = float(residual @ residual) + _PRIOR_POINTS * _PRIOR_SCATTER**2
    kinds = [kind(point[0], point[1]) for point in points]
    return replace(
        params,
        scatter=math.sqrt(squares / (len(points) + _PRIOR_POINTS)),
        points=(kinds.count(0), kinds.count(1), kinds.count(2)),
        max_replicas=int(replicas.max()),
    )


def kind(nodes: float, replicas: float) -> int:
    """0: one replica, 1: several on one node, 2: several nodes."""
    return 2 if nodes > 1 else int(replicas > 1)


#: Stands for no time at all: logarithms need a positive number.
EPS = 1e-8
START = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)
LOWER = (EPS, EPS, EPS, EPS, EPS, EPS, 1.0)
UPPER = (np.inf, np.inf, np.inf, np.inf, np.inf, np.inf, 10.0)
ALPHA_C, BETA_C, ALPHA_N, BETA_N, ALPHA_R, BETA_R, GAMMA = range(7)
#: The network between nodes is taken to be at least so much slower than inside one, until measured.
NETWORK_SLOWER = 1.1

_GAMMA_WEIGHT, _RETROGRESS_WEIGHT = 1e-3, 1e-2

Objective = Callable[[FloatArray], tuple[float, FloatArray]]


def solve(points: Sequence[Point]) -> FloatArray:
    """The seven parameters that fit ``points`` (at least one) best."""
    data = np.array(points, dtype=np.float64)
    start, lower, upper = _start_and_bounds(data)
    evaluations = _Evaluations(objective(data))
    from scipy.optimize import Bounds, minimize  # only here: a replica that starts should not wait for scipy

    bounds = Bounds(lower, upper)
    result = minimize(evaluations.value, start, jac=evaluations.gradient, method="L-BFGS-B", bounds=bounds)
    params: FloatArray = result.x
    if not np.any(data[:, 0] > 1):
        params[ALPHA_N] = max(params[ALPHA_N], NETWORK_SLOWER * params[ALPHA_R])
        params[BETA_N] = max(params[BETA_N], NETWORK_SLOWER * params[BETA_R])
    return params


def _start_and_bounds(data: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Start, lower and upper bounds; a pinned parameter has all three alike."""
    nodes, replicas, atomic, grad_s, _ = data.T
    start, lower, upper = np.array(START), np.array(LOWER), np.array(UPPER)

    def pin(index: int, value: float) -> None:
        start[index] = lower[index] = upper[index] = value

    if np.all(atomic == atomic[0]):
        # half of the time scales with the batch: larger batches look promising and get tried
        pin(ALPHA_C, grad_s.mean() / 2)
    if not np.any(nodes > 1):
        pin(ALPHA_N, EPS)
        pin(BETA_N, EPS)
    if not np.any((nodes == 1) & (replicas > 1)):
        pin(ALPHA_R, EPS)
        pin(BETA_R, EPS)
    if not np.any(replicas > 2):
        pin(BETA_N, EPS)
        pin(BETA_R, EPS)
    return start, lower, upper


def objective(data: FloatArray) -> Objective:
    """A function of the seven parameters: value and gradient; ``data`` has one point per row."""
    nodes, replicas, atomic, grad_s, step_s = data.T
    n = len(data)
    design, constant = _design(nodes, replicas, atomic)
    transposed = np.ascontiguousarray(design.T)
    log_grad, log_step = np.log(grad_s), np.log(step_s)
    weight = np.empty(2 * n)

    def value_and_gradient(x: FloatArray) -> tuple[float, FloatArray]:
        gamma = x[GAMMA]
        times = design @ x[:GAMMA] + constant
        logs = np.log(times)
        log_c, log_u = logs[:n], logs[n:]
        log_t = np.logaddexp(gamma * log_c, gamma * log_u) / gamma
        p = np.exp(gamma * (log_c - log_t))
        rms_c, slope_c = _rms_and_slope(log_c - log_grad)
        rms_t, slope_t = _rms_and_slope(log_t - log_step)
        by_compute = slope_t * p
        weight[:n] = slope_c + by_compute
        weight[n:] = slope_t - by_compute
        gradient = np.empty(7)
        gradient[:GAMMA] = transposed @ (weight / times)
        gradient[GAMMA] = (weight @ logs - slope_c @ log_c - slope_t @ log_t) / gamma
        return rms_c + rms_t + _add_penalties(x, gradient), gradient

    return value_and_gradient


def _design(nodes: FloatArray, replicas: FloatArray, atomic: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute times (first half) and synchronisation times (second) = design @ six times + constant."""
    n = len(nodes)
    between, inside = nodes > 1, (nodes <= 1) & (replicas > 1)
    beyond_two = np.maximum(replicas - 2, EPS)
    design, constant = np.zeros((2 * n, 6)), np.zeros(2 * n)
    design[:n, ALPHA_C], design[:n, BETA_C] = 1.0, atomic
    design[n:, ALPHA_N], design[n:, BETA_N] = between, between * beyond_two
    design[n:, ALPHA_R], design[n:, BETA_R] = inside, inside * beyond_two
    constant[n:] = np.where(between | inside, 0.0, EPS + EPS * EPS)
    return design, constant


def _rms_and_slope(residual: FloatArray) -> tuple[float, FloatArray]:
    """Root mean square and its derivative by each residual (zero at the kink, a perfect fit)."""
    n = len(residual)
    rms = math.sqrt(float(residual @ residual) / n)
    return rms, residual / (n * rms) if rms > 0 else np.zeros(n)


def _add_penalties(x: FloatArray, gradient: FloatArray) -> float:
    """The penalty terms; adds their derivatives to ``gradient``."""
    values = x.tolist()
    over = values[GAMMA] - 1
    gradient[GAMMA] += 2 * _GAMMA_WEIGHT * over
    penalty: float = _GAMMA_WEIGHT * over * over
    for alpha, beta in ((ALPHA_N, BETA_N), (ALPHA_R, BETA_R)):
        ratio = values[beta] / values[alpha]
        slope = 2 * _RETROGRESS_WEIGHT * ratio / values[alpha]
        gradient[beta] += slope
        gradient[alpha] -= slope * ratio
        penalty += _RETROGRESS_WEIGHT * ratio * ratio
    return penalty


class _Evaluations:
    """Value and gradient as two functions for ``minimize``, computed once per point.

    Its own memo (``jac=True``) takes as long as the objective itself on tables of this size.
    """

    def __init__(self, function: Objective) -> None:
        self._function = function
        self._at = b""
        self._gradient = np.empty(0)

    def value(self, x: FloatArray) -> float:
        value, self._gradient = self._function(x)
        self._at = x.tobytes()
        return value

    def gradient(self, x: FloatArray) -> FloatArray:
        if x.tobytes() != self._at:
            self.value(x)
        return self._gradient
