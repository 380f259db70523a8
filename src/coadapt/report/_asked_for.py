"""What users ask for, in a history: jobs arrive, wait for others, are cancelled, tried again and changed; and their ends."""

from __future__ import annotations

from coadapt.model import (
    NOWHERE,
    CancelRequested,
    JobSubmitted,
    RetryRequested,
    SpecChanged,
)
from coadapt.model.events import Outcome
from coadapt.model.snapshot import HOLDING, Phase
from coadapt.model.tries import Tries
from coadapt.report._held_over_time import HeldOverTime
from coadapt.report.lives import JobHistory

_ENDED_AS: dict[Outcome, Phase] = {
    "succeeded": Phase.SUCCEEDED,
    "failed": Phase.FAILED,
    "cancelled": Phase.CANCELLED,
}


class AskedFor(HeldOverTime):
    """Which jobs may run: ``active`` and ``queued`` over time."""

    def _submitted(self, event: JobSubmitted) -> None:
        if event.job in self.jobs:
            return
        if self.first_submitted_at is None:
            self.first_submitted_at = self.now
            self.available.advance(self.now)
            self._available_before = self.available.total
        job = JobHistory(event.job, event.spec, self.now, since=self.now)
        self.jobs[event.job] = job
        unmet = self._unmet(job)
        if self._doomed(unmet):
            self._end(job, "cancelled")
        else:
            self._await(job, unmet)

    def _unmet(self, job: JobHistory) -> set[str]:
        return {name for name in job.spec.after if not self._has(name, Phase.SUCCEEDED)}

    def _doomed(self, unmet: set[str]) -> bool:
        return any(name in self.jobs and self.jobs[name].ended_at is not None for name in unmet)

    def _await(self, job: JobHistory, unmet: set[str]) -> None:
        if unmet:
            self._blocked[job.id] = unmet
            for name in unmet:
                self._dependents.setdefault(name, []).append(job.id)
        else:
            self._ready(job)

    def _has(self, name: str, phase: Phase) -> bool:
        return name in self.jobs and self.jobs[name].phase is phase

    def _ready(self, job: JobHistory) -> None:
        job.ready_at = self.now
        self.active.set(self.now, self.active.value + 1)
        self.queued.set(self.now, self.queued.value + 1)

    def _cancelled(self, event: CancelRequested) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.ended_at is not None:
            return
        job.cancelling = True
        if job.phase not in HOLDING:
            self._end(job, "cancelled")

    def _retried(self, event: RetryRequested) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.outcome not in ("failed", "cancelled"):
            return
        unmet = self._unmet(job)
        if not self._doomed(unmet):
            self._revive(job, unmet)

    def _revive(self, job: JobHistory, unmet: set[str]) -> None:
        """A job that had ended has not; the time between counts for nothing."""
        job.phase = Phase.PAUSED if job.attempt else Phase.PENDING
        job.ended_at, job.outcome, job.ready_at = None, None, None
        job.cancelling, job.tries, job.since = False, Tries(), self.now
        self._await(job, unmet)

    def _spec_changed(self, event: SpecChanged) -> None:
        job = self.jobs.get(event.job)
        if job is not None and job.ended_at is None and job.spec.roles == event.spec.roles:
            job.spec = event.spec

    def _end(self, job: JobHistory, outcome: Outcome) -> None:
        self._hold(job, NOWHERE, _ENDED_AS[outcome])
        job.ended_at, job.outcome = self.now, outcome
        if job.ready_at is not None:
            self.active.set(self.now, self.active.value - 1)
            self.queued.set(self.now, self.queued.value - 1)
        self._blocked.pop(job.id, None)
        self._note_span()
        for name in self._dependents.pop(job.id, ()):
            unmet = self._blocked.get(name)
            if unmet is None:
                continue
            unmet.discard(job.id)
            if outcome != "succeeded":
                self._end(self.jobs[name], "cancelled")
            elif not unmet:
                del self._blocked[name]
                self._ready(self.jobs[name])
