"""What is believed of the noise scale after some samples: a distribution, not an average.

Late in training the squared gradient is a hundredth of what chance adds to one sample of it, and shrinks tenfold within a few
epochs. A moving average cannot serve both: long, it is behind; short, it is chance. So the ratio x = sqr / var = M0 / phi
gets a distribution over a grid of log x (a histogram filter):

    between samples   log x wanders: its variance grows by DRIFT^2 per epoch of work (more slowly where epochs are long)
    a sample          multiplies it by how likely sqr is given x:  sqr / var = x + (chance),  of deviation
                      sqrt((spread M0 / B)^2 + (JUMPS x)^2)

M0 / B is what the variance of a gradient over B examples comes to, and ``spread`` is learned from what samples strayed;
JUMPS is how much the gradient itself changes from one step to the next. Chance has Student's tails: one wild sample does not
count for ten. Informative samples are followed at once, uninformative ones shift little, and what cannot be told from zero is
believed to be small but not nothing. Where even that is wrong it does not matter: phi is then far above the batch.

Only + - * / and square roots, so that replicas on unlike processors come to the same numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from coadapt.torch.noise import Sample

FloatArray = npt.NDArray[np.float64]

#: Deviation of log phi after one epoch: a factor of two either way. That noise mostly grows is left to samples to tell: a trend
#: was tried, and made batches too large early in training, where every one of them is needed.
_DRIFT = 0.7
#: Steps at M0 that an epoch is taken for, at least and at most: noise grows within the first epoch of a large set, too.
_SHORTEST, _LONGEST = 50, 500
#: Most epochs that are taken to pass between two samples: rarer ones are not forgotten by the next. (A fifth was tried: where a sample
#: comes once in an epoch the belief was behind by a factor of five, on paths made up for it.)
_FURTHEST = 1.0
_JUMPS = 0.5
#: Where samples do not jump at all, what is likeliest lies below them by this factor (the maximum of the density over x).
_STEADY = (1 + math.sqrt(1 + 4 * _JUMPS**2)) / 2
#: Spread before anything is known, and samples over which it and the variance are averaged.
_SPREAD, _STRAYED, _RECENT = 0.5, 30, 10
#: Samples that say nothing at all, as a share; what they may stray, as a multiple of what is usual; what is usual at least.
_CHANCE, _WILD, _LEAST = 1e-3, 10.0, 1e-4
#: Before the first sample phi is M0, give or take this much in logarithms: a chance value near zero is not believed.
_PRIOR = 1.5
#: Least ratio that is believed, in standard errors of an epoch's mean.
_RESOLVED = 0.1
#: The grid: log x in steps of _STEP, from a millionth to a thousand.
_STEP = 0.2
_LOG: FloatArray = np.asarray(_STEP * np.arange(-69, 35), dtype=np.float64)
_RATIO = np.cumprod(np.full(len(_LOG), 1.2214027581601699)) * 8.315287191035679e-07
_JUMPED = (_JUMPS * _RATIO) ** 2
_TAILS = 5


def _likelihood(off: FloatArray, variance: FloatArray | float) -> FloatArray:
    """Student's, with five degrees of freedom; up to a factor."""
    strange = 1 + off * off / (_TAILS * variance)
    return np.asarray(1 / (strange * strange * strange))


class NoiseFilter:
    """Told every sample; ``steps_per_epoch`` is at M0."""

    def __init__(self, steps_per_epoch: int = _LONGEST) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.samples = 0
        self.successive = False
        self._belief = _likelihood(_LOG, _PRIOR**2)
        self._sqr = self._var = 0.0
        self._strayed = _SPREAD**2

    @property
    def known(self) -> bool:
        """Whether there was any sample."""
        return self.samples > 0

    @property
    def grad(self) -> tuple[float, float]:
        """(sqr, var) at M0, never below zero; (0, 0) before the first sample. The middle of what is believed."""
        if not self.known or self._var <= 0:
            return max(self._sqr, 0.0), 0.0
        below = np.cumsum(self._belief)
        ratio = _STEADY * float(np.interp(0.5 * below[-1], below, _RATIO))
        return ratio * self._var, self._var

    def add(self, sample: Sample, scale: float, steps: int = 1) -> None:
        """Adds a sample that stands for ``steps`` steps at batch size ``scale`` x M0; one that is not finite is skipped."""
        if not (math.isfinite(sample.sqr) and math.isfinite(sample.var)):
            return
        scale = max(scale, 1e-3)
        recent = 1 / min(self.samples + 1, _RECENT)
        self._sqr += recent * (sample.sqr - self._sqr)
        self._var += recent * (max(sample.var, 0.0) - self._var)
        epoch = min(max(self.steps_per_epoch, _SHORTEST), _LONGEST)
        passed = min(scale * max(steps, 1) / epoch, _FURTHEST)
        # successive gradients are biased: where better samples take over, what was known is worth less
        better = self.successive and not sample.successive
        self._wander(1.0 if better else passed if self.samples else 0.0)
        self.samples, self.successive = self.samples + 1, sample.successive
        if self._var > 0:
            unit = 1 / (scale * (1 + sample.successive))
            self._learn(min(max(sample.sqr / self._var, -_RATIO[-1]), _RATIO[-1]), unit)
            self._bound(unit * math.sqrt(self._strayed * passed))

    def _wander(self, epochs: float) -> None:
        """Heat spreads along the grid, in portions so small that none falls below zero; nothing leaves at the ends."""
        variance = epochs * (_DRIFT / _STEP) ** 2
        portions = math.ceil(variance)
        for _ in range(portions):
            flow = variance / (2 * portions) * (self._belief[1:] - self._belief[:-1])
            self._belief[:-1] += flow
            self._belief[1:] -= flow

    def _learn(self, ratio: float, unit: float) -> None:
        """``unit`` is what the variance of this sample's gradient comes to, in units of var."""
        typical = self.grad[0] / self._var
        strayed = max((ratio - typical) ** 2 - (_JUMPS * typical) ** 2, 0.0) / unit**2
        strayed = min(strayed, _WILD * max(self._strayed, _LEAST))
        self._strayed += (strayed - self._strayed) / min(self.samples + 1, _STRAYED)
        variance = self._strayed * unit * unit + _JUMPED
        usual = math.sqrt(self._strayed * unit * unit + (_JUMPS * typical) ** 2)
        self._belief *= _likelihood(ratio - _RATIO, variance) / np.sqrt(variance) + _CHANCE / usual
        self._belief /= self._belief.sum()
        # nothing is impossible: what is seen for long enough is believed
        self._belief += 1e-12

    def _bound(self, error: float) -> None:
        """``error`` is that of the mean of an epoch's samples: what lies far below it nobody can tell from what lies a little."""
        least = min(int(np.searchsorted(_RATIO, _RESOLVED * error)), len(_RATIO) - 1)
        self._belief[least] += self._belief[:least].sum()
        self._belief[:least] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "belief": self._belief.tolist(),
            "sqr": self._sqr,
            "var": self._var,
            "strayed": self._strayed,
            "samples": self.samples,
            "successive": self.successive,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse. A checkpoint of an older version has averages instead: then samples must tell anew."""
        if len(state.get("belief", ())) != len(_LOG):
            return
        self._belief = np.array(state["belief"], dtype=np.float64)
        self._sqr, self._var, self._strayed = state["sqr"], state["var"], state["strayed"]
        self.samples, self.successive = state["samples"], state["successive"]
