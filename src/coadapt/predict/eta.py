"""Time until a run ends: work left x seconds per unit of work, with its interval.

- The present pace is the level of a wandering process under noise: exponential smoothing of blocks, with the gain that
  their own variances give; a plain mean where nothing wanders.
- Pauses: n of them go on at n/(n + 1) of their pace so far, for one may have been a chance; those that come like
  clockwork (the end of an epoch) go on in full.
- After a change of pace the new one is taken to stay. Going back to the run's mean was tried and dropped: a scheduler
  that adapts gives small sizes first and large ones later, and the mean of the past is far off.
- A trend (pace ~ work^b; statistical efficiency grows as a run goes on) that is more than chance goes on, fading.
- Interval: block means so far and to come, wandering, and changes and pauses that may come. Before there are blocks
  enough it is plainly wide.
"""

from __future__ import annotations

import math

import numpy as np

from coadapt.errors import InputError
from coadapt.predict._base import Estimate, FloatArray, t_quantile
from coadapt.predict.pace import CHANGE_SIZE, Pace
from coadapt.predict.remaining import RemainingWork

#: Observations before there is an estimate at all.
_LEAST_STEPS = 2
#: Steps at one pace before their own spread is used: two parameters, and one to tell how far off they are.
FEW_STEPS = 3
#: Blocks and standard errors before a trend is believed, and the steepest one.
_TREND_BLOCKS, _SURE, _STEEPEST = 6, 2.0, 0.8
#: Share of a trend's exponent that goes on.
_FADING = 0.4
#: Half-width, as a logarithm, before blocks tell the spread.
_UNKNOWN = 0.5
#: Beyond a factor of twenty an interval says nothing more.
_WIDEST = 3.0
#: Paces count at most this many times the median pace of a block.
_SLOWEST = 1e6
#: No pace is known better than this: machines warm up, data differ.
_LEAST_SPREAD = 0.006
#: Changes to be expected, as a first guess, where a scheduler names configurations; and at most.
_MANAGED, _MOST_CHANGES = 0.25, 3.0
#: What a run has not shown yet: deviation, as a logarithm, where as much is left as was done.
_UNSEEN = 0.018
#: Pauses whose distances spread by less than this share come like clockwork.
_REGULAR = 0.3
#: Blocks far apart differ by this much more than neighbours before the level is said to wander.
_BY_CHANCE = 1.1


def steps_seen(state: Pace) -> int:
    """Steps at the present pace; below ``FEW_STEPS`` the interval is that of runs in general."""
    return len(state.blocks) * state.block_size + state.open_count


def seconds_per_work(state: Pace) -> Estimate | None:
    """Seconds per unit of work, as it goes at present; None before there is enough to say."""
    return _estimate(state, None)


def eta(state: Pace, left: float) -> Estimate | None:
    """Seconds until ``left`` more work is done; None before there is enough to say."""
    if not (math.isfinite(left) and left >= 0):
        raise InputError(f"work left must be a number and not negative, not {left}")
    return Estimate(value=0.0, low=0.0, high=0.0) if left == 0 else _estimate(state, left)


def eta_of(state: Pace, left: RemainingWork) -> Estimate | None:
    """The same where the work left is uncertain too; infinite ends where it may never end."""
    work = left.estimate
    if not math.isfinite(work.value):
        return Estimate(value=math.inf, low=math.inf, high=math.inf) if state.steps else None
    known = eta(state, work.value)
    if known is None or known.value == 0:
        return known
    down = math.hypot(
        math.log(known.value / known.low), math.log(work.value / max(work.low, 1e-9 * work.value))
    )
    up = math.hypot(math.log(known.high / known.value), math.log(work.high / work.value))
    return Estimate(value=known.value, low=known.value * math.exp(-down), high=known.value * math.exp(up))


def _estimate(state: Pace, left: float | None) -> Estimate | None:
    if state.steps < _LEAST_STEPS or not state.total_work > 0 or not state.total_s > 0:
        return None
    present, half = _present(state, math.inf if left is None else left)
    if left is None:
        return Estimate(value=present, low=present * math.exp(-half), high=present * math.exp(half))
    share = left / state.total_work
    pauses_s, pauses_sd = _pauses(state, left)
    value = left * present + pauses_s
    variance = (half / 1.28) ** 2 + _changes_variance(state, share) + (pauses_sd / value) ** 2
    variance += _UNSEEN**2 * share
    half = min(1.28 * math.sqrt(variance), _WIDEST)
    return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half))


def _present(state: Pace, left: float) -> tuple[float, float]:
    """Seconds per work to come in the present regime, and the half-width of its 80% interval as a logarithm.

    A level that wanders (variance v per block) under noise (variance n): the difference of neighbours has variance 2n + v,
    that of blocks m apart 2n + m v. Exponential smoothing is the best estimate of such a level.
    """
    blocks = np.array(state.blocks, dtype=np.float64).reshape(-1, 2)
    count = len(blocks)
    total = float(blocks[:, 0].sum()) + state.open_work
    if total <= 0:  # a regime that has only begun
        return state.before or state.total_s / state.total_work, _UNKNOWN
    plain = (float(blocks[:, 1].sum()) + state.open_s) / total
    if count < FEW_STEPS:
        return plain, _UNKNOWN
    paces, trend = blocks[:, 1] / blocks[:, 0] / plain, _trend(state, blocks)
    if trend:
        paces = paces / _middles(state, blocks) ** trend
        paces = paces / float(paces.mean())
    # a block that hardly moved has a pace beyond all others; how far beyond says nothing, and its square must stay a number
    noise, wander = _variances(np.clip(paces, 0.0, _SLOWEST * float(np.median(paces)) + _SLOWEST))
    ratio = wander / noise if noise > 0 else 0.0
    gain = (math.sqrt(ratio * ratio + 4 * ratio) - ratio) / 2
    weight = blocks[:, 0] * (1 - gain) ** np.arange(count - 1, -1, -1)
    weight /= weight.sum()
    to_come = max(left / float(blocks[:, 0].mean()), 0.1)
    # a level that wanders is not believed to go on for longer than it was watched
    variance = noise * (float(weight @ weight) + 1 / to_come) + wander * min(to_come, 2.0 * count) / 3
    if trend and math.isfinite(left):
        # whether it fades as supposed: from not at all to at once
        variance += (0.3 * trend * math.log1p(left / state.now_work)) ** 2
    half = min(t_quantile(count - 1) * math.sqrt(variance + _LEAST_SPREAD**2), _WIDEST)
    if trend:
        return _extrapolated(state, blocks, trend, left), half
    return plain * float(weight @ paces), half


def _middles(state: Pace, blocks: FloatArray) -> FloatArray:
    """Work done at the middle of each block."""
    return np.asarray(state.began + np.cumsum(blocks[:, 0]) - 0.5 * blocks[:, 0])


def _trend(state: Pace, blocks: FloatArray) -> float:
    """Exponent b of pace ~ work^b, as far as it is more than chance: statistical efficiency grows as a run goes on."""
    count = len(blocks)
    if count < _TREND_BLOCKS:
        return 0.0
    x = np.log(_middles(state, blocks))
    y = np.log(blocks[:, 1] / blocks[:, 0])
    x, y = x - x.mean(), y - y.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residual = y - slope * x
    squares = float(residual @ residual)
    rho = min(max(float(residual[1:] @ residual[:-1]) / squares, 0.0), 0.9) if squares > 0 else 0.0
    error = math.sqrt(squares / (count - 2) / spread * (1 + rho) / (1 - rho))
    if abs(slope) <= _SURE * error:
        return 0.0
    return min(max(slope * (1 - (_SURE * error / slope) ** 2), -_STEEPEST), _STEEPEST)


def _extrapolated(state: Pace, blocks: FloatArray, trend: float, left: float) -> float:
    """Mean pace over the work left: from the latest blocks on, by a power law; trends fade."""
    late = blocks[-max(len(blocks) // 4, 2) :]
    middle = state.now_work - state.open_work - 0.5 * float(late[:, 0].sum())
    level = float(late[:, 1].sum()) / float(late[:, 0].sum())
    now, fading = state.now_work, _FADING * trend
    if not math.isfinite(left):
        return level * float((now / middle) ** trend)
    # the mean of k^b between here and the end
    power = fading + 1
    mean = ((now + left) ** power - now**power) / (power * left * now**fading)
    return level * float((now / middle) ** trend * mean)


def _variances(paces: FloatArray) -> tuple[float, float]:
    """Of the noise of single blocks, and of the steps of a wandering level."""
    count = len(paces)
    total = float(paces.var(ddof=1))
    lag = count // 4
    if lag < 2:
        return total, 0.0
    near, far = np.diff(paces), paces[lag:] - paces[:-lag]
    step, stretch = float(np.mean(near**2)), float(np.mean(far**2))
    wander = max((stretch - _BY_CHANCE * step) / (lag - 1), 0.0)
    return max((step - wander) / 2, 0.05 * total), wander


def _pauses(state: Pace, left: float) -> tuple[float, float]:
    """Seconds of the pauses to come, and their standard deviation."""
    if not state.pauses:
        return 0.0, 0.0
    mean_s, gaps = state.pause_s / state.pauses, state.pauses - 1
    if gaps >= 2:
        gap = state.gaps / gaps
        spread = math.sqrt(max(state.gap_squares / gaps - gap * gap, 0.0))
        if spread < _REGULAR * gap:
            # like clockwork: the end of every epoch
            since = state.now_work - (state.paused_at or 0.0)
            count = math.floor((left + since) / gap + 0.25)
            return mean_s * count, mean_s * math.sqrt(count * (spread / gap) ** 2 + 0.1)
    expected = state.pauses * left / state.total_work * state.pauses / (state.pauses + 1)
    return mean_s * expected, mean_s * math.sqrt(1.5 * expected)


def _changes_variance(state: Pace, share: float) -> float:
    """Of the logarithm of the time left, by changes that may come: each counts for what is left after it."""
    managed = _MANAGED if state.config else 0.0
    seen = state.changes + managed
    if not seen:
        return 0.0
    size = (state.change_squares + managed * CHANGE_SIZE**2) / seen
    return min(seen * share, _MOST_CHANGES) * size / 3
