"""Jobs that run and get nowhere: no report for far longer than is usual for them.

Usual is what the attempt itself has shown: its step time, and how far apart its reports were. So nothing is said of an attempt
that has not reported yet (it may be preparing its data), nor of a job that never reports. What is found is the fact ``JobHung``,
which comes through the feed as any other; what becomes of it is the scheduler's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coadapt.model import JobHung, JobResized, JobStarted, Measured, Record
from coadapt.model.snapshot import HOLDING, Phase
from coadapt.scheduler import SchedulerState

#: Seconds between two looks; and if it was longer than this, we were stopped, and the jobs perhaps with us.
_EVERY_S, _STOPPED_S = 5.0, 30.0
#: Reports may be so many times farther apart than they ever were.
_GAPS = 5.0
#: How far apart reports of an adopted attempt are taken to be: what it did before is not known.
_ADOPTED_GAP_S = 120.0


@dataclass(slots=True)
class _Pulse:
    """One attempt: when it last gave a sign of life, and what is usual for it."""

    attempt: int
    since: float
    reports: int = 0
    gap_s: float = 0.0
    step_s: float = 0.0

    def beat(self, at: float, step_s: float) -> None:
        # the first report comes after a start-up, which says nothing of what follows
        seen = at - self.since
        self.gap_s = seen if self.reports <= 1 else max(self.gap_s, seen)
        self.reports, self.since = self.reports + 1, at
        self.step_s = step_s or self.step_s


class Watchdog:
    """Hears every record, looks now and then. ``factor`` times the usual step, and at least ``least_s``, are a hang."""

    def __init__(self, *, factor: float = 20.0, least_s: float = 120.0) -> None:
        self._factor, self._least_s = factor, least_s
        self._pulses: dict[str, _Pulse] = {}
        self._looked: float | None = None

    def adopt(self, state: SchedulerState, now: float) -> None:
        """What runs when a controller takes over, as if it had reported just now: nobody listened meanwhile."""
        for job in state.jobs.values():
            reported = job.measured_at is not None and job.measured_at > job.in_flight_since
            if job.phase is Phase.RUNNING and reported:
                step_s = max((row.step_s for row in job.table.rows), default=0.0)
                self._pulses[job.id] = _Pulse(job.attempt, now, 2, _ADOPTED_GAP_S, step_s)

    def hear(self, record: Record) -> None:
        """Takes note of what was written down."""
        event = record.event
        if isinstance(event, JobStarted | JobResized):
            self._pulses[event.job] = _Pulse(event.attempt, record.at)
        elif isinstance(event, Measured):
            pulse = self._pulses.get(event.job)
            if pulse is not None and pulse.attempt == event.attempt:
                pulse.beat(record.at, event.measurement.step_s)

    def look(self, state: SchedulerState, now: float) -> Iterator[JobHung]:
        """Attempts that hang, each once."""
        if self._looked is not None and now - self._looked < _EVERY_S:
            return
        away_s = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        for name, pulse in list(self._pulses.items()):
            job = state.jobs.get(name)
            if job is None or job.phase not in HOLDING or job.attempt != pulse.attempt:
                del self._pulses[name]
                continue
            if away_s > _STOPPED_S:
                pulse.since = min(pulse.since + away_s, now)
            silent_s = now - pulse.since
            if job.phase is Phase.RUNNING and pulse.reports and silent_s > self._limit_s(pulse):
                del self._pulses[name]
                yield JobHung(job=name, attempt=pulse.attempt, silent_s=silent_s, expected_s=pulse.step_s)

    def _limit_s(self, pulse: _Pulse) -> float:
        return max(self._least_s, self._factor * pulse.step_s, _GAPS * pulse.gap_s)
