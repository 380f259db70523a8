"""Makes a stretch of the log shorter: reports are merged, everything else stays.

A report changes fields of its own job and nothing else. So all reports of a job between two moments can be replaced by one
record, ``ReportsMerged``, which sets these fields to what the reports made of them. It is written

- at every multiple of ``MARK_S``, for all jobs: the state at these *marks* is that of the original log, bit by bit;
- before every record about a job that reads or drops its reports (the end of an attempt, a retry, a quarantine);
- without the predictors' tables every ``SAMPLE_S``, so that progress and metrics between two marks are never older.

Records keep their sequence numbers and times; there are gaps where reports were. Decisions and actions all stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coadapt.model import (
    AnyEvent,
    CancelRequested,
    ClusterRestored,
    DecisionMade,
    JobFinished,
    JobQuarantined,
    JobStopped,
    Measured,
    Record,
    ReportsMerged,
    RetryRequested,
)
from coadapt.scheduler.state.report_merge import TABLES, Values, changed, plain, values_of
from coadapt.scheduler.state.state import SchedulerState

#: Records about one job that read its reports, drop them, or begin another attempt.
_READERS = (JobStopped, JobFinished, JobQuarantined, CancelRequested, RetryRequested)
#: Seconds between two moments at which the state is kept exactly, and between two values of progress and metrics.
MARK_S, SAMPLE_S = 3600.0, 600.0


@dataclass(slots=True)
class _Reports:
    """Reports of one attempt that are being merged."""

    changed: set[str]
    #: The last of them, and the fields after it.
    last: Record
    values: Values
    count: int
    sampled_at: float


@dataclass(frozen=True, slots=True)
class Compacted:
    """The shorter log, and the sequence numbers at which its state is exactly that of the original."""

    records: list[Record]
    marks: list[int]


class _Compactor:
    def __init__(self, state: SchedulerState, mark_s: float, sample_s: float) -> None:
        self._state, self._mark_s, self._sample_s = state, mark_s, sample_s
        self._open: dict[str, _Reports] = {}
        self._kept: dict[int, Record] = {}
        self._marks: list[int] = []
        self._last: Record | None = None

    def take(self, record: Record) -> None:
        last = self._last
        if last is not None and record.at // self._mark_s != last.at // self._mark_s:
            self._mark()
        self._last = record
        event = record.event
        if isinstance(event, Measured):
            self._report(record, event)
            return
        for job in _about(event, self._open):
            self._close(job)
        self._state.apply(record)
        self._kept[record.seq] = record

    def finish(self) -> Compacted:
        if self._last is not None:
            self._mark()
        return Compacted([self._kept[seq] for seq in sorted(self._kept)], self._marks)

    def _report(self, record: Record, event: Measured) -> None:
        job = self._state.current(event.job, event.attempt)
        before = None if job is None else values_of(job)
        was = None if job is None else job.quarantine
        self._state.apply(record)
        if job is None or before is None:
            return  # of an attempt that is gone: it changed nothing
        if job.quarantine != was:
            # it changed more than its own fields
            self._close(event.job)
            self._kept[record.seq] = record
            return
        reports = self._open.get(event.job)
        if reports is None:
            reports = self._open[event.job] = _Reports(set(), record, before, 0, record.at)
        reports.last, reports.values, reports.count = record, values_of(job), reports.count + 1
        reports.changed |= changed(before, reports.values)
        if record.at - reports.sampled_at >= self._sample_s:
            self._keep(event.job, reports, tables=False)
            reports.sampled_at = record.at

    def _mark(self) -> None:
        """Makes the state exact as of the last record."""
        for job in list(self._open):
            self._close(job)
        assert self._last is not None
        # a report that changed nothing still says what time it is
        self._kept.setdefault(self._last.seq, self._last)
        self._marks.append(self._last.seq)

    def _close(self, job: str) -> None:
        reports = self._open.pop(job, None)
        if reports is not None:
            self._keep(job, reports, tables=True)

    def _keep(self, name: str, reports: _Reports, *, tables: bool) -> None:
        event = reports.last.event
        assert isinstance(event, Measured)
        merged = ReportsMerged(
            job=name,
            attempt=event.attempt,
            count=reports.count,
            measurement=event.measurement,
            changes=plain(reports.values, reports.changed if tables else reports.changed - TABLES),
        )
        last = reports.last
        self._kept[last.seq] = Record(seq=last.seq, at=last.at, event=merged)


def _about(event: AnyEvent, known: Iterable[str]) -> Iterable[str]:
    """Jobs whose reports an event may read or drop."""
    if isinstance(event, DecisionMade):
        return list(event.quarantined)
    if isinstance(event, ClusterRestored):
        return list(known)
    return (event.job,) if isinstance(event, _READERS) else ()


def compact(
    state: SchedulerState, records: Iterable[Record], *, mark_s: float = MARK_S, sample_s: float = SAMPLE_S
) -> Compacted:
    """Returns the records with merged reports.

    Args:
        state: The state before the first of them; it is changed to the state after the last.
        records: Consecutive records of a log.
        mark_s: Seconds between two marks.
        sample_s: Seconds between two records of progress and metrics.
    """
    compactor = _Compactor(state, mark_s, sample_s)
    for record in records:
        compactor.take(record)
    return compactor.finish()
