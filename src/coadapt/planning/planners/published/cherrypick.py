"""CherryPick-like search: a Gaussian process over options, expected improvement, a few full runs.

Alipourfard et al., "CherryPick: adaptively unearthing the best cloud configurations", NSDI 2017: three options at random, then
the one with the highest expected improvement of the cost, until that is below 10% of the best or the trials are used up. An option that
breaks a limit counts with its overrun. Where we deviate: coordinates are ln GPUs and ln batch per GPU, one-hot GPU types; a Matern
5/2 kernel with fixed lengths (a few points do not tell them).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from coadapt.planning.planners.published._trials import Tries, TryingPlanner
from coadapt.planning.problem import Option
from coadapt.prediction._base import FloatArray

_FIRST, _LEAST_GAIN, _NUGGET = 3, 0.1, 1e-4


class CherryPickPlanner(TryingPlanner):
    """Tries options by expected improvement under a Gaussian process."""

    name, most = "cherrypick", 20
    order = 60

    def search(self, tries: Tries, rng: np.random.Generator) -> None:
        """See ``TryingPlanner``."""
        options = tries.options
        points = _points(options)
        tried = [int(i) for i in rng.permutation(len(options))[:_FIRST]]
        for i in tried:
            tries.run(i)
        while len(tried) < min(self._tries, len(options)):
            height = np.array([_height(tries, i) for i in tried])
            gain = _improvement(points[tried], height, points)
            gain[tried] = -1.0
            best = int(np.argmax(gain))
            within = any(not tries.score(i)[0] for i in tried)
            if within and len(tried) > 2 * _FIRST and gain[best] < _LEAST_GAIN:
                break
            tries.run(best)
            tried.append(best)


def _height(tries: Tries, i: int) -> float:
    """ln of what is paid, plus how far a limit is broken: to be made small."""
    broken, first, second = tries.score(i)
    if not broken:
        if tries.question.objective == "metric":
            return first
        return float(np.log(max(first, 1e-12)))
    paid = tries.run(i).total_s * float(tries.columns.price_s[i])
    scale = paid if tries.question.objective == "cost" else tries.run(i).total_s
    if tries.question.objective == "metric":
        return 0.0
    return float(np.log(max(scale, 1e-12)) + 3 * np.log(max(second, 1.0)) + 2 * first)


def _points(options: Sequence[Option]) -> FloatArray:
    types = sorted({option.gpu_type for option in options})
    numbers = np.array([(np.log(o.replicas), np.log(o.batch / o.replicas)) for o in options])
    kinds = np.array([[float(o.gpu_type == name) for name in types] for o in options])
    spread = np.maximum(numbers.std(axis=0), 1e-9)
    return np.concatenate([(numbers - numbers.mean(axis=0)) / spread, kinds], axis=1)


def _kernel(a: FloatArray, b: FloatArray) -> FloatArray:
    distance = np.sqrt(5 * ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2))
    return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance))


def _improvement(known: FloatArray, height: FloatArray, points: FloatArray) -> FloatArray:
    """Expected fall below the lowest height so far."""
    scale = max(float(height.std()), 1e-6)
    y = (height - height.mean()) / scale
    inner = np.linalg.inv(_kernel(known, known) + _NUGGET * np.eye(len(known)))
    across = _kernel(points, known)
    mean = across @ inner @ y
    sd = np.sqrt(np.maximum(1 - np.einsum("ij,jk,ik->i", across, inner, across), 1e-12))
    z = (y.min() - mean) / sd
    return np.asarray(scale * ((y.min() - mean) * ndtr(z) + sd * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)))
