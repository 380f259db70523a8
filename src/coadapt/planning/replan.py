"""Whether the plan of a running job still holds, and what would help if its forecast moves past the deadline.

Pure: progress and measured speed go in, a verdict comes out. The remaining passes are those of the plan minus those done;
the pass time is the measured one, in the measured ratio for every other option (a node that is slow today is slow for all
of them); a change costs ``change_s``. With another batch size the remaining passes scale as those of the plan do.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.model.interval import Interval
from coadapt.planning.option_outlook import Z80
from coadapt.planning.problem import HOUR_S, Option, Plan, Row

#: A change is not worth telling for less than this probability gained.
_LEAST_GAIN = 0.05


class Progress(Fact, frozen=True, kw_only=True):
    """Progress of a run: passes done, seconds since it began, and its measured pass time."""

    option: Option
    passes: float
    elapsed_s: float
    pass_s: Interval


class Rescue(Fact, frozen=True, kw_only=True):
    """Another option, when it would end, and its chance to end in time."""

    option: Option
    finish_s: float
    chance: float
    cost: float


class Verdict(Fact, frozen=True, kw_only=True):
    """Forecast end of the run, whether that is in time, and options that would be in time, cheapest first."""

    finish_s: Interval
    chance: float
    on_time: bool
    rescues: tuple[Rescue, ...]
    text: str


def replan(plan: Plan, progress: Progress, *, change_s: float = 60.0) -> Verdict:
    """Compare a run with its ``plan``, which was made before it; the deadline counts from the start of the run.

    ``progress`` is that of the run; a change to another option takes ``change_s`` seconds.
    """
    question = plan.question
    row = next((row for row in plan.rows if row.option == progress.option), None)
    if row is None:
        raise InputError(f"the plan does not know the option that is running: {progress.option}")
    if progress.passes < 0 or progress.elapsed_s < 0 or not progress.pass_s.value > 0:
        raise InputError("passes and seconds done must not be negative, a pass takes more than 0 s")
    deadline = math.inf if question.deadline_s is None else question.deadline_s
    left = max(row.passes - progress.passes, 0.0)
    extra = question.validation_s + question.checkpoint_s
    spread = math.log(max(progress.pass_s.upper / progress.pass_s.value, 1.0)) / Z80
    passes_sd = _passes_sd(row, question.confidence) if left else 0.0
    finish = _finish(
        progress.elapsed_s, left * (progress.pass_s.value + extra), math.hypot(spread, passes_sd)
    )
    chance = _chance(
        deadline - progress.elapsed_s, left * (progress.pass_s.value + extra), math.hypot(spread, passes_sd)
    )
    on_time = chance >= question.confidence
    slower = progress.pass_s.value / max(_pass_s(row, extra, question.setup_s), 1e-12)
    rescues = () if on_time else _rescues(plan, row, progress, slower, deadline, change_s, chance)
    return Verdict(
        finish_s=finish,
        chance=chance,
        on_time=on_time,
        rescues=rescues,
        text=_text(finish, deadline, chance, on_time, rescues),
    )


def _rescues(
    plan: Plan, row: Row, progress: Progress, slower: float, deadline: float, change_s: float, chance: float
) -> tuple[Rescue, ...]:
    question = plan.question
    extra = question.validation_s + question.checkpoint_s
    share_left = max(1 - progress.passes / row.passes, 0.0) if row.passes else 0.0
    found = []
    for other in plan.rows:
        if other.option == row.option or not math.isfinite(other.total_s.value) or other.passes <= 0:
            continue
        train_s = share_left * other.passes * (_pass_s(other, extra, question.setup_s) * slower + extra)
        sd = math.log(max(other.total_s.upper / other.total_s.value, 1.0)) / Z80
        at = _chance(deadline - progress.elapsed_s - change_s, train_s, sd)
        if at >= question.confidence and at > chance + _LEAST_GAIN:
            cost = (train_s + change_s) * other.option.gpus * question.price(other.option.gpu_type) / HOUR_S
            finish = progress.elapsed_s + change_s + train_s
            found.append(Rescue(option=other.option, finish_s=finish, chance=at, cost=cost))
    found.sort(key=lambda rescue: (rescue.cost, rescue.finish_s))
    return tuple(found[:5])


def _pass_s(row: Row, extra: float, setup_s: float) -> float:
    """Seconds of a pass as planned, without what comes after it."""
    return (row.total_s.value - setup_s) / row.passes - extra if row.passes else math.inf


def _passes_sd(row: Row, confidence: float) -> float:
    from scipy.special import ndtri

    z = float(ndtri(confidence))
    return math.log(max(row.passes_enough / row.passes, 1.0)) / z if z > 0 and row.passes else 0.0


def _finish(elapsed_s: float, left_s: float, sd: float) -> Interval:
    factor = math.exp(Z80 * sd)
    return Interval(
        value=elapsed_s + left_s, low=elapsed_s + left_s / factor, high=elapsed_s + left_s * factor
    )


def _chance(limit_s: float, needed_s: float, sd: float) -> float:
    if needed_s <= 0:
        return float(limit_s >= 0)
    if limit_s <= 0:
        return 0.0
    off = math.log(limit_s / needed_s) if math.isfinite(limit_s) else math.inf
    return float(ndtr(off / sd)) if sd > 0 else float(np.float64(off >= 0))


def _text(
    finish: Interval, deadline: float, chance: float, on_time: bool, rescues: tuple[Rescue, ...]
) -> str:
    from coadapt.units import format_duration

    if on_time:
        return f"on time: expected after {format_duration(finish.value)}"
    late = f"{format_duration(finish.value - deadline)} late" if finish.value > deadline else "at risk"
    said = f"{late}: expected after {format_duration(finish.value)}, chance to be in time {chance:.0%}"
    if not rescues:
        return said + "; no other option finishes in time"
    best = rescues[0].option
    return (
        said
        + f"; {best.gpus} x {best.gpu_type} with batch {best.batch} would finish after {format_duration(rescues[0].finish_s)}"
    )
