"""``LogReader``: the progress of a run from the lines of its log, whichever formats they have.

Each format is a track of its own; the run's progress is that of the best track. So a validation bar, a second format or
a misread line never moves the progress of the run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from coadapt.model import Fact
from coadapt.plugins import LOG_FORMATS
from coadapt.prediction.remaining import eta_estimate
from coadapt.prediction.training_log.declared import Declared, declared
from coadapt.prediction.training_log.reading import LogFormat, Reading
from coadapt.prediction.training_log.track import CLOCKS, ELSEWHERE, EPOCH, Track

_log = logging.getLogger(__name__)
#: Formats of third parties are tried before plain lines, and after those that we know.
_THIRD_PARTY = 500
#: Longer lines are cut: no known progress is told after this, and matching them would be slow.
MAX_LINE = 4000
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f]")
_SPLIT = re.compile(r"[\r\n]+|\x1b\[A")
#: Metrics of one run, at most; and points of a followed metric.
_MOST_METRICS, _MOST_POINTS = 200, 512


def segments(text: str) -> list[str]:
    """A text as the lines a terminal showed: progress bars overwrite themselves by carriage returns."""
    parts = _SPLIT.split(text)
    return [clean for part in parts if (clean := _clean(part))]


def _clean(part: str) -> str:
    if len(part) > MAX_LINE:
        part = part[:MAX_LINE]
    return (part if part.isprintable() else _ESCAPE.sub("", part)).strip()


def parse(line: str) -> Reading | None:
    """Read one line by itself; None if it tells no progress."""
    return LogReader().reading(line)


class LogProgress(Fact, frozen=True):
    """Progress of the run according to its log, counted in ``unit``."""

    unit: str
    done: float
    total: float | None
    pace: eta_estimate.Pace
    clock: str
    clock_s: float
    ended: bool
    runs: int
    #: The number without which there is no ETA, and the option that gives it.
    missing: str = ""
    option: str = ""
    #: Epochs done, with their fraction; None if the log does not tell.
    epochs_done: float | None = None
    #: True: nothing but validation was seen.
    validation: bool = False

    @property
    def share(self) -> float | None:
        """Share of the run done; None if the total is not known."""
        return min(self.done / self.total, 1.0) if self.total else None


class LogReader:
    """Reads one log.

    Args:
        steps_per_epoch: Batches of an epoch, where the log does not tell them.
        batch: Samples of a step, where the log does not tell them.
        metric: A metric whose course is kept.
        first: Formats that are tried before all others.
    """

    def __init__(
        self,
        *,
        steps_per_epoch: float | None = None,
        batch: float | None = None,
        metric: str | None = None,
        first: Iterable[LogFormat] = (),
    ) -> None:
        classes = sorted(LOG_FORMATS.classes(), key=lambda cls: getattr(cls, "order", _THIRD_PARTY))
        formats: list[LogFormat] = [*first, *(cls() for cls in classes)]
        self._formats = [(tuple(getattr(made, "marks", ())), made) for made in formats]
        self._tracks: dict[str, Track] = {}
        self._declared = Declared(batch=batch)
        self._given_batch = batch
        self._steps_per_epoch, self._metric = steps_per_epoch, metric
        #: Readings by the form of their lines, and lines in all.
        self.forms: dict[str, int] = {}
        self.lines = 0
        self.metrics: dict[str, float] = {}
        #: (progress, clock, value) of the metric that is followed, thinned to a bounded number.
        self.course: list[tuple[float, float, float]] = []
        self._every, self._skipped = 1, 0

    # -- reading ----------------------------------------------------------------------------------------

    def reading(self, line: str) -> Reading | None:
        """The content of a line, by the first format that knows it."""
        text = _clean(line)
        for marks, format_ in self._formats:
            if marks and not any(mark in text for mark in marks):
                continue
            try:
                found = format_.parse(text)
            except Exception:
                _log.exception("log format %s raised an exception and is not used any more", format_.name)
                self._formats = [each for each in self._formats if each[1] is not format_]
                return None
            if found is not None:
                return found
        return None

    def feed(self, text: str, seen_s: float | None = None) -> None:
        """Read a text of whole lines, seen at ``seen_s`` (where the log is being followed)."""
        for part in segments(text):
            self.line(part, seen_s)

    def skip(self) -> None:
        """Note that lines are left out here."""
        for track in self._tracks.values():
            track.skip()

    def line(self, line: str, seen_s: float | None = None) -> Reading | None:
        """Read one line; returns its reading, if it has one."""
        self.lines += 1
        found = self.reading(line)
        if found is None:
            self._declare(declared(line))
            return None
        self.take(found, seen_s)
        return found

    def take(self, reading: Reading, seen_s: float | None = None) -> None:
        """Fold a reading."""
        self.forms[reading.form] = self.forms.get(reading.form, 0) + 1
        if len(self.metrics) < _MOST_METRICS:
            self.metrics.update(reading.metrics)
        else:
            self.metrics.update(
                (name, value) for name, value in reading.metrics.items() if name in self.metrics
            )
        track = self._tracks.get(reading.form)
        if track is None:
            track = self._tracks[reading.form] = Track()
        if reading.batch is not None and self._declared.batch is None:
            self._declare({"batch": reading.batch})
        track.take(reading, self._declared, seen_s, self._elsewhere(track), self._steps_per_epoch)
        if self._metric is not None and self._metric in reading.metrics:
            self._follow(reading.metrics[self._metric])

    def _elsewhere(self, track: Track) -> float | None:
        """The best clock of the other tracks."""
        others = [each for each in self._tracks.values() if each is not track and each.clock >= EPOCH]
        return max(others, key=lambda each: each.clock).clock_s if others else None

    def _declare(self, found: dict[str, float]) -> None:
        if "MLPerf" in self._tracks:
            # such a run ends at its target; what its arguments declare is a limit that it hardly ever reaches
            found = {name: value for name, value in found.items() if name in ("batch", "gpus")}
            self._declared = replace(self._declared, epochs=None, steps=None, samples=None)
        if not found:
            return
        if self._given_batch is not None:
            found = {**found, "batch": self._given_batch}
        if any(track.done for track in self._tracks.values()):
            # after training began, only what nobody said before: a script's own words about another phase do not count
            found = {name: value for name, value in found.items() if getattr(self._declared, name) is None}
        if found:
            self._declared = replace(self._declared, **found)

    def _follow(self, value: float) -> None:
        self._skipped += 1
        best = self._best()
        if self._skipped < self._every or best is None or best.done is None:
            return
        self._skipped = 0
        self.course.append((best.done, best.clock_s, value))
        if len(self.course) > _MOST_POINTS:
            self.course, self._every = self.course[::2], 2 * self._every

    # -- what it found ----------------------------------------------------------------------------------

    def _best(self) -> Track | None:
        known = [track for track in self._tracks.values() if track.done is not None]
        return max(known, key=self._rank) if known else None

    def _rank(self, track: Track) -> tuple[Any, ...]:
        total = track.total(self._declared, self._steps_per_epoch)
        return (
            not track.validation,
            track.whole and total is not None and track.clock > 0,
            track.whole and total is not None,
            track.clock > 0,
            track.clock > ELSEWHERE,
            track.whole,
            track.count,
        )

    def progress(self, total: float | None = None) -> LogProgress | None:
        """The progress of the run; None if the log tells none. ``total``: as given by the user."""
        track = self._best()
        if track is None or track.done is None:
            return None
        if total is None:
            total = track.total(self._declared, self._steps_per_epoch)
        missing, option = _missing(track, total)
        return LogProgress(
            unit=track.unit,
            done=track.done,
            total=total,
            pace=track.pace,
            clock=CLOCKS[track.clock],
            clock_s=track.clock_s,
            ended=track.ended,
            runs=track.runs,
            missing=missing,
            option=option,
            epochs_done=track.epochs_done,
            validation=track.validation,
        )

    @property
    def declared(self) -> Declared:
        """What the run printed about its totals and sizes."""
        return self._declared

    @property
    def readings(self) -> int:
        """Lines that told something."""
        return sum(self.forms.values())

    def read_all(self, lines: Iterable[str]) -> LogReader:
        """Read lines; returns itself."""
        for line in lines:
            self.feed(line)
        return self


def _missing(track: Track, total: float | None) -> tuple[str, str]:
    """The number that is missing for an ETA, and the option that gives it; empty if none is."""
    if total is None:
        return f"how many {track.unit} there are in all", "--total"
    if track.lacks_batch_size and not track.clock:
        return "the batch size, which turns samples per second into time", "--batch"
    if not track.timed:
        return "how long the run has taken so far", "--elapsed"
    if track.lacks_batches and track.pace.steps < 2:
        return "how many batches an epoch has", "--steps-per-epoch"
    return "", ""
