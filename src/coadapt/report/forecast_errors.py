"""Errors of predictions against what happened: by method, and by age of the run.

A prediction says how many seconds are left until an end, with an 80% interval. Once the end is known

    error = |said - true| / true     bias = (said - true) / true     within: low <= true <= high

and a group of predictions is summarised by the medians of the first two and the share of the third. Nothing is dropped:
a run that has not ended yet is *pending*; one that failed or was cancelled says nothing about the time it would have
taken, and is counted as *stopped*, also if the job is retried later. Time in which the whole cluster was shut down is not
counted: no prediction is about that. Where no time was left (true = 0), an error is infinite unless 0 was predicted.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec.structs import asdict

from coadapt.model import (
    ClusterRestored,
    ControllerStarted,
    DecisionMade,
    Fact,
    Forecast,
    JobStopped,
    Record,
    RetryRequested,
)
from coadapt.report.cluster_history import History

#: Ages of a run, by the share of its work that was done when the prediction was made.
AGES = ("0-10%", "10-25%", "25-50%", "50-75%", "75-90%", "90-100%", "unknown")
_EDGES = (0.10, 0.25, 0.50, 0.75, 0.90)
#: In a row that sums up others.
ALL = "all"
STATED = 0.8
#: From so many on, an interval that is as stated holds the truth this often; of fewer, within two standard errors.
_MANY, _LEAST, _MOST = 250, 0.75, 0.85
#: Of fewer than these nothing can be said.
_FEW = 20
#: A bias that is worth a word.
_LEANS = 0.1


class Said(Fact, frozen=True):
    """A prediction and its outcome."""

    left_s: float
    low_s: float
    #: None: it may never end.
    high_s: float | None
    method: str
    #: Share of the work that was done; None where that is not known.
    done: float | None
    #: Seconds it really took from then on; None: not known yet, or never.
    actual_s: float | None = None
    #: It ended before it was done: failed, or cancelled.
    stopped: bool = False

    @property
    def within(self) -> bool:
        """True if the actual time, once known, lies in the interval."""
        high_s = math.inf if self.high_s is None else self.high_s
        return self.actual_s is not None and self.low_s <= self.actual_s <= high_s

    @property
    def bias(self) -> float:
        """(said - true) / true."""
        assert self.actual_s is not None
        over_s = self.left_s - self.actual_s
        return over_s / self.actual_s if self.actual_s > 0 else math.inf if over_s else 0.0


class Shown(Protocol):
    """A prediction as a tool has shown and kept it (``store.Prediction``)."""

    @property
    def tool(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def value_s(self) -> float: ...
    @property
    def low_s(self) -> float: ...
    @property
    def high_s(self) -> float | None: ...
    @property
    def done(self) -> float | None: ...
    @property
    def actual_s(self) -> float | None: ...


def said_by_tool(shown: Shown) -> Said:
    """A tool's prediction, to be judged; the method is named with its tool."""
    return Said(
        left_s=shown.value_s,
        low_s=shown.low_s,
        high_s=shown.high_s,
        method=f"{shown.tool}: {shown.method}" if shown.method else shown.tool,
        done=shown.done,
        actual_s=shown.actual_s,
    )


class CalibrationRow(Fact, frozen=True):
    """Predictions of one method at one age, or of all; numbers are None where none of them was judged."""

    method: str
    age: str
    judged: int
    pending: int
    stopped: int
    median_error: float | None
    #: Median; above 0: it takes less time than said.
    bias: float | None
    #: Share of truths within the 80% interval.
    within: float | None


class Calibration(Fact, frozen=True):
    """The errors of every group of predictions, and of all together."""

    rows: tuple[CalibrationRow, ...]
    total: CalibrationRow

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys: ``coadapt calibration --json``."""
        total = {name: value for name, value in asdict(self.total).items() if name not in ("method", "age")}
        return {**total, "verdict": self.verdict, "rows": [asdict(row) for row in self.rows]}

    @property
    def verdict(self) -> str:
        """States in one sentence whether the intervals hold as often as they claim."""
        judged, within = self.total.judged, self.total.within
        if within is None:
            return "no prediction has been evaluated yet"
        if judged < _FEW:
            return f"{judged} evaluated so far: too few to assess the {STATED:.0%} intervals"
        held = f"{within:.0%} of {judged:,} actual times are within the {STATED:.0%} interval"
        room = 2 * math.sqrt(STATED * (1 - STATED) / judged)
        least, most = (_LEAST, _MOST) if judged >= _MANY else (STATED - room, STATED + room)
        if least <= within <= most:
            return f"{held}: well calibrated"
        wrong = "narrow" if within < least else "wide"
        return f"{held}: too {wrong}{_leaning(self.total.bias or 0.0)}"


def _leaning(bias: float) -> str:
    """What else is wrong with intervals that do not hold what they state."""
    if abs(bias) < _LEANS:
        return ""
    return f"; half of the predictions are {abs(bias):.0%} too {'long' if bias > 0 else 'short'} or more"


def forecasts(records: Iterable[Record]) -> list[Said]:
    """Every forecast in a log, in its order, with what became of its job by the end of the log."""
    history, off = History(detail=False), _Shutdowns()
    made: list[tuple[float, str, Forecast]] = []
    #: Number of forecasts that had been made when a job was last retried: earlier ones are of the life that failed.
    retried: dict[str, int] = {}
    for record in records:
        history.add(record)
        off.add(record)
        if isinstance(record.event, DecisionMade):
            made += [(record.at, job, forecast) for job, forecast in record.event.forecasts.items()]
        elif isinstance(record.event, RetryRequested):
            retried[record.event.job] = len(made)
    return [
        _judged(history, off, *each, failed=number < retried.get(each[1], 0))
        for number, each in enumerate(made)
    ]


class _Shutdowns:
    """When the cluster was shut down: from the stop of its jobs to the start of a controller, or from a backup to its restore."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []
        self._began: float | None = None
        self._started, self._before = -math.inf, 0.0

    def add(self, record: Record) -> None:
        """Takes the next record of the log."""
        event = record.event
        if isinstance(event, JobStopped) and event.cause == "shutdown":
            stopped = record.at if event.ended_at is None else event.ended_at
            if stopped < self._started:
                # heard of when the cluster was there again
                self._times.append((stopped, self._started))
            elif self._began is None:
                self._began = stopped
        elif isinstance(event, ControllerStarted):
            if self._began is not None:
                self._times.append((self._began, record.at))
            self._began, self._started = None, record.at
        elif isinstance(event, ClusterRestored):
            self._times.append((min(event.made_at, self._before), record.at))
        self._before = record.at

    def between(self, begin: float, end: float) -> float:
        """Returns the seconds within these times."""
        total, last = 0.0, begin
        for first, until in sorted(self._times):
            low, high = max(first, last), min(until, end)
            if high > low:
                total, last = total + high - low, high
        return total


def _judged(
    history: History, off: _Shutdowns, at: float, job: str, forecast: Forecast, *, failed: bool
) -> Said:
    life = history.jobs.get(job)
    ended_at = at if failed else None if life is None else life.ended_at
    succeeded = life is not None and life.outcome == "succeeded" and not failed
    return Said(
        left_s=forecast.left_s,
        low_s=forecast.low_s,
        high_s=forecast.high_s,
        method=forecast.method,
        done=forecast.done,
        actual_s=ended_at - at - off.between(at, ended_at) if ended_at is not None and succeeded else None,
        stopped=ended_at is not None and not succeeded,
    )


def age_of(done: float | None) -> str:
    """Returns the age group of a run of which this share is done."""
    if done is None or math.isnan(done):
        return AGES[-1]
    return AGES[bisect_right(_EDGES, done)]


def calibrate(predictions: Iterable[Said]) -> Calibration:
    """Sums up: a row for each method and age, and one for each method that has several ages."""
    everything = list(predictions)
    by_method: dict[str, dict[str, list[Said]]] = {}
    for said in everything:
        by_method.setdefault(said.method, {}).setdefault(age_of(said.done), []).append(said)
    rows = []
    for method in sorted(by_method):
        ages = by_method[method]
        rows += [_row(method, age, ages[age]) for age in AGES if age in ages]
        if len(ages) > 1:
            rows.append(_row(method, ALL, [said for group in ages.values() for said in group]))
    return Calibration(rows=tuple(rows), total=_row(ALL, ALL, everything))


def _row(method: str, age: str, group: Sequence[Said]) -> CalibrationRow:
    known = [said for said in group if said.actual_s is not None]
    bias = np.array([said.bias for said in known])
    stopped = sum(said.stopped for said in group)
    return CalibrationRow(
        method=method,
        age=age,
        judged=len(known),
        pending=len(group) - len(known) - stopped,
        stopped=stopped,
        median_error=float(np.median(np.abs(bias))) if known else None,
        bias=float(np.median(bias)) if known else None,
        within=sum(said.within for said in known) / len(known) if known else None,
    )
