"""Where a run stands by its log: readings of lines folded into progress and a clock.

Time is taken from where it can be had, best first: a timestamp in the line, the bar's own elapsed time, the stated
time per batch, the time the line was seen. Progress is counted in the finest unit the log gives: batches over all epochs, steps,
epochs, or a share. Lines about validation tell metrics and no progress.
"""

from __future__ import annotations

from msgspec.structs import replace

from coadapt.model import Fact
from coadapt.predict import pace
from coadapt.predict.training_log import Reading

#: Sources of time, from the worst to the best; once a better one is known the others no longer count.
CLOCKS = ("", "arrival of lines", "time per batch in the log", "elapsed time in the log", "timestamps")
_DAY_S = 86400.0


class LogState(Fact, frozen=True):
    """Where the run stands by its log. Progress is counted in ``unit``."""

    run: pace.Pace = pace.START
    unit: str = ""
    done: float | None = None
    total: float | None = None
    epoch: float | None = None
    epochs: float | None = None
    #: Batches of one epoch.
    steps: int | None = None
    #: The first epoch's number: 0 or 1.
    first: int = 1
    #: Readings by the form of their lines.
    forms: dict[str, int] = {}
    clock_s: float = 0.0
    clock: int = 0
    stamp_s: float | None = None
    seen_s: float | None = None
    #: Last (step, elapsed seconds) of each kind of bar or batch line.
    bars: dict[str, tuple[int, float]] = {}
    metrics: dict[str, float] = {}
    #: Times a bar without a number of epoch began anew.
    passes: int = 0


def read(state: LogState, reading: Reading, seen_s: float | None = None) -> LogState:
    """The state after ``reading``, seen at ``seen_s`` (where the log is being followed)."""
    forms = {**state.forms, reading.form: state.forms.get(reading.form, 0) + 1}
    state = replace(state, forms=forms, metrics={**state.metrics, **reading.metrics})
    if reading.validation:
        return state
    spent_s, clock = _spent(state, reading, seen_s)
    moved = _timed(_position(state, reading), reading, seen_s)
    if clock < state.clock:
        spent_s = 0.0
    elif clock > state.clock:
        # seconds by different clocks do not add up
        moved = replace(moved, clock=clock, run=pace.START)
    moved = replace(moved, clock_s=moved.clock_s + spent_s)
    if moved.done is None or (moved.done == state.done and moved.run is state.run):
        return moved
    run = moved.run if moved.unit == state.unit else pace.START
    if run is pace.START and spent_s > 0:
        # the first line already says how long it took so far
        began = state.done if state.done is not None and moved.unit == state.unit else 0.0
        run = pace.observe(run, moved.clock_s - spent_s, min(began, moved.done))
    return replace(moved, run=pace.observe(run, moved.clock_s, moved.done))


def _spent(state: LogState, reading: Reading, seen_s: float | None) -> tuple[float, int]:
    """Seconds since the last reading, and by which clock."""
    if reading.stamp_s is not None and state.stamp_s is not None:
        spent = reading.stamp_s - state.stamp_s
        if spent < -_DAY_S / 2 and reading.stamp_s < _DAY_S:
            spent += _DAY_S  # a clock without a date went past midnight
        return max(spent, 0.0), 4
    step, elapsed = state.bars.get(reading.label, (0, 0.0))
    next_epoch = reading.epoch is not None and reading.epoch != state.epoch
    again = next_epoch or (reading.step is not None and reading.step < step)
    if reading.elapsed_s is not None:
        if reading.step is None and state.unit == "batches":
            return 0.0, 0  # the bar over epochs around the bar over batches
        return (reading.elapsed_s if again else max(reading.elapsed_s - elapsed, 0.0)), 3
    if reading.step_s is not None and reading.step is not None:
        return reading.step_s * (reading.step - (0 if again else step)), 2
    if seen_s is not None and state.seen_s is not None:
        return max(seen_s - state.seen_s, 0.0), 1
    return 0.0, 0


def _timed(state: LogState, reading: Reading, seen_s: float | None) -> LogState:
    """What the next reading's time is told by."""
    # a headline: what follows it begins anew
    bars = {} if reading.step is None and not reading.overall else state.bars
    if reading.step is not None or reading.elapsed_s is not None:
        bars = {**bars, reading.label: (reading.step or 0, reading.elapsed_s or 0.0)}
    return replace(
        state,
        bars=bars,
        stamp_s=state.stamp_s if reading.stamp_s is None else reading.stamp_s,
        seen_s=state.seen_s if seen_s is None else seen_s,
    )


def _position(state: LogState, reading: Reading) -> LogState:
    if reading.share is not None:
        return replace(state, unit="share", done=reading.share, total=1.0)
    if reading.overall and reading.step is not None:
        total = state.total if reading.steps is None and state.unit == "steps" else reading.steps
        return replace(
            state, unit="steps", done=float(reading.step), total=None if total is None else float(total)
        )
    if reading.form == "dict lines":
        return _by_epochs(state, reading)  # a share of epochs, which says nothing about the bars around it
    epoch = state.epoch if reading.epoch is None else reading.epoch
    state = replace(
        state,
        epoch=epoch,
        epochs=state.epochs if reading.epochs is None else reading.epochs,
        steps=state.steps if reading.steps is None else reading.steps,
        first=0 if epoch == 0 else state.first,
    )
    if reading.step is None:
        return _by_epochs(state, reading)
    if epoch is None:
        return _by_passes(state, reading)
    if state.steps is None:  # batches of an epoch are not told: their own number is all there is
        return replace(state, unit="steps", done=float(reading.step), total=None)
    # Lightning writes the number of the last epoch, counted from 0, where others write how many there are
    last_named = reading.form == "progress bar" and reading.epochs is not None and state.first == 0
    epochs = None if state.epochs is None else state.epochs + (1 if last_named else 0)
    done = (epoch - state.first) * state.steps + reading.step
    return replace(state, unit="batches", done=done, total=None if epochs is None else epochs * state.steps)


def _by_epochs(state: LogState, reading: Reading) -> LogState:
    """A line about an epoch: with batch lines it only names the epoch; without, epochs are the progress."""
    if state.unit in ("batches", "steps", "share") or reading.epoch is None:
        return state
    if reading.overall:  # epochs as they pass: 0.5, or a bar's count
        return replace(state, unit="epochs", done=reading.epoch, total=state.epochs)
    # a line that tells results stands at the end of its epoch, a headline at its beginning
    done = reading.epoch - state.first + (1 if reading.metrics else 0)
    return replace(state, unit="epochs", done=done, total=state.epochs)


def _by_passes(state: LogState, reading: Reading) -> LogState:
    """A bar without an epoch: the whole run, or one pass of several once it has begun anew."""
    assert reading.step is not None
    again = reading.step < state.bars.get(reading.label, (0, 0.0))[0]
    passes = state.passes + again
    steps = reading.steps or 0
    total = float(steps) if steps and not passes else None
    return replace(
        state, unit="batches", done=float(passes * steps + reading.step), total=total, passes=passes
    )
