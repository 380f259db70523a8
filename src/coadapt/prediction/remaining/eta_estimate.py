"""Time until a run ends: its pace, the work left x seconds per unit of work, and calibration by past outcomes.

**Pace** (``Pace``, ``observe``). An observation is a time and the work done by then. Seconds per work are averaged in
blocks; blocks are merged in pairs when there are too many, so an observation costs O(1), however long the run.

- **Stragglers** are part of the mean: they will come again. A median would promise an end that never comes.
- **Pauses** (validation, checkpoints, a stopped process) are far longer than the steps around them and are counted
  separately.
- **Changes** of pace (another configuration, where the caller names it; else two blocks in a row far from those before)
  begin a new regime, in which blocks are collected anew.

**ETA** (``eta``, ``eta_of``): work left x seconds per unit of work, with its interval.

- The present pace is the level of a random walk under noise: exponential smoothing of blocks, with the gain that
  their own variances give; a plain mean where the level does not change.
- Pauses: n of them continue at n/(n + 1) of their pace so far, for one may have been a chance; regular ones (the end of
  an epoch) continue in full.
- After a change of pace the new one is taken to stay. A return to the mean of the run was tried and dropped: a scheduler
  that adapts gives small sizes first and large ones later, and the mean of the past is far off.
- A significant trend (pace ~ work^b; statistical efficiency grows during a run) continues, fading.
- Interval: block means so far and to come, changes of the level, and changes and pauses that may come. Before there are
  enough blocks it is wide.

**Calibration** (``outcome``, ``calibrated``). A predictor states seconds and a deviation of their logarithm. When a run has
ended, the errors of its ETAs are stored in units of that deviation. The next ETA is corrected by the quantiles of these
errors, those at similar shares of a run counting most (conformal prediction with weights, Tibshirani et al. 2019); normal
ones are used while there are few. This removes a bias that all runs have, whatever its cause (late reports), and nothing
is tuned to one scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from scipy.special import ndtri

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.prediction._base import COVERAGE, FloatArray, t_quantile
from coadapt.prediction.remaining.work import RemainingWork

#: Observations before a pause can be detected, and those that define a usual step.
MIN_STEPS, _USUAL = 4, 15
MAX_BLOCKS = 48
#: An interval this many usual ones long, beyond its own, is a pause.
_PAUSE = 8.0
#: Consecutive "pauses" that are a new pace.
_NEW_PACE = 3
#: Deviations of blocks, and least difference, that make a change of pace.
_CHANGE_SD, _CHANGE_LEAST = 3.0, 0.06
#: Logarithm of a change's usual size, where it was not seen.
CHANGE_SIZE = 0.4


class Pace(Fact, frozen=True):
    """The state of a run's pace. Times in seconds of the caller's clock."""

    at: float | None = None
    work: float = 0.0
    #: Work last reported; ahead of ``work`` while time stands still.
    now_work: float = 0.0
    config: str = ""
    #: (seconds per work, work) of the latest observations.
    usual: tuple[tuple[float, float], ...] = ()
    #: (work, seconds) of the present regime, and the block that is being filled.
    blocks: tuple[tuple[float, float], ...] = ()
    open_work: float = 0.0
    open_s: float = 0.0
    open_count: int = 0
    block_size: int = 1
    #: Work done when the present regime began.
    began: float = 0.0
    #: Over all regimes, pauses left out.
    total_work: float = 0.0
    total_s: float = 0.0
    steps: int = 0
    pauses: int = 0
    pause_s: float = 0.0
    #: Work between pauses: sum, sum of squares, and where the last one was.
    gaps: float = 0.0
    gap_squares: float = 0.0
    paused_at: float | None = None
    #: The latest pauses, if nothing but pauses came since: perhaps they are none.
    in_a_row: int = 0
    in_a_row_s: float = 0.0
    #: Seconds per work of the regime before this one.
    before: float | None = None
    changes: int = 0
    #: Sum of squared logarithms of the changes of pace.
    change_squares: float = 0.0
    #: Work went back (a restart from a checkpoint), or time did.
    setbacks: int = 0


START = Pace()


def observe(state: Pace, at: float, work: float, config: str = "") -> Pace:
    """The state after ``work`` was done at time ``at`` (both since any origin), in ``config`` where that is known."""
    if not (math.isfinite(at) and math.isfinite(work)):
        raise InputError(f"progress {work} at {at} s: both must be numbers")
    if state.at is None:
        return replace(state, at=at, work=work, now_work=work, began=work, config=config)
    if at < state.at or work < state.now_work:
        return replace(resume(state, max(at, state.at), work), setbacks=state.setbacks + 1)
    if at == state.at or work == state.work:
        return replace(state, now_work=work) if work != state.now_work else state
    spent, done = at - state.at, work - state.work
    moved = replace(state, at=at, work=work, now_work=work, config=config)
    if config != state.config:
        # the step in which the change fell belongs to neither pace
        return _regime(replace(moved, total_work=state.total_work + done, total_s=state.total_s + spent))
    return _counted(moved, done, spent)


def resume(state: Pace, at: float, work: float | None = None) -> Pace:
    """Continue the clock at ``at``: the time since the last observation does not count (a preemption, a restart)."""
    work = state.now_work if work is None else work
    return replace(state, at=at, work=work, now_work=work)


def _counted(state: Pace, done: float, spent: float) -> Pace:
    pace = spent / done
    kept = (*state.usual[-(_USUAL - 1) :], (pace, done))
    if len(state.usual) >= MIN_STEPS:
        usual, size = _medians(state.usual)
        excess = spent - usual * done
        if excess > _PAUSE * usual * max(size, done):
            if state.in_a_row + 1 < _NEW_PACE:
                return _paused(replace(state, **_step(state, done, usual * done)), excess)
            # no pauses, after all
            return _regime(
                replace(
                    state,
                    pauses=state.pauses - state.in_a_row,
                    pause_s=max(state.pause_s - state.in_a_row_s, 0.0),
                    in_a_row=0,
                    in_a_row_s=0.0,
                )
            )
    state = replace(state, usual=kept, in_a_row=0, in_a_row_s=0.0, **_step(state, done, spent))
    return state if state.open_count < state.block_size else _closed(state)


def _paused(state: Pace, excess: float) -> Pace:
    gap = state.work - state.paused_at if state.paused_at is not None else 0.0
    return replace(
        state,
        pauses=state.pauses + 1,
        pause_s=state.pause_s + excess,
        gaps=state.gaps + gap,
        gap_squares=state.gap_squares + gap * gap,
        paused_at=state.work,
        in_a_row=state.in_a_row + 1,
        in_a_row_s=state.in_a_row_s + excess,
    )


def _medians(usual: tuple[tuple[float, float], ...]) -> tuple[float, float]:
    middle = len(usual) // 2
    return sorted(p for p, _ in usual)[middle], sorted(w for _, w in usual)[middle]


def _step(state: Pace, done: float, spent: float) -> dict[str, float]:
    return {
        "open_work": state.open_work + done,
        "open_s": state.open_s + spent,
        "open_count": state.open_count + 1,
        "total_work": state.total_work + done,
        "total_s": state.total_s + spent,
        "steps": state.steps + 1,
    }


def _closed(state: Pace) -> Pace:
    blocks = (*state.blocks, (state.open_work, state.open_s))
    state = replace(state, blocks=blocks, open_work=0.0, open_s=0.0, open_count=0)
    if _changed(blocks):
        before = _pace(blocks[:-2])
        begun = state.work - sum(w for w, _ in blocks[-2:])
        return replace(_regime(state, before, _pace(blocks[-2:])), blocks=blocks[-2:], began=begun)
    if len(blocks) <= MAX_BLOCKS:
        return state
    pairs = zip(blocks[0::2], blocks[1::2], strict=False)
    merged = tuple((w0 + w1, s0 + s1) for (w0, s0), (w1, s1) in pairs)
    odd = blocks[-1] if len(blocks) % 2 else (0.0, 0.0)
    opened = state.block_size if len(blocks) % 2 else 0
    return replace(
        state,
        blocks=merged,
        block_size=2 * state.block_size,
        open_work=odd[0],
        open_s=odd[1],
        open_count=opened,
    )


def _changed(blocks: tuple[tuple[float, float], ...]) -> bool:
    """Whether the last two blocks go another pace than those before."""
    if len(blocks) < 8:
        return False
    paces = [math.log(s / w) for w, s in blocks]
    before = paces[:-2]
    middle = sorted(before)[len(before) // 2]
    # not the median deviation: with a few blocks it is often far too small, and every change then a false one
    spread = math.sqrt(sum((p - middle) ** 2 for p in before) / (len(before) - 1))
    limit = max(_CHANGE_SD * spread, _CHANGE_LEAST)
    return min(paces[-2:]) > middle + limit or max(paces[-2:]) < middle - limit


def _pace(blocks: tuple[tuple[float, float], ...]) -> float:
    return sum(s for _, s in blocks) / sum(w for w, _ in blocks)


def _regime(state: Pace, before: float | None = None, after: float | None = None) -> Pace:
    size = math.log(after / before) if before and after else CHANGE_SIZE
    work = state.open_work + sum(w for w, _ in state.blocks)
    spent = state.open_s + sum(s for _, s in state.blocks)
    return replace(
        state,
        before=before or (spent / work if work > 0 else state.before),
        blocks=(),
        began=state.work,
        open_work=0.0,
        open_s=0.0,
        open_count=0,
        usual=state.usual if after is not None else (),
        changes=state.changes + 1,
        change_squares=state.change_squares + size * size,
    )


#: Observations before there is an estimate at all.
_LEAST_STEPS = 2
#: Steps at one pace before their own spread is used: two parameters, and one to tell how far off they are.
FEW_STEPS = 3
#: Blocks and standard errors before a trend is believed, and the steepest one.
_TREND_BLOCKS, _SURE, _STEEPEST = 6, 2.0, 0.8
#: Share of a trend's exponent that is assumed to continue.
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
#: What a run has not shown yet: deviation, as a logarithm, where as much is left as was done; and the part of the difference
#: between its halves so far that comes on top. Chosen on 16 public logs (benchmarks/realworld_eta.py also leaves a family out).
_UNSEEN, _DRIFT = 0.012, 0.8
#: Pauses whose distances spread by less than this share come like clockwork.
_REGULAR = 0.3
#: A block at the start that differs from the median of the rest by more than this (as a logarithm), and this many median
#: deviations, belongs to the start.
_STARTED, _STARTED_SD = 0.15, 6.0
#: Blocks far apart differ by this much more than neighbours before the level is said to wander.
_BY_CHANCE = 1.1


def steps_seen(state: Pace) -> int:
    """Steps at the present pace; below ``FEW_STEPS`` the interval is that of runs in general."""
    return len(state.blocks) * state.block_size + state.open_count


def seconds_per_work(state: Pace) -> Interval | None:
    """Seconds per unit of work at present; None before there are enough observations."""
    return _estimate(state, None)


def eta(state: Pace, left: float) -> Interval | None:
    """Seconds until ``left`` more work is done; None before there are enough observations."""
    if not (math.isfinite(left) and left >= 0):
        raise InputError(f"work left must be a number and not negative, not {left}")
    return Interval(value=0.0, low=0.0, high=0.0) if left == 0 else _estimate(state, left)


def eta_of(state: Pace, left: RemainingWork) -> Interval | None:
    """Seconds until the end where the work left is uncertain too; the interval is infinite where it may never end."""
    work = left.estimate
    if not math.isfinite(work.value):
        return Interval(value=math.inf, low=math.inf, high=math.inf) if state.steps else None
    known = eta(state, work.value)
    if known is None or known.value == 0:
        return known
    down = math.hypot(
        math.log(known.value / known.low), math.log(work.value / max(work.low, 1e-9 * work.value))
    )
    up = math.hypot(math.log(known.upper / known.value), math.log(work.upper / work.value))
    return Interval(value=known.value, low=known.value * math.exp(-down), high=known.value * math.exp(up))


def _estimate(state: Pace, left: float | None) -> Interval | None:
    if state.steps < _LEAST_STEPS or not state.total_work > 0 or not state.total_s > 0:
        return None
    present, half = _present(state, math.inf if left is None else left)
    if left is None:
        return Interval(value=present, low=present * math.exp(-half), high=present * math.exp(half))
    share = left / state.total_work
    pauses_s, pauses_sd = _pauses(state, left)
    value = left * present + pauses_s
    variance = (half / 1.28) ** 2 + _changes_variance(state, share) + (pauses_sd / value) ** 2
    variance += (_UNSEEN**2 + (_DRIFT * _drift(state)) ** 2) * share
    half = min(1.28 * math.sqrt(variance), _WIDEST)
    return Interval(value=value, low=value * math.exp(-half), high=value * math.exp(half))


def _drift(state: Pace) -> float:
    """Logarithm of the pace of the later half of the blocks over that of the earlier half."""
    blocks = _settled(np.array(state.blocks, dtype=np.float64).reshape(-1, 2))
    half = len(blocks) // 2
    if half < 2:
        return 0.0
    early, late = blocks[:half].sum(axis=0), blocks[half:].sum(axis=0)
    found = math.log(float(late[1] / late[0]) / float(early[1] / early[0]))
    return min(max(found, -_WIDEST), _WIDEST)


def _present(state: Pace, left: float) -> tuple[float, float]:
    """Seconds per work to come in the present regime, and the half-width of its 80% interval as a logarithm.

    A level that wanders (variance v per block) under noise (variance n): the difference of neighbours has variance 2n + v,
    that of blocks m apart 2n + m v. Exponential smoothing is the best estimate of such a level.
    """
    blocks = _settled(np.array(state.blocks, dtype=np.float64).reshape(-1, 2))
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


def _settled(blocks: FloatArray) -> FloatArray:
    """Blocks without the start of the run: the first ones, where they are far slower or faster than all that follows.

    Compilation, caches and data loaders that fill are a jump that does not come again.
    """
    most = len(blocks) // 4
    if most < 1:
        return blocks
    paces = np.log(blocks[:, 1] / blocks[:, 0])
    rest = paces[most:]
    middle = float(np.median(rest))
    limit = max(_STARTED, _STARTED_SD * float(np.median(np.abs(rest - middle))))
    odd = np.flatnonzero(np.abs(paces[:most] - middle) > limit)
    return blocks[int(odd[-1]) + 1 :] if len(odd) else blocks


def _middles(state: Pace, blocks: FloatArray) -> FloatArray:
    """Work done at the middle of each block."""
    ends = np.cumsum(blocks[::-1, 0])[::-1]
    middles = state.now_work - state.open_work - ends + 0.5 * blocks[:, 0]
    # work that went back, and a counter that was begun anew, leave less than the blocks have
    return np.asarray(np.maximum(middles, 0.25 * blocks[:, 0]))


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
    middle = max(state.now_work - state.open_work - 0.5 * float(late[:, 0].sum()), 0.5 * float(late[-1, 0]))
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


#: Outcomes that count, the latest; over which difference of log(share / (1 - share)) they matter; and how many
#: stand for the deviation as it was stated.
MOST, _KIN, _STATED = 300, 0.7, 8


class Outcome(Fact, frozen=True):
    """Outcome of an ETA: share of the work that was done, and log(real / predicted) in units of the stated deviation."""

    share: float
    error: float


def outcome(share: float, predicted_s: float, deviation: float, real_s: float) -> Outcome | None:
    """Outcome of an ETA, recorded when a run has ended; None where nothing was predicted, or a value is not a number.

    Args:
        share: Share of the work that was done when the ETA was stated.
        predicted_s: Seconds to the end, as predicted.
        deviation: Standard deviation of their logarithm, as stated.
        real_s: Seconds that it took.
    """
    known = (share, predicted_s, deviation, real_s)
    if not all(map(math.isfinite, known)) or min(predicted_s, deviation, real_s) <= 0:
        return None
    return Outcome(share=share, error=math.log(real_s / predicted_s) / deviation)


def calibrated(seconds: float, deviation: float, share: float, past: Sequence[Outcome] = ()) -> Interval:
    """An ETA corrected by the outcomes of runs that have ended: its median and 80% interval.

    Args:
        seconds: Seconds to the end, as predicted.
        deviation: Standard deviation of their logarithm, as the predictor states it.
        share: Share of the work that is done.
        past: Outcomes of earlier ETAs.
    """
    if not (seconds >= 0 and deviation >= 0 and math.isfinite(seconds + deviation)):
        raise InputError(f"an ETA of {seconds} s, deviation {deviation}: both must be numbers, not negative")
    edge = (1 - COVERAGE) / 2
    errors, weights = ndtri((np.arange(_STATED) + 0.5) / _STATED), np.ones(_STATED)
    latest = past[-MOST:]
    if latest:
        apart = np.abs(_logit(np.array([each.share for each in latest])) - _logit(np.array([share])))
        errors = np.concatenate([errors, [each.error for each in latest]])
        weights = np.concatenate([weights, np.exp(-apart / _KIN)])
    order = np.argsort(errors, kind="stable")
    reached = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    logs = deviation * np.interp((edge, 0.5, 1 - edge), reached, errors[order])
    low, value, high = (seconds * np.exp(np.clip(logs, -_WIDEST, _WIDEST))).tolist()
    return Interval(value=value, low=low, high=high)


def _logit(share: FloatArray) -> FloatArray:
    inside = np.clip(share, 1e-3, 1 - 1e-3)
    return np.asarray(np.log(inside / (1 - inside)))
