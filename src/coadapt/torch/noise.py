"""The gradient noise scale from the gradients of a step's parts. Formulas and moving averages, no tensors.

A gradient over b examples has, in expectation, the squared norm |G|^2 + S / b: G the true gradient, S the sum of the
variances of one example's gradient (McCandlish et al., 2018). With parts of b_c examples, c = 1..n, and their
average g weighted by examples, over B = sum b_c in all,

    S     = (mean |g_c|^2 - |g|^2) / (mean(1 / b_c) - 1 / B)
    |G|^2 = |g|^2 - S / B,         phi = S / |G|^2,        at M0:  sqr = |G|^2, var = S / M0

which for equal parts is AdaptDL's pair sqr = (n |g|^2 - mean |g_c|^2) / (n - 1), var = (mean |g_c|^2 - |g|^2) (B / M0) / (n - 1).
Parts are replicas, accumulation passes, or both. One replica with one pass has only the gradient of the step before:
two parts whose parameters differ by one step. That step moved against the gradient, so the second gradient is
smaller where the loss is curved; S is too large by what the step changed. Early in training that was looked at phi came out up to
40% too large, less than the chance error of ten better samples; late, where the gradient is all but noise, several
times. So when better samples come, what was known before still counts, but only as a few of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

#: Steps at M0 that are remembered at most and at least; in between, two epochs: noise grows tenfold within a few.
LONGEST, SHORTEST = 1000, 100
#: Samples that are remembered at least, however rare they are.
FEWEST = 30
#: Standard errors that are added to sqr. One whole keeps batches at half of their best size late in training.
_CAUTION = 0.5
#: Better samples that all successive ones count as.
_CARRIED = 5


class Sample(NamedTuple):
    """One estimate: squared norm of the true gradient, and its variance at M0. Either may be below zero by chance."""

    sqr: float
    var: float
    successive: bool = False


def estimate(
    mean_sqr: float, total_sqr: float, *, batch: int, mean_inverse: float, initial_batch: int
) -> tuple[float, float] | None:
    """(sqr, var) from the mean squared norm of the parts and that of their average; None if there is only one part."""
    apart = mean_inverse - 1 / batch
    if apart <= 1e-12 or not math.isfinite(mean_sqr + total_sqr):
        return None
    spread = (mean_sqr - total_sqr) / apart
    return total_sqr - spread / batch, spread / initial_batch


class NoiseAverage:
    """Moving averages of sqr and var, corrected for their start at zero. A larger batch counts for more."""

    def __init__(self, steps_per_epoch: int = LONGEST) -> None:
        self.smoothing = 1 - 1 / min(max(2 * steps_per_epoch, SHORTEST), LONGEST)
        self.samples = 0
        self._sqr = self._var = self._weight = 0.0
        #: Of the square of sqr, and of squared weights: how sure the average is.
        self._sqr_2 = self._weight_2 = 0.0
        self._successive = False

    @property
    def known(self) -> bool:
        """Whether there was any sample."""
        return self.samples > 0

    @property
    def grad(self) -> tuple[float, float]:
        """(sqr, var) at M0, not below zero; (0, 0) before the first sample."""
        if self._weight == 0.0:
            return 0.0, 0.0
        return max(self._sqr / self._weight, 0.0), max(self._var / self._weight, 0.0)

    @property
    def cautious(self) -> tuple[float, float]:
        """The same with sqr half a standard error higher: what decisions rest on while samples are few.

        Taken as it comes, a chance value near zero would look like a gradient of nothing but noise, and make the batch
        and the rate as large as they can be.
        """
        if self._weight == 0.0:
            return 0.0, 0.0
        mean = self._sqr / self._weight
        spread = max(self._sqr_2 / self._weight - mean * mean, 0.0)
        share = min(self._weight_2 / self._weight**2, 1.0)
        # with a single sample nothing is known about the spread: it may be as large as all of it
        error = (
            _CAUTION * math.sqrt(spread * share / (1 - share)) if share < 0.999 else abs(mean) + self.grad[1]
        )
        return max(mean, 0.0) + error, self.grad[1]

    @property
    def successive(self) -> bool:
        """Whether the last sample came from successive gradients, which are biased."""
        return self._successive

    def add(self, sample: Sample, scale: float, steps: int = 1) -> None:
        """Adds a sample that stands for ``steps`` steps at batch size ``scale`` x M0; one that is not finite is skipped."""
        if not (math.isfinite(sample.sqr) and math.isfinite(sample.var)):
            return
        keep = max(self.smoothing ** (max(scale, 1e-3) * max(steps, 1)), 1 - 1 / FEWEST)
        if self._successive and not sample.successive and self._weight > 0:
            self._fade(min(_CARRIED * (1 - keep) / self._weight, 1.0))
        self._successive = sample.successive
        self._sqr = keep * self._sqr + (1 - keep) * sample.sqr
        self._var = keep * self._var + (1 - keep) * sample.var
        self._weight = keep * self._weight + (1 - keep)
        self._sqr_2 = keep * self._sqr_2 + (1 - keep) * sample.sqr**2
        self._weight_2 = keep**2 * self._weight_2 + (1 - keep) ** 2
        self.samples += 1

    def _fade(self, share: float) -> None:
        """All that is known counts for less."""
        self._sqr, self._var, self._weight = share * self._sqr, share * self._var, share * self._weight
        self._sqr_2, self._weight_2 = share * self._sqr_2, share**2 * self._weight_2

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "sqr": self._sqr,
            "var": self._var,
            "weight": self._weight,
            "sqr_2": self._sqr_2,
            "weight_2": self._weight_2,
            "samples": self.samples,
            "successive": self._successive,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self._sqr, self._var, self._weight = state["sqr"], state["var"], state["weight"]
        self._sqr_2, self._weight_2 = state["sqr_2"], state["weight_2"]
        self.samples, self._successive = state["samples"], state["successive"]
