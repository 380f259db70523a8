"""The Gittins index for a policy: from a given sample of services, or from the jobs that ended so far.

A snapshot does not show jobs that have ended. So whenever a job starts, its service until then, the time and
its GPUs are written down; when it is gone, what it has received follows from these. The newest ``KEPT`` are
remembered, one key each, so that a decision logs only what is new. A job that was cancelled or has failed
counts like one that finished: a snapshot does not tell, and the index asks how long jobs last, not why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coadapt.model.snapshot import Snapshot
from coadapt.policies._requested import gpus_needed
from coadapt.predict import GittinsIndex

KEPT = 1000
_PAST, _RUN, _COUNT = "past/", "run/", "ended"


class Services:
    """Reads and writes what is known of past services in a policy's memory."""

    def __init__(self, kept: Mapping[str, Any], given: tuple[float, ...]) -> None:
        self._kept, self._given = kept, given
        self.patch: dict[str, Any] = {}

    def note_ended(self, snapshot: Snapshot) -> None:
        """Adds the jobs that are gone since the last decision."""
        if self._given:
            return
        count: int = self._kept.get(_COUNT, 0)
        for key, (service, at, gpus) in self._runs():
            if key[len(_RUN) :] in snapshot.placed:
                continue
            self.patch[key] = None
            total = service + gpus * (snapshot.now - at)
            if key[len(_RUN) :] not in snapshot.active and total > 0:
                self.patch[f"{_PAST}{count % KEPT}"] = total
                count += 1
        if count != self._kept.get(_COUNT, 0):
            self.patch[_COUNT] = count

    def _runs(self) -> list[tuple[str, Any]]:
        return [(key, value) for key, value in self._kept.items() if key.startswith(_RUN)]

    def note_started(self, names: Iterable[str], snapshot: Snapshot) -> None:
        """Remembers where these jobs stand as they start."""
        if self._given:
            return
        for name in names:
            job = snapshot.active[name]
            service = job.attained_gpu_s(snapshot.now)
            self.patch[_RUN + name] = [service, snapshot.now, gpus_needed(job.spec)]

    def index(self, quantum_gpu_s: float) -> GittinsIndex | None:
        """The index; None before any job has ended."""
        sample = self._given or tuple(
            value for key, value in {**self._kept, **self.patch}.items() if key.startswith(_PAST)
        )
        return GittinsIndex(sample, quantum_gpu_s) if sample else None
