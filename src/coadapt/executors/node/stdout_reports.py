"""Measurements from standard output: ``COADAPT {json}`` lines, and lines that a job's ``metrics`` patterns match.

A line holds a report of our agent (``wire.agent``), or what a script writes by hand: ``{"epoch": 3, "step_time": 0.1,
"batch": 64, "val_acc": 0.9}``. Numbers under unknown names are metrics. Lines that cannot be parsed are ignored. Only
the output of the first replica of an attempt is read. Of a program that reports nothing, a log of a known format
(``prediction.training_log``) tells the share of the run that is done.

A user's regular expression must not block the keeper: ``re`` checks for signals while it searches, so a timer that
counts our own CPU time ends a search that takes too long, and the pattern is not used again.
"""

from __future__ import annotations

import logging
import math
import re
import signal
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from coadapt.errors import InputError
from coadapt.executors.node.replica import Replica
from coadapt.executors.node.replica_logs import Follower
from coadapt.model import Measurement, Placement
from coadapt.model.measurement import PREFIX, Configuration, ReportLimits, check_measurement
from coadapt.wire.agent import Report, decode
from coadapt.wire.node_messages import Launch

if TYPE_CHECKING:
    from coadapt.prediction.training_log import LogReader

log = logging.getLogger(__name__)
#: CPU seconds of one search, and the longest line that is searched.
_PATIENCE_S, _LONGEST = 0.02, 2000
_MOST = 64


class _TooSlowError(Exception):
    """The search has used up its time."""


class Patterns:
    """The metric patterns of one job. Invalid patterns, and those without a group, are left out (a submission checks
    them before).
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns: dict[str, re.Pattern[str]] = {}
        for name, text in list(patterns.items())[:_MOST]:
            try:
                compiled = re.compile(text)
            except (re.error, RecursionError, OverflowError) as error:
                log.warning("metric %s: %r is not a valid pattern and is ignored: %s", name, text, error)
                continue
            if compiled.groups >= 1:
                self._patterns[name] = compiled

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, line: str) -> dict[str, float]:
        """Returns the metrics found in ``line``."""
        found = {}
        for name, pattern in list(self._patterns.items()):
            try:
                value = _search(pattern, line[:_LONGEST])
            except _TooSlowError:
                log.warning("metric %s: its pattern takes too long and is disabled", name)
                del self._patterns[name]
                continue
            if value is not None:
                found[name] = value
        return found


def _search(pattern: re.Pattern[str], line: str) -> float | None:
    """The number in the pattern's first group; None if there is none."""
    if threading.current_thread() is not threading.main_thread():
        raise _TooSlowError  # signals reach the main thread only: a metric less is better than a blocked keeper
    before = signal.signal(signal.SIGVTALRM, _ring)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, _PATIENCE_S)
        found = pattern.search(line)
    finally:
        # ignored first: a signal that is already pending must not arrive after this
        signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    try:
        value = float(found[1]) if found else math.nan
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _ring(number: int, frame: object) -> None:
    raise _TooSlowError


#: Most measurements of one attempt in a second; further ones in that second are ignored.
MOST_PER_S = 20
_KNOWN = frozenset(
    (
        *("epoch", "epochs", "step", "steps", "step_time", "step_s", "batch", "batch_size", "count"),
        *("work", "progress", "time", "epoch_s", "metric", "value", "metrics"),
        *("job", "attempt", "number", "version", "in_place", "rank", "done"),
    )
)
_MOST_METRICS = 64
#: Lines of a log that are read at a time, the latest; and the growth of a share that is reported.
_MOST_LOG_LINES, _LEAST_SHARE = 100, 0.002
_NAME = re.compile(r"[A-Za-z_][\w./@-]{0,63}")


class Readings:
    """Parses the output of one attempt; ``read`` must get each line of its first replica once."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self._patterns = launch, Patterns(launch.metrics)
        #: The agent has reported that it can be resized in place.
        self.in_place = False
        self._number = 0
        self._step: float | None = None
        self._second, self._said = float("-inf"), 0
        self._warned = False
        #: Of a program that prints no reports of its own; None until it prints anything.
        self._log: LogReader | None = None
        self._reports_itself = False
        self._share = 0.0

    def read(self, lines: Iterable[str], placement: Placement, now: float) -> list[Measurement]:
        """Returns the measurements in ``lines``, taken at ``placement``; limited in number per second of ``now``."""
        found: list[Measurement] = []
        others: deque[str] = deque(maxlen=_MOST_LOG_LINES)
        skipped = 0
        for line in lines:
            if line.startswith(PREFIX):
                found += self._ours(line[len(PREFIX) :], placement)
            elif self._patterns and (metrics := self._patterns.match(line)):
                found.append(
                    Measurement(
                        config=self._config(placement, self.launch.total_batch), count=0, metrics=metrics
                    )
                )
            elif not self._reports_itself:
                skipped += len(others) == _MOST_LOG_LINES
                others.append(line)
        if found:
            # a program that reports itself knows better than its log
            self._log, self._reports_itself = None, True
        elif others and (logged := self._logged(others, skipped, placement, now)):
            found.append(logged)
        return self._bounded([each for each in found if self._sound(each)], now)

    def _logged(
        self, lines: Iterable[str], skipped: int, placement: Placement, now: float
    ) -> Measurement | None:
        """The share of the run that its log tells, where that has grown; only of training, and only of a known total."""
        if self._log is None:
            # imported here: it needs numpy, which a keeper without plain programs should not carry along
            from coadapt.prediction.training_log import LogReader

            self._log = LogReader()
        if skipped:
            self._log.skip()
        for line in lines:
            self._log.feed(line[:_LONGEST], now)
        state = self._log.progress()
        share = None if state is None or state.validation else state.share
        if share is None or share < self._share + _LEAST_SHARE:
            return None
        self._share = share
        return Measurement(config=self._config(placement, self.launch.total_batch), count=0, share=share)

    def _sound(self, measurement: Measurement) -> bool:
        """Whether it is valid, by the same rule as reports over HTTP. Others are ignored, with one warning in the keeper's log."""
        try:
            check_measurement(measurement, ReportLimits(data_size=self.launch.data_size))
        except InputError as error:
            if not self._warned:
                log.warning("an invalid measurement on standard output is ignored: %s", error)
            self._warned = True
            return False
        return True

    def _bounded(self, found: list[Measurement], now: float) -> list[Measurement]:
        if now - self._second >= 1.0:
            self._second, self._said = now, 0
        kept = found[-max(MOST_PER_S - self._said, 0) :] if self._said < MOST_PER_S else []
        self._said += len(kept)
        return kept

    def _ours(self, text: str, placement: Placement) -> list[Measurement]:
        try:
            decoded = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return []
        if not isinstance(decoded, dict):
            return []
        if decoded.get("in_place") is True:
            self.in_place = True
        if "measurements" in decoded:
            return self._report(text)
        found = self._by_hand(decoded, placement)
        return [found] if found is not None else []

    def _report(self, text: str) -> list[Measurement]:
        try:
            report: Report = decode(text)
        except msgspec.DecodeError:
            return []
        if report.number and report.number <= self._number:
            return []  # a repeated report
        self._number = max(self._number, report.number)
        return list(report.measurements)

    def _by_hand(self, line: Mapping[str, Any], placement: Placement) -> Measurement | None:
        number = {
            key: value for key, value in ((k, _number(v)) for k, v in line.items()) if value is not None
        }
        metrics = _metrics(line, number)
        batch = int(number.get("batch", number.get("batch_size", self.launch.total_batch)))
        step_s = number.get("step_time", number.get("step_s", 0.0))
        count = self._count(number)
        timed = step_s > 0 and batch > 0
        epoch, share = number.get("epoch"), _share(number)
        if epoch is None and self.launch.epochs is not None and share is not None:
            epoch = share * self.launch.epochs
        if epoch is None and share is None and not metrics and not timed and "work" not in number:
            return None
        return Measurement(
            config=self._config(placement, batch),
            count=count if timed else 0,
            step_s=step_s if timed else 0.0,
            work=number.get("work"),
            epoch=epoch if epoch is None or epoch >= 0 else None,
            share=share,
            metrics=metrics,
        )

    def _count(self, number: Mapping[str, float]) -> int:
        """Number of steps that a step time is the mean of: those since the last line, if lines are numbered."""
        step, before = number.get("step"), self._step
        self._step = step if step is not None else before
        count = number.get("count")
        if count is None and step is not None and before is not None:
            count = step - before
        return int(min(max(count or 1, 1), 1 << 31))

    def _config(self, placement: Placement, batch: int) -> Configuration:
        replicas = max(placement.replicas, 1)
        return Configuration(
            nodes=max(placement.nodes, 1),
            replicas=replicas,
            atomic_batch=max(-(-min(batch, 1 << 40) // replicas), 1),
            gpu_type=placement.gpu_type or "gpu",
        )


def _metrics(line: Mapping[str, Any], number: Mapping[str, float]) -> dict[str, float]:
    nested = line.get("metrics")
    found = {k: v for k, v in number.items() if k not in _KNOWN}
    if isinstance(nested, dict):
        found.update({str(k): v for k, v in ((k, _number(v)) for k, v in nested.items()) if v is not None})
    if isinstance(line.get("metric"), str) and "value" in number:
        found[line["metric"]] = number["value"]
    named = [(name, value) for name, value in found.items() if _NAME.fullmatch(name)]
    return dict(named[:_MOST_METRICS])


def _share(number: Mapping[str, float]) -> float | None:
    share = number.get("progress")
    if share is None and number.get("steps", 0) > 0 and "step" in number:
        share = number["step"] / number["steps"]
    if share is None and number.get("epochs", 0) > 0 and "epoch" in number:
        share = number["epoch"] / number["epochs"]
    return share if share is not None and 0 <= share <= 1 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e300 else None


class ReportFollower:
    """Follows whichever replica is the first at present."""

    def __init__(self, launch: Launch) -> None:
        self.readings = Readings(launch)
        self._first = ""
        self._follower: Follower | None = None
        #: Lines of the replica that was the first before.
        self._last_lines: list[str] = []

    def listen_to(self, replica: Replica | None, offsets: Mapping[str, int] | None = None) -> None:
        """Follow the output of ``replica`` from its start: what an earlier process wrote to the same file is skipped.

        ``offsets``: where to begin for replicas that have run before, by member.
        """
        if replica is not None and replica.member == self._first:
            return
        if self._follower is not None:
            self._last_lines += self._follower.lines()
        if replica is None:
            self._first, self._follower = "", None
        else:
            begin = (offsets or {}).get(replica.member, replica.out_from)
            self._first, self._follower = replica.member, Follower(replica.out, begin)

    def more(self, placement: Placement, now: float) -> list[Measurement]:
        """Returns the measurements since the last call."""
        lines, self._last_lines = self._last_lines, []
        if self._follower is not None:
            lines += self._follower.lines()
        return self.readings.read(lines, placement, now) if lines else []
