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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from coadapt.errors import InfeasibleError, InputError
from coadapt.explain.log_target import TargetForecast, arrival_of
from coadapt.model.interval import Interval
from coadapt.plugins import LOG_FORMATS
from coadapt.prediction.remaining.eta_estimate import (
    FEW_STEPS,
    START,
    eta,
    observe,
    seconds_per_work,
    steps_seen,
)
from coadapt.prediction.training_log import LogProgress, LogReader, RecordFormat, segments
from coadapt.report import age_of
from coadapt.spec.target import Target, parse_target
from coadapt.store.prediction_ledger import Kept, Prediction

METHOD = "pace"
#: Standard input, as a log's name.
STANDARD_INPUT = "-"
_CHUNK = 1 << 20
#: A line that does not end is kept up to this length; the rest of it says nothing we know. A binary record may be longer.
_MOST_PENDING, _MOST_RECORD = 1 << 16, 1 << 23
#: Bytes of a log that are read line by line; of each chunk after them, this many at its beginning and at its end.
WHOLE, EDGE = 1 << 20, 12 << 10
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
    #: The option that gives the one number that is missing for an ETA; None where none is.
    missing: str | None = None
    #: The log says that the run has ended.
    ended: bool = False
    #: When the target is reached; None where none was asked about.
    target: TargetForecast | None = None
    #: The number of this forecast in the ledger of predictions; None where it was not kept.
    prediction_id: int | None = None

    @property
    def complete(self) -> bool:
        """Whether all there was to do is done."""
        return self.ended or (self.total is not None and self.done >= self.total)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys: ``coadapt watch --json``."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return found | {"target": None if self.target is None else self.target.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Numbers that the user gives because the log does not tell them."""

    #: In the log's unit.
    total: float | None = None
    steps_per_epoch: float | None = None
    batch: float | None = None
    #: Seconds that the run has taken so far.
    elapsed_s: float | None = None
    #: ``loss<=3.28``: predict when it is reached, too.
    target: str | None = None


def watch_log(log: str | Path, *, keep: bool = True, **told: Any) -> LogForecast:
    """Returns the forecast from the whole log as it is now; ``told``: fields of ``Told``."""
    name, given = str(log), Told(**told)
    with _opened(name) as stream:
        source = _Source(given, LogPredictions(name, Kept("watch")) if keep else None)
        while chunk := _read(stream.read, name):
            source.take(chunk)
        source.end()
    source.check(name)
    return source.forecast()


def read_log(
    log: str | Path, *, steps_per_epoch: float | None = None, batch: float | None = None
) -> LogReader:
    """Reads a whole log; returns its reader."""
    name = str(log)
    with _opened(name) as stream:
        source = _Source(Told(steps_per_epoch=steps_per_epoch, batch=batch), None)
        while chunk := _read(stream.read, name):
            source.take(chunk)
        source.end()
    return source.reader


def follow_log(log: str | Path, *, keep: bool = True, **told: Any) -> Iterator[LogForecast]:
    """A forecast after each progress of a log that grows, until the run is done or standard input ends; else as ``watch_log``.

    Lines are timed as they arrive, where the log tells no time itself. A file that is written anew is read anew.
    """
    name, given = str(log), Told(**told)
    with _opened(name) as stream:
        said = LogPredictions(name, Kept("watch")) if keep else None
        source, shown = _Source(given, said), None
        for chunk in _growing(stream, name):
            if chunk is None:
                source, shown = _Source(given, said), None  # written anew
                if said is not None:
                    said.begin()
                continue
            source.take(chunk, time.monotonic())
            found = source.progress()
            if found is None or (found.done, found.ended) == shown:
                continue
            shown = (found.done, found.ended)
            forecast = source.forecast()
            yield forecast
            if forecast.complete:
                break
    source.check(name)


class _Source:
    """Turns the bytes of one log into lines (or records) for its reader. Keeps no more than the last line.

    A large log is read in stretches: counters are absolute, so lines between two stretches say nothing more about the pace.
    """

    def __init__(self, told: Told, said: LogPredictions | None) -> None:
        self._told, self._said = told, said
        target = parse_target(told.target) if told.target is not None else None
        self._target = target
        self.reader = LogReader(
            steps_per_epoch=told.steps_per_epoch,
            batch=told.batch,
            metric=None if target is None else target.name,
        )
        self._pending = b""
        self._taken = 0
        self._binary = False
        self._records: RecordFormat | None = None

    def take(self, data: bytes, seen_s: float | None = None) -> None:
        """Reads the whole lines of ``data``; the last one may not be complete yet."""
        if self._taken == 0:
            self._records = _record_format(data)
        self._taken += len(data)
        data = self._pending + data
        if self._records is not None:
            readings, rest = self._records.records(data)
            for reading in readings:
                self.reader.take(reading, seen_s)
                self._passed()
            self._pending = rest[:_MOST_RECORD]
            return
        # a progress bar may go on for hours without a line feed
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._pending = data[end:][-_MOST_PENDING:]
        self._binary = self._binary or b"\0\0\0\0" in data[:_MOST_PENDING]
        if self._taken > WHOLE and end > 4 * EDGE:
            self._lines(data[: data.rfind(b"\n", 0, EDGE) + 1], seen_s)
            self.reader.skip()
            self._lines(data[data.find(b"\n", end - EDGE) + 1 : end], seen_s)
        else:
            self._lines(data[:end], seen_s)

    def end(self) -> None:
        """Reads a last line that has no end."""
        if self._records is None:
            self.take(b"\n")

    def _lines(self, data: bytes, seen_s: float | None) -> None:
        for part in segments(data.decode("utf-8", "replace")):
            if self.reader.line(part, seen_s) is not None:
                self._passed()

    def _passed(self) -> None:
        if self._said is not None:
            self._said.passed(self.reader)

    def progress(self) -> LogProgress | None:
        """The progress of the run; None if there is none yet."""
        return self.reader.progress(self._told.total)

    def check(self, log: str) -> None:
        """Raises an error if the log tells no progress."""
        if self.progress() is not None:
            return
        if self._binary:
            raise InputError(
                f"{log} is a binary file; name the text that the run prints, or a TensorBoard event file"
            )
        raise InfeasibleError(
            f"{log} contains no recognised progress lines; supported are, for example, 'Epoch [3/90] Batch 10/390', "
            "'step 100/5000', progress bars of tqdm, Lightning and Keras, and 'COADAPT {\"progress\": 0.25}' (docs/logs.md has all)"
        )

    def forecast(self) -> LogForecast:
        """The forecast at this point; there must be progress."""
        found = self.progress()
        assert found is not None
        answer = _forecast(found, self.reader, self._told, self._target)
        return (
            answer
            if self._said is None
            else replace(answer, prediction_id=self._said.shown(self.reader, found, answer))
        )


def _record_format(head: bytes) -> RecordFormat | None:
    for cls in LOG_FORMATS.classes():
        if callable(getattr(cls, "records", None)):
            made: RecordFormat = cls()
            if made.sniff(head):
                return made
    return None


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

    def passed(self, reader: LogReader) -> None:
        """Notes that a line was read, and finds earlier predictions made at this point."""
        if not self._earlier:
            return
        waiting = self._earlier.pop(reader.readings, ())
        found = reader.progress() if waiting else None
        for each in waiting:
            if found is not None and math.isclose(
                each.mark_s or 0.0, found.clock_s, rel_tol=1e-9, abs_tol=1e-6
            ):
                self._made_s[each.id] = found.clock_s
                self._ages.add(age_of(each.done))

    def shown(self, reader: LogReader, state: LogProgress, answer: LogForecast) -> int | None:
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
            mark=reader.readings,
            mark_s=state.clock_s,
        )
        if number is not None:
            self._made_s[number] = state.clock_s
        return number


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


def _read(read: Callable[[int], bytes], log: str) -> bytes:
    """The next bytes of a log; InputError if it cannot be read, as on a damaged disk."""
    try:
        return read(_CHUNK)
    except OSError as error:
        raise InputError(f"cannot read {log}: {error.strerror}") from None


def _growing(stream: IO[bytes], log: str) -> Iterator[bytes | None]:
    """What is added to the file, for ever; None where it was cut and begins anew. A pipe ends."""
    if log == STANDARD_INPUT:
        while chunk := _read(stream.read1, log):  # type: ignore[attr-defined]
            yield chunk
        return
    while True:
        if chunk := _read(stream.read, log):
            yield chunk
            continue
        if Path(log).exists() and Path(log).stat().st_size < stream.tell():
            stream.seek(0)
            yield None
        time.sleep(_POLL_S)


def _forecast(state: LogProgress, reader: LogReader, told: Told, target: Target | None) -> LogForecast:
    total, run, note = state.total, state.pace, None
    if told.elapsed_s is not None and not run.steps and state.done > 0:
        run = observe(
            observe(observe(START, 0.0, 0.0), told.elapsed_s / 2, state.done / 2), told.elapsed_s, state.done
        )
    pace = seconds_per_work(run)
    over = total is not None and total < state.done
    left = None if total is None or over else eta(run, total - state.done)
    if state.ended and (total is None or state.unit != "share"):
        total, left = state.done if total is None else total, Interval(value=0.0, low=0.0, high=0.0)
    if over:
        note = f"{state.done:g} of {total:g} {state.unit} done: the total is wrong"
    elif left is None and state.missing:
        note = _remedy(state)
    elif left is None:
        # a single line with a timestamp tells when it was, not yet how long anything takes
        note = "too little is done to tell the pace"
    elif left.value and (timed_steps := steps_seen(run)) < FEW_STEPS:
        note = f"{timed_steps} steps timed at the present pace: too few to know their spread, so the interval is wide"
    elif state.runs > 1:
        note = f"the log holds {state.runs} runs; this is the last"
    arrival = None if target is None else arrival_of(target, reader, state, run)
    return LogForecast(
        done=state.done,
        total=total,
        unit=state.unit,
        share=None if not total else min(state.done / total, 1.0),
        rate_per_s=None if pace is None else 1 / pace.value,
        eta_s=None if left is None else left.value,
        eta_low_s=None if left is None else left.low,
        eta_high_s=None if left is None else left.upper,
        pauses=run.pauses,
        changes_of_pace=run.changes,
        restarts=run.setbacks,
        metrics={name: value for name, value in reader.metrics.items() if value - value == 0},
        not_numbers=[name for name, value in reader.metrics.items() if value - value != 0],
        understood=reader.forms,
        clock=state.clock or None,
        missing=state.option if left is None and state.missing else None,
        note=note,
        ended=state.ended,
        target=arrival,
    )


def _remedy(state: LogProgress) -> str:
    """The number that is missing, and what gives it."""
    if state.option == "--elapsed":
        return f"the log tells no time; use --follow to measure it, or say by --elapsed {state.missing}"
    lacks = f"the log does not say {state.missing}"
    if state.option == "--total" and state.clock:
        return f"{lacks}; say so by --total, or name the metric that ends it by --target"
    return f"{lacks}; say so by {state.option}"
