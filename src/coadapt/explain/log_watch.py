"""Predicts the end of a training run from its log: ``watch_log`` and ``follow_log``, which ``coadapt watch`` shows.

A forecast of a log is recorded the first time and whenever the log has grown older, and is judged when the log is
complete. The actual end is taken from the log's own clock, since a log may be read long after its last line was
written. A prediction stores its mark: the number of readings before it and the log's clock there. A process that
reads the same log again from the beginning passes the mark at the same time by that clock. If it does not, another
run was written to the file since, and the prediction is left as it is. If the log has no times, only the process that
saw its lines arrive can judge.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from coadapt.errors import InfeasibleError, InputError
from coadapt.model.interval import Interval
from coadapt.prediction.remaining.eta_estimate import FEW_STEPS, eta, seconds_per_work, steps_seen
from coadapt.prediction.training_log import CLOCKS, LogState, parse, read, segments
from coadapt.report import age_of
from coadapt.store.prediction_ledger import Kept, Prediction

METHOD = "pace"
#: Standard input, as a log's name.
STANDARD_INPUT = "-"
_CHUNK = 1 << 20
#: A line that does not end is kept up to this length; the rest of it says nothing we know.
_MOST_PENDING = 1 << 16
_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForecast:
    """Progress and remaining time of a run, predicted from its log."""

    #: In ``unit``; ``total`` is None if the total is not known.
    done: float
    total: float | None
    unit: str
    share: float | None
    rate_per_s: float | None
    #: Seconds left, with their 80% interval; None where they cannot be told, which ``note`` explains.
    eta_s: float | None
    eta_low_s: float | None
    eta_high_s: float | None
    pauses: int
    changes_of_pace: int
    restarts: int
    #: The last values of the metrics; those that are no numbers only by name.
    metrics: Mapping[str, float]
    not_numbers: list[str]
    #: Lines by the form in which they were understood.
    understood: Mapping[str, int]
    #: What tells the time: None where nothing does.
    clock: str | None
    note: str | None
    #: The number of this forecast in the ledger of predictions; None where it was not kept.
    prediction_id: int | None = None

    @property
    def complete(self) -> bool:
        """Whether all there was to do is done."""
        return self.total is not None and self.done >= self.total

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys: ``coadapt watch --json``."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def watch_log(log: str | Path, *, total: float | None = None, keep: bool = True) -> LogForecast:
    """Returns the forecast from the whole log as it is now."""
    name = str(log)
    with _opened(name) as stream:
        said = LogPredictions(name, Kept("watch")) if keep else None
        state, pending = LogState(), b""
        while chunk := stream.read(_CHUNK):
            state, pending = _take(state, pending + chunk, name, None, said)
        state, _ = _take(state, pending + b"\n", name, None, said)
    _check(state, name)
    return _forecast(state, total, said)


def follow_log(log: str | Path, *, total: float | None = None, keep: bool = True) -> Iterator[LogForecast]:
    """A forecast after each progress of a log that grows, until the run is done or standard input ends; else as ``watch_log``.

    Lines are timed as they arrive, where the log tells no time itself. A file that is written anew is read anew.
    """
    name = str(log)
    with _opened(name) as stream:
        said = LogPredictions(name, Kept("watch")) if keep else None
        state, pending, shown = LogState(), b"", None
        for chunk in _growing(stream, name):
            if chunk is None:
                state, pending, shown = LogState(), b"", None  # written anew
                if said is not None:
                    said.begin()
                continue
            state, pending = _take(state, pending + chunk, name, time.monotonic(), said)
            if state.done is None or state.done == shown:
                continue
            shown = state.done
            forecast = _forecast(state, total, said)
            yield forecast
            if forecast.complete:
                break
    _check(state, name)


class LogPredictions:
    """Records and judges the predictions made for one log."""

    def __init__(self, log: str, kept: Kept) -> None:
        self._kept = kept
        self._pipe = log == "-"
        self._subject = log if self._pipe else str(Path(log).resolve())
        self.begin()

    def begin(self) -> None:
        """Starts again at the first line: the log is read once more, or was overwritten."""
        #: Of earlier looks at this file, by their marks; perhaps of another run.
        self._earlier: dict[int, list[Prediction]] = {}
        for each in [] if self._pipe else self._kept.waiting(self._subject):
            if each.mark is not None:
                self._earlier.setdefault(each.mark, []).append(each)
        #: Of this run: when each was made, by the log's clock; and the ages it was said at.
        self._made_s: dict[int, float] = {}
        self._ages: set[str] = set()

    def passed(self, state: LogState) -> None:
        """Notes that a line was read, and finds earlier predictions made at this point."""
        if not self._earlier:
            return
        for each in self._earlier.pop(_readings(state), ()):
            if math.isclose(each.mark_s or 0.0, state.clock_s, rel_tol=1e-9, abs_tol=1e-6):
                self._made_s[each.id] = state.clock_s
                self._ages.add(age_of(each.done))

    def shown(self, state: LogState, answer: LogForecast) -> int | None:
        """Records a forecast that is shown, if it is new, and returns its id; judges all earlier ones if the run has
        ended.
        """
        if answer.total is not None and answer.done == answer.total:
            if self._made_s:
                self._kept.learn({number: state.clock_s - at for number, at in self._made_s.items()})
                self._made_s.clear()
            return None
        age = age_of(answer.share)
        if answer.eta_s is None or age in self._ages:
            return None
        self._ages.add(age)
        assert answer.eta_low_s is not None
        assert answer.eta_high_s is not None
        left = Interval(value=answer.eta_s, low=answer.eta_low_s, high=answer.eta_high_s)
        number = self._kept.keep(
            self._subject,
            METHOD,
            left,
            done=answer.share,
            mark=_readings(state),
            mark_s=state.clock_s,
        )
        if number is not None:
            self._made_s[number] = state.clock_s
        return number


def _readings(state: LogState) -> int:
    return sum(state.forms.values())


def _opened(log: str) -> IO[bytes]:
    if log == STANDARD_INPUT:
        return sys.stdin.buffer
    path = Path(log)
    if path.is_dir():
        raise InputError(f"{log} is a directory; name the log file")
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {log}: {error.strerror}") from None


def _take(
    state: LogState, data: bytes, log: str, seen_s: float | None, said: LogPredictions | None
) -> tuple[LogState, bytes]:
    """Reads the whole lines of ``data``; the last one may not be complete yet."""
    if b"\0" in data:
        raise InputError(f"{log} is a binary file; name the text that the run prints")
    # a progress bar may go on for hours without a line feed
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    for part in segments(data[:end].decode("utf-8", "replace")):
        reading = parse(part)
        if reading is not None:
            state = read(state, reading, seen_s)
            if said is not None:
                said.passed(state)
    return state, data[end:][-_MOST_PENDING:]


def _growing(stream: IO[bytes], log: str) -> Iterator[bytes | None]:
    """What is added to the file, for ever; None where it was cut and begins anew. A pipe ends."""
    if log == STANDARD_INPUT:
        while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]
            yield chunk
        return
    while True:
        if chunk := stream.read(_CHUNK):
            yield chunk
            continue
        if Path(log).exists() and Path(log).stat().st_size < stream.tell():
            stream.seek(0)
            yield None
        time.sleep(_POLL_S)


def _check(state: LogState, log: str) -> None:
    if state.done is None:
        raise InfeasibleError(
            f"{log} contains no recognised progress lines; supported are, for example, 'Epoch [3/90] Batch 10/390', "
            "'step 100/5000', progress bars of tqdm, Lightning and Keras, and 'COADAPT {\"progress\": 0.25}'"
        )


def _forecast(state: LogState, total: float | None, said: LogPredictions | None) -> LogForecast:
    assert state.done is not None
    total = state.total if total is None else total
    pace = seconds_per_work(state.run)
    left = None if total is None or total < state.done else eta(state.run, total - state.done)
    note = None
    if total is None:
        note = f"the log does not say how many {state.unit} there are; say so by --total"
    elif total < state.done:
        note = f"{state.done:g} of {total:g} {state.unit} done: the total is wrong"
    elif left is None:
        # a single line with a timestamp tells when it was, not yet how long anything takes
        timed = state.clock or state.stamp_s is not None
        note = (
            "too little is done to tell the pace"
            if timed
            else "the log tells no time; use --follow to measure it"
        )
    elif left.value and (timed_steps := steps_seen(state.run)) < FEW_STEPS:
        note = f"{timed_steps} steps timed at the present pace: too few to know their spread, so the interval is wide"
    found = LogForecast(
        done=state.done,
        total=total,
        unit=state.unit,
        share=None if not total else min(state.done / total, 1.0),
        rate_per_s=None if pace is None else 1 / pace.value,
        eta_s=None if left is None else left.value,
        eta_low_s=None if left is None else left.low,
        eta_high_s=None if left is None else left.upper,
        pauses=state.run.pauses,
        changes_of_pace=state.run.changes,
        restarts=state.run.setbacks,
        metrics={name: value for name, value in state.metrics.items() if value - value == 0},
        not_numbers=[name for name, value in state.metrics.items() if value - value != 0],
        understood=state.forms,
        clock=CLOCKS[state.clock] or None,
        note=note,
    )
    return found if said is None else replace(found, prediction_id=said.shown(state, found))
