"""The pace of a run, observation by observation: at this time so much work is done.

Seconds per work are averaged in blocks; blocks are merged in pairs when there are too many, so an observation costs
O(1), however long the run.

- **Stragglers** are part of the mean: they will come again. A median would promise an end that never comes.
- **Pauses** (validation, checkpoints, a stopped process) stand out by far from the steps around them and are counted apart.
- **Changes** of pace (another configuration, where the caller names it; else two blocks in a row far from those before)
  begin a new regime, in which blocks are collected anew.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.model import Fact

#: Observations before a pause can be told, and those that tell what a usual step is.
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
    """All that is kept of a run. Times in seconds of the caller's clock."""

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
    """The clock goes on at ``at``: the time since the last observation is no one's (a preempted job, a restart)."""
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
