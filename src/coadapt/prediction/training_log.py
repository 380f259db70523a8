"""Progress and clock of a run, read from the lines of its training log. Pure.

``parse`` reads one line into a ``Reading``. Understood: ``COADAPT {json}``; tqdm bars (Lightning, Hugging Face, plain), also
several in one line separated by carriage returns; Keras ``Epoch 3/90`` and ``390/390 [===] - 12s 31ms/step``;
``Epoch [3/90] Batch 10/390 time 0.123``; ``Epoch: [0][10/5005] Time 0.1``; ``step 100/5000 loss=0.3``; dict lines
``{'loss': 1.2, 'epoch': 0.5}``. Patterns match text of bounded length, so that no line is slow to read.

``read`` folds readings into a ``LogState``: progress and a clock. Time comes from the best source there is: a timestamp in
the line, the bar's own elapsed time, the stated time per batch, the time the line was seen. Progress is counted in
the finest unit of the log: batches over all epochs, steps, epochs, or a share. Lines about validation give metrics and no
progress.
"""

from __future__ import annotations

import ast
import json
import math
import re
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from coadapt.model import Fact
from coadapt.model.measurement import PREFIX
from coadapt.prediction.remaining import eta_estimate

#: Longer lines are ignored: no known log has them, and matching them would be slow.
MAX_LINE = 4000
#: Longer ones are none of ours; a part of one would be another number.
_COUNT = r"(\d{1,18})(?!\d)"
_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"

_BAR = re.compile(
    rf"^(?P<about>[^|%]{{0,120}}?)\s{{0,4}}\d{{1,3}}%\|[^|]{{0,300}}\|\s{{0,8}}{_COUNT}/{_COUNT} \[((?:\d+:)?\d+:\d\d)<"
)
_KERAS = re.compile(
    rf"^\s{{0,8}}{_COUNT}/{_COUNT}\s(?:\[[=>.\s]{{0,60}}\]|\S{{1,60}})?\s{{0,4}}(?:-\s)?{_NUMBER}(us|ms|s|m|h)"
    rf"(?:\s{_NUMBER}(us|ms|s)/(?:step|epoch|sample))?"
)
_EPOCH_OF = re.compile(
    rf"\bepochs?\b[\s:=#]{{0,3}}[\[(]?\s{{0,4}}{_COUNT}\s{{0,3}}(?:/|of)\s{{0,3}}{_COUNT}", re.I
)
_EPOCH_BATCH = re.compile(
    rf"\bepoch:?\s?\[?\s{{0,4}}{_COUNT}\]?\s?\[\s{{0,6}}{_COUNT}\s?/\s?{_COUNT}(?:\s\(\d{{1,3}}%\))?\]", re.I
)
_EPOCH = re.compile(rf"\bepoch\b[\s:=#]{{0,3}}[\[(]?\s{{0,4}}{_COUNT}(?![\d.])", re.I)
_STEP = re.compile(
    rf"\b(?:(?:global[_ ])?steps?|iter(?:ation)?s?|batch(?:es)?|it)\b[\s:=#]{{0,3}}[\[(]?\s{{0,8}}{_COUNT}(?:\s{{0,3}}(?:/|of)\s{{0,3}}{_COUNT})?",
    re.I,
)
_TIME = re.compile(rf"\b(?:batch_?)?time\b(?:/batch)?[\s:=]{{1,3}}{_NUMBER}\s?(us|ms|s)?\b(?![:\d])", re.I)
_METRIC = re.compile(
    r"\b([A-Za-z][\w/-]{0,40})\s{0,2}[:=]\s{0,2}(-?(?:\d{1,12}\.?\d{0,12}(?:[eE][-+]?\d{1,3})?|nan|inf))(?![\w:/])"
)
_NAMED = re.compile(
    rf"\b(\w{{0,30}}(?:loss|acc|accuracy|error|ppl|f1))\s{{1,3}}(-?{_NUMBER[1:-1]}|nan)\b", re.I
)
#: A loss that Python prints as it is, which is no literal of Python's.
_BARE = re.compile(r"([:,\[]\s{0,4})(-?(?:nan|inf))(?=\s{0,4}[,}\]])")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(Z|[+-]\d\d:?\d\d)?")
_CLOCK = re.compile(r"^\W{0,2}(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?\b")
_VALIDATION = re.compile(r"\b(val|valid|validat\w*|eval\w*|test\w*|sanity|predict\w*|download\w*)\b", re.I)
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_NOT_METRICS = frozenset(
    ("epoch", "epochs", "step", "steps", "iter", "iteration", "batch", "it", "time", "eta", "global_step")
)


class Reading(Fact, frozen=True):
    """The content of one line. Counts start at 1 unless the log starts at 0; values that are not in the line are None."""

    form: str
    epoch: float | None = None
    epochs: float | None = None
    step: int | None = None
    steps: int | None = None
    #: True: ``step`` counts over the whole run, not within an epoch.
    overall: bool = False
    #: Share of the run done.
    share: float | None = None
    stamp_s: float | None = None
    #: Since the epoch (or the bar) began.
    elapsed_s: float | None = None
    step_s: float | None = None
    #: A bar's label: several bars may run at a time.
    label: str = ""
    validation: bool = False
    metrics: dict[str, float] = {}


def parse(line: str) -> Reading | None:
    """Read the progress in ``line``; None if there is none."""
    if len(line) > MAX_LINE:
        return None
    text = line.strip()
    if text.startswith(PREFIX):
        return _ours(text[len(PREFIX) :])
    if text.startswith("{") and text.endswith("}"):
        return _mapping(text)
    if "%|" in text:
        bar = _BAR.match(text)
        return None if bar is None else _bar(text, bar)
    found = _keras(text) or _plain(text)
    return None if found is None else replace(found, stamp_s=_stamp(text), metrics=_metrics(text))


def segments(line: str) -> list[str]:
    """A line of a file as the lines a terminal showed: progress bars overwrite themselves by carriage returns."""
    parts = re.split(r"[\r\n]+|\x1b\[A", line)
    return [clean for part in parts if (clean := _ESCAPE.sub("", part)).strip()]


def _ours(text: str) -> Reading | None:
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    number = {key: _number(value) for key, value in said.items()}
    metrics = said.get("metrics") if isinstance(said.get("metrics"), dict) else {}
    assert isinstance(metrics, dict)
    found = {str(k): v for k, v in ((k, _value(v)) for k, v in metrics.items()) if v is not None}
    if isinstance(said.get("metric"), str) and (value := _value(said.get("value"))) is not None:
        found[said["metric"]] = value
    share, step, steps = number.get("progress"), number.get("step"), number.get("steps")
    if share is not None and not 0 <= share <= 1:
        share = None
    if share is None and step is None and number.get("epoch") is None:
        return None
    return Reading(
        form="COADAPT",
        share=share,
        epoch=number.get("epoch"),
        epochs=number.get("epochs"),
        step=None if step is None else int(step),
        steps=None if steps is None else int(steps),
        overall=True,
        stamp_s=number.get("time"),
        metrics=found,
    )


def _mapping(text: str) -> Reading | None:
    said = _read(text) or _read(_BARE.sub(r'\1"\2"', text))
    if not isinstance(said, dict) or "epoch" not in said:
        return None
    number = {str(key): _number(value) for key, value in said.items()}
    metrics = {str(k): v for k, v in ((k, _value(v)) for k, v in said.items()) if v is not None}
    metrics = {k: v for k, v in metrics.items() if k.lower() not in _NOT_METRICS}
    step = number.get("step") or number.get("global_step")
    return Reading(
        form="dict lines",
        epoch=number["epoch"],
        step=None if step is None else int(step),
        overall=True,
        validation=any(k.startswith("eval") for k in metrics),
        metrics=metrics,
    )


def _read(text: str) -> Any:
    try:
        return ast.literal_eval(text) if "'" in text else json.loads(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _bar(text: str, bar: re.Match[str]) -> Reading:
    about = bar["about"].strip().rstrip(":")
    epoch_of, epoch = _EPOCH_OF.search(about), _EPOCH.search(about)
    count, total = int(bar[2]), int(bar[3])
    elapsed = 0.0
    for part in bar[4].split(":"):
        elapsed = 60 * elapsed + int(part)
    shown = Reading(
        form="progress bar",
        step=count,
        steps=total,
        elapsed_s=elapsed,
        label=re.sub(r"\d+", "#", about),
        validation=bool(_VALIDATION.search(about)),
        metrics=_metrics(text[bar.end() :]),
    )
    if re.fullmatch(r"epochs?|training epochs?", about, re.I):
        # a bar over epochs, not over batches
        return replace(
            shown,
            form="progress bar over epochs",
            step=None,
            steps=None,
            epoch=float(count),
            epochs=float(total),
            overall=True,
        )
    if epoch_of:
        # Lightning counts from 0 to the last: whoever folds adds the one where a 0 is seen
        return replace(shown, epoch=float(epoch_of[1]), epochs=float(epoch_of[2]))
    return replace(shown, epoch=float(epoch[1])) if epoch else shown


def _keras(text: str) -> Reading | None:
    found = _KERAS.match(text)
    if not found or int(found[2]) == 0:
        return None
    step_s = float(found[5]) * _UNIT_S[found[6]] if found[5] else None
    total_s = float(found[3]) * _UNIT_S[found[4]]
    return Reading(
        form="Keras", step=int(found[1]), steps=int(found[2]), elapsed_s=total_s, step_s=step_s, label="keras"
    )


def _plain(text: str) -> Reading | None:
    validation = bool(_VALIDATION.match(text))
    time = _TIME.search(text)
    step_s = float(time[1]) * _UNIT_S[time[2]] if time else None
    if both := _EPOCH_BATCH.search(text):
        return Reading(
            form="Epoch [e][batch/batches]",
            epoch=float(both[1]),
            step=int(both[2]),
            steps=int(both[3]),
            step_s=step_s,
            validation=validation,
        )
    epoch_of, epoch, step = _EPOCH_OF.search(text), _EPOCH.search(text), _STEP.search(text)
    if not (epoch_of or epoch or step):
        return None
    which = float(epoch_of[1]) if epoch_of else float(epoch[1]) if epoch else None
    return Reading(
        form="step lines" if step and which is None else "epoch and batch lines" if step else "epoch lines",
        epoch=which,
        epochs=float(epoch_of[2]) if epoch_of else None,
        step=int(step[1]) if step else None,
        steps=int(step[2]) if step and step[2] else None,
        overall=bool(step) and which is None,
        step_s=step_s if step else None,
        validation=validation,
    )


def _metrics(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in (*_NAMED.findall(text)[:40], *_METRIC.findall(text)[:40]):
        if name.lower() not in _NOT_METRICS:
            found[name] = float(value)
    return found


def _stamp(text: str) -> float | None:
    head = text[:80]
    if found := _STAMP.search(head):
        zone = (found[4] or "Z").replace("Z", "+00:00")
        try:
            whole = datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}")
        except ValueError:
            return None
        return whole.astimezone(UTC).timestamp() + float(f"0.{found[3] or 0}")
    if found := _CLOCK.match(head):
        return int(found[1]) * 3600.0 + int(found[2]) * 60.0 + int(found[3]) + float(f"0.{found[4] or 0}")
    return None


def _number(value: object) -> float | None:
    number = _value(value)
    return number if number is not None and math.isfinite(number) else None


def _value(value: object) -> float | None:
    """A number as it was logged; a metric may be nan, which is reported as such."""
    if isinstance(value, bool):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


#: Sources of time, from the worst to the best; once a better one is known the others no longer count.
CLOCKS = ("", "arrival of lines", "time per batch in the log", "elapsed time in the log", "timestamps")
_DAY_S = 86400.0


class LogState(Fact, frozen=True):
    """Progress of the run according to its log, counted in ``unit``."""

    run: eta_estimate.Pace = eta_estimate.START
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
        moved = replace(moved, clock=clock, run=eta_estimate.START)
    moved = replace(moved, clock_s=moved.clock_s + spent_s)
    if moved.done is None or (moved.done == state.done and moved.run is state.run):
        return moved
    run = moved.run if moved.unit == state.unit else eta_estimate.START
    if run is eta_estimate.START and spent_s > 0:
        # the first line already says how long it took so far
        began = state.done if state.done is not None and moved.unit == state.unit else 0.0
        run = eta_estimate.observe(run, moved.clock_s - spent_s, min(began, moved.done))
    return replace(moved, run=eta_estimate.observe(run, moved.clock_s, moved.done))


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
    """The source of the next reading's time."""
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
    if state.steps is None:  # the batches of an epoch are unknown: only their own number is logged
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
