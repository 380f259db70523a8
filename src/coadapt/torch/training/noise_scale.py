"""The gradient noise scale: which steps are sampled, an estimate from each sample, and the belief after many. No tensors.

**Estimate.** A gradient over b examples has, in expectation, the squared norm |G|^2 + S / b: G is the true gradient, S the sum of the
variances of one example's gradient (McCandlish et al., 2018). With parts of b_c examples, c = 1..n, and their average g
weighted by examples, over B = sum b_c in all,

    S     = (mean |g_c|^2 - |g|^2) / (mean(1 / b_c) - 1 / B)
    |G|^2 = |g|^2 - S (1 / B - 1 / N),     phi = S / |G|^2,        at M0:  sqr = |G|^2, var = S / M0

N is the number of examples in a pass. A pass draws without replacement, so the mean of a batch differs less, by S / N, from the
mean of all examples. That is small beside |g|^2, but late in training on small data several times |G|^2, which came out below zero
without it. For N infinite and equal parts this is AdaptDL's pair
sqr = (n |g|^2 - mean |g_c|^2) / (n - 1), var = (mean |g_c|^2 - |g|^2) (B / M0) / (n - 1).
Parts are replicas, accumulation passes, or both. A single replica with one pass has only the gradient of the step before: two parts
whose parameters differ by one step. That step went against the gradient, so the second gradient is smaller where the loss is
curved, and S is too large by what the step changed. Early in training phi came out up to 40% too large in our measurements; late,
where the gradient is nearly all noise, more. So when better samples arrive, earlier ones still count, but less.

**Belief** (``NoiseFilter``). Late in training the squared gradient is a hundredth of the error of one sample of it, and shrinks tenfold
within a few epochs. A long moving average lags behind, a short one is mostly error. So the ratio x = sqr / var = M0 / phi has a
probability distribution over a grid of log x (a histogram filter):

    between samples   log x diffuses: its variance grows by DRIFT^2 per epoch of work (more slowly where epochs are long)
    a sample          multiplies the distribution by the likelihood of sqr given x:  sqr / var = x + error,  of deviation
                      sqrt((spread M0 / B)^2 + (JUMPS x)^2)

M0 / B is the variance of a gradient over B examples in units of var; ``spread`` is learned from the errors of samples; JUMPS is how
much the gradient itself changes from one step to the next. Errors have Student's tails, so one outlier has little weight.
Informative samples move the distribution at once, uninformative ones hardly; a ratio that cannot be distinguished from zero is taken to be
small but positive. An error there does not matter: phi is then far above the batch size. Only + - * / and square roots are
used, so that replicas on different processors compute the same numbers.

**Which steps are sampled** (``SampleSchedule``). All at first, then as many as a time budget allows. A sampled step gives up overlap and
takes norms, which on a small network costs a tenth of a step or more. The cost is measured where it arises (the difference between
sampled and plain steps would be lost in the noise of a busy machine), and the interval between samples keeps it below ``budget``, a
share of step time. The small cost of a plain step counts too. The times are averaged over replicas, so all choose the same steps.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Sample(NamedTuple):
    """One estimate: squared norm of the true gradient, and its variance at M0. Either may be negative by chance."""

    sqr: float
    var: float
    successive: bool = False


def estimate(
    mean_sqr: float,
    total_sqr: float,
    *,
    batch: int,
    mean_inverse: float,
    initial_batch: int,
    population: float = math.inf,
) -> tuple[float, float] | None:
    """(sqr, var) from the norms of a step's parts; None if there is only one part.

    Args:
        mean_sqr: Mean squared norm of the parts.
        total_sqr: Squared norm of their average.
        batch: Examples in all parts together.
        mean_inverse: Mean of 1 / examples over the parts.
        initial_batch: M0.
        population: Examples that the batch was drawn from without replacement.
    """
    apart = mean_inverse - 1 / batch
    if apart <= 1e-12 or not math.isfinite(mean_sqr + total_sqr):
        return None
    spread = (mean_sqr - total_sqr) / apart
    # two successive steps may lie in two passes and have more examples than one pass
    return total_sqr - spread * max(1 / batch - 1 / population, 0.0), spread / initial_batch


FloatArray = npt.NDArray[np.float64]

#: Deviation of log phi after one epoch: a factor of two either way. Noise mostly grows, but a trend made batches too large early
#: in training, so samples alone must show it.
_DRIFT = 0.7
#: Bounds on the steps at M0 that count as an epoch: noise grows within the first epoch of a large dataset, too.
_SHORTEST, _LONGEST = 50, 500
#: Most epochs that count as passed between two samples, so that rare samples are not forgotten at the next one. (With 0.2 the belief
#: lagged by a factor of five on synthetic paths with one sample per epoch.)
_FURTHEST = 1.0
_JUMPS = 0.5
#: For samples without error the most likely ratio is lower by this factor (the maximum of the density over x).
_STEADY = (1 + math.sqrt(1 + 4 * _JUMPS**2)) / 2
#: Initial spread, and numbers of samples over which it and the variance are averaged.
_SPREAD, _STRAYED, _RECENT = 0.5, 30, 10
#: Share of samples that carry no information; largest squared error that is learned from, as a multiple of the usual one; its minimum.
_CHANCE, _WILD, _LEAST = 1e-3, 10.0, 1e-4
#: Prior deviation of log phi around log M0: it keeps a first sample near zero from being believed.
_PRIOR = 1.5
#: Smallest ratio with any probability, in standard errors of an epoch's mean.
_RESOLVED = 0.1
#: The grid: log x in steps of _STEP, from a millionth to a thousand.
_STEP = 0.2
_LOG: FloatArray = np.asarray(_STEP * np.arange(-69, 35), dtype=np.float64)
_RATIO = np.cumprod(np.full(len(_LOG), 1.2214027581601699)) * 8.315287191035679e-07
_JUMPED = (_JUMPS * _RATIO) ** 2
_TAILS = 5


def _likelihood(off: FloatArray, variance: FloatArray | float) -> FloatArray:
    """Student's t density with five degrees of freedom, up to a factor."""
    strange = 1 + off * off / (_TAILS * variance)
    return np.asarray(1 / (strange * strange * strange))


class NoiseFilter:
    """Owns the belief about the noise scale; gets every sample. ``steps_per_epoch`` is at M0."""

    def __init__(self, steps_per_epoch: int = _LONGEST) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.samples = 0
        self.successive = False
        self._belief = _likelihood(_LOG, _PRIOR**2)
        self._sqr = self._var = 0.0
        self._strayed = _SPREAD**2

    @property
    def known(self) -> bool:
        """Whether there was any sample yet."""
        return self.samples > 0

    @property
    def grad(self) -> tuple[float, float]:
        """(sqr, var) at M0, not negative, at the median of the belief; (0, 0) before the first sample."""
        if not self.known or self._var <= 0:
            return max(self._sqr, 0.0), 0.0
        below = np.cumsum(self._belief)
        ratio = _STEADY * float(np.interp(0.5 * below[-1], below, _RATIO))
        return ratio * self._var, self._var

    def add(self, sample: Sample, scale: float, steps: int = 1) -> None:
        """Add a sample that stands for ``steps`` steps at batch size ``scale`` x M0; one that is not finite is skipped."""
        if not (math.isfinite(sample.sqr) and math.isfinite(sample.var)):
            return
        scale = max(scale, 1e-3)
        recent = 1 / min(self.samples + 1, _RECENT)
        self._sqr += recent * (sample.sqr - self._sqr)
        self._var += recent * (max(sample.var, 0.0) - self._var)
        epoch = min(max(self.steps_per_epoch, _SHORTEST), _LONGEST)
        passed = min(scale * max(steps, 1) / epoch, _FURTHEST)
        # successive gradients are biased: when better samples take over, the belief is widened
        better = self.successive and not sample.successive
        self._diffuse(1.0 if better else passed if self.samples else 0.0)
        self.samples, self.successive = self.samples + 1, sample.successive
        if self._var > 0:
            unit = 1 / (scale * (1 + sample.successive))
            self._learn(min(max(sample.sqr / self._var, -_RATIO[-1]), _RATIO[-1]), unit)
            self._bound(unit * math.sqrt(self._strayed * passed))

    def _diffuse(self, epochs: float) -> None:
        """Diffuse the belief along the grid, in portions small enough to stay positive; nothing leaves at the ends."""
        variance = epochs * (_DRIFT / _STEP) ** 2
        portions = math.ceil(variance)
        for _ in range(portions):
            flow = variance / (2 * portions) * (self._belief[1:] - self._belief[:-1])
            self._belief[:-1] += flow
            self._belief[1:] -= flow

    def _learn(self, ratio: float, unit: float) -> None:
        """Update the belief by a sample of the ratio; ``unit`` is the variance of its gradient in units of var."""
        typical = self.grad[0] / self._var
        strayed = max((ratio - typical) ** 2 - (_JUMPS * typical) ** 2, 0.0) / unit**2
        strayed = min(strayed, _WILD * max(self._strayed, _LEAST))
        self._strayed += (strayed - self._strayed) / min(self.samples + 1, _STRAYED)
        variance = self._strayed * unit * unit + _JUMPED
        usual = math.sqrt(self._strayed * unit * unit + (_JUMPS * typical) ** 2)
        self._belief *= _likelihood(ratio - _RATIO, variance) / np.sqrt(variance) + _CHANCE / usual
        self._belief /= self._belief.sum()
        # no ratio becomes impossible: enough samples can bring it back
        self._belief += 1e-12

    def _bound(self, error: float) -> None:
        """Move the belief in ratios far below ``error``, that of the mean of an epoch's samples, up to the smallest resolvable one."""
        least = min(int(np.searchsorted(_RATIO, _RESOLVED * error)), len(_RATIO) - 1)
        self._belief[least] += self._belief[:least].sum()
        self._belief[:least] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint."""
        return {
            "belief": self._belief.tolist(),
            "sqr": self._sqr,
            "var": self._var,
            "strayed": self._strayed,
            "samples": self.samples,
            "successive": self.successive,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state. A checkpoint of an older version has averages instead and is ignored."""
        if len(state.get("belief", ())) != len(_LOG):
            return
        self._belief = np.array(state["belief"], dtype=np.float64)
        self._sqr, self._var, self._strayed = state["sqr"], state["var"], state["strayed"]
        self.samples, self.successive = state["samples"], state["successive"]


#: Steps sampled at the start, and plain steps after them, which show what a step without a sample takes.
_FIRST, _PLAIN = 10, 10
#: Longest interval between samples, in steps.
_LONGEST_GAP = 200
_KEPT = 64
#: Further cost of a sample in hooks and callbacks of the autograd engine, which cannot be timed from inside.
_HOOKS_S = 2e-4
#: Cost of a plain step over one without Coadapt, and the share of the budget that samples have in any case.
_STEP_S, _LEFT = 2.5e-5, 0.25


class SampleSchedule:
    """Owns the choice of steps that are sampled. ``budget`` is a share of step time; ``every`` fixes the interval instead."""

    def __init__(self, budget: float = 0.02, every: int | None = None) -> None:
        self.budget, self.every = budget, every
        self.off = False
        self.interval = every or 1
        #: Seconds that recent samples cost, and that recent steps without one took.
        self.cost: deque[float] = deque(maxlen=_KEPT)
        self.plain: deque[float] = deque(maxlen=_KEPT)
        self._step = 0
        self._next = 0

    def now(self) -> bool:
        """Whether this step is sampled; called once per step."""
        self._step += 1
        return not self.off and self._step > self._next

    @property
    def ahead(self) -> int:
        """Steps before the next sampled one."""
        return _LONGEST_GAP if self.off else self._next - self._step

    def passed(self, steps: int, one_s: float | None) -> None:
        """So many steps were made without a call of ``now``; one of them took ``one_s``."""
        self._step += steps
        if one_s is not None:
            self.plain.append(one_s)

    @property
    def always(self) -> bool:
        """Whether every step is sampled."""
        return self.interval == 1

    def again(self) -> None:
        """The next step is sampled as well: the second of a pair."""
        self._next = self._step

    def times(self) -> tuple[float, float]:
        """Seconds that a sample costs and that a plain step takes on this replica; 0 where not known.

        The median of costs, but the lower quartile of steps: on a busy machine steps are delayed more often than the short work
        of a sample, which would look cheaper than it is.
        """
        cost = statistics.median(self.cost) if self.cost else 0.0
        plain = sorted(self.plain)[len(self.plain) // 4] if self.plain else 0.0
        return cost, plain

    def settle(self, cost_s: float, plain_s: float, *, pair: bool) -> None:
        """Schedule the next sample after one.

        ``cost_s`` and ``plain_s`` are means of ``times`` over replicas; ``pair``: a sample takes two successive steps.
        """
        if self.every is not None:
            self._next = self._step + self.every - 1
        elif self._step < _FIRST:
            self._next = self._step
        elif plain_s <= 0:
            self._next = self._step + _PLAIN
        else:
            cost_s += _HOOKS_S
            whole_s = self.budget * plain_s
            left_s = max(whole_s - _STEP_S, _LEFT * whole_s)
            # if every step can be sampled, each forms a pair with the one before, and a pair costs one sample; else two
            pair = pair and cost_s > left_s
            self.interval = min(max(math.ceil(cost_s * (1 + pair) / left_s), 1), _LONGEST_GAP)
            self._next = self._step + self.interval - (2 if pair else 1)
            self._next = max(self._next, self._step)

    def restart(self) -> None:
        """The batch size or the replicas have changed: earlier times no longer hold."""
        self.cost.clear()
        self.plain.clear()
        self._step = self._next = 0
