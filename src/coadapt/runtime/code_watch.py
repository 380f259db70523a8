"""Finds jobs that wait and whose frozen code is not in this home, and those whose code came back.

Code is missing where a backup without it was restored, or where somebody removed it. Such a job would fail at its start;
it waits instead. The events come through the feed as any other.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from coadapt.model import CodeFound, CodeMissing
from coadapt.model.snapshot import HOLDING
from coadapt.scheduler.state.state import SchedulerState

#: Seconds between two looks.
_EVERY_S = 2.0


class CodeWatch:
    """``stored`` contains the hashes of the code that is there."""

    def __init__(self, stored: Container[str]) -> None:
        self._stored = stored
        self._looked: float | None = None
        #: Jobs that were told to be without code, and are not ended as far as we know.
        self._missing: set[str] | None = None

    def look(self, state: SchedulerState, now: float) -> Iterator[CodeMissing | CodeFound]:
        """Yields what changed since the last look."""
        if self._looked is not None and now - self._looked < _EVERY_S:
            return
        self._looked = now
        if self._missing is None:
            self._missing = {job.id for job in state.jobs.values() if job.missing_code}
        there: dict[str, bool] = {}

        def is_there(code: str) -> bool:
            if code not in there:
                there[code] = code in self._stored
            return there[code]

        for name in sorted(self._missing):
            job = state.jobs[name]
            if not job.missing_code or is_there(job.spec.code):
                self._missing.discard(name)
                if job.missing_code:
                    yield CodeFound(job=name)
        for job in list(state.active.values()):
            if job.spec.code and job.phase not in HOLDING and not is_there(job.spec.code):
                self._missing.add(job.id)
                yield CodeMissing(job=job.id)
