"""From entries to a workload: checks, duplicates, dependencies, second 0."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Protocol, TypeVar

import msgspec

from coadapt.errors import InputError, TraceError
from coadapt.model import JobSpec
from coadapt.simulate.traces._base import (
    NO_TIME,
    BadRow,
    BadValue,
    Entry,
    LeftOut,
    Submission,
    TraceFormat,
    Workload,
)
from coadapt.simulate.traces._specs import SpecBuilder

_MOST_GPUS = 1_000_000


class _HasLine(Protocol):
    @property
    def line(self) -> int: ...


T = TypeVar("T", bound=_HasLine)


class Collector:
    """Takes the entries of one trace; decides what becomes of bad ones."""

    def __init__(self, format: TraceFormat, specs: SpecBuilder, *, file: str, strict: bool = True) -> None:
        self.file, self.strict = file, strict
        #: Set by a reader that finds them in the file.
        self.started_at: float | None = None
        self.cluster_hint: str | None = None
        #: True where a trace may name jobs outside itself: those are dropped from ``after``.
        self.loose_after = False
        self._format, self._specs = format, specs
        self._entries: dict[str, Entry] = {}
        self._skipped: list[BadRow] = []
        self._left_out: Counter[str] = Counter()
        self._left_jobs: set[str] = set()

    def beside(self, file: str) -> Collector:
        """The same collection for the rows of another file of the same trace."""
        other = copy(self)
        other.file = file
        return other

    def take(self, items: Iterable[T], entry_of: Callable[[T], Entry | None]) -> None:
        """Add the entry of every item; a BadValue is a bad row, a LeftOut is counted."""
        for item in items:
            try:
                entry = entry_of(item)
                if entry is not None:
                    self._add(entry)
            except BadValue as bad:
                self.bad(item.line, bad.problem, bad.column)
            except LeftOut as left:
                self._left_out[left.reason] += 1

    def bad(self, line: int, problem: str, column: str | None = None) -> None:
        """Raise, or note, that a row is wrong."""
        if self.strict:
            raise TraceError(problem, file=self.file, line=line, column=column)
        self._skipped.append(BadRow(file=self.file, line=line, column=column, problem=problem))

    def _add(self, entry: Entry) -> None:
        names = self._format.columns
        if not entry.job.strip() or not entry.job.isprintable():
            raise BadValue(f"{entry.job[:40]!r} is no job id", names.get("job"))
        if entry.job in self._entries:
            first = self._entries[entry.job].line
            raise BadValue(f"job {entry.job!r} is already on line {first}", names.get("job"))
        if not 0 < entry.gpus <= _MOST_GPUS:
            raise BadValue(f"{entry.gpus} is not between 1 and {_MOST_GPUS:,} GPUs", names.get("gpus"))
        began = entry.submit_s if entry.start_s is None else entry.start_s
        if began < entry.submit_s:
            raise BadValue("the job starts before it is submitted", names.get("start_s"))
        if entry.end_s is not None and entry.end_s < began:
            raise BadValue("the job ends before it starts", names.get("end_s"))
        if entry.duration_s is not None and entry.duration_s < 0:
            raise BadValue("the job runs for less than no time", names.get("duration_s"))
        if entry.duration_s == 0 and not entry.profile:
            self._left_jobs.add(entry.job)
            raise LeftOut(NO_TIME)
        self._entries[entry.job] = entry

    def workload(self) -> Workload:
        """Everything taken so far, in order of submission."""
        rebased = self._format.rebased and self._entries
        origin = min(entry.submit_s for entry in self._entries.values()) if rebased else 0.0
        specs: dict[str, JobSpec] = {}
        for job, entry in self._entries.items():
            try:
                specs[job] = self._specs.spec(entry, origin)
            except BadValue as bad:
                self.bad(entry.line, bad.problem, bad.column)
        self._tie(specs)
        jobs = [
            Submission(at=self._entries[job].submit_s - origin, job=job, spec=spec)
            for job, spec in specs.items()
        ]
        jobs.sort(key=lambda submission: submission.at)  # stable: jobs of one second stay in file order
        if not jobs:
            raise InputError(f"{self.file} has no jobs{self._explained()}")
        return Workload(
            jobs=tuple(jobs),
            source=self.file,
            skipped=tuple(self._skipped),
            left_out=dict(sorted(self._left_out.items())),
            recorded=any(entry.start_s is not None for entry in self._entries.values()),
            started_at=origin if self._format.calendar else self.started_at,
            cluster_hint=self.cluster_hint,
            mapped_gpu_s={job: gpu_s for job, gpu_s in self._specs.mapped_gpu_s.items() if job in specs},
        )

    def _explained(self) -> str:
        reasons = [f"{count} {reason}" for reason, count in sorted(self._left_out.items())]
        reasons += [f"{len(self._skipped)} with mistakes"] if self._skipped else []
        return f" (left out: {', '.join(reasons)})" if reasons else ""

    def _tie(self, specs: dict[str, JobSpec]) -> None:
        """Put the dependencies into the specs; jobs that would wait for ever are bad rows."""
        after: dict[str, tuple[str, ...]] = {}
        for job in specs:
            names = self._entries[job].after
            if not names:
                continue
            gone = {name for name in names if name not in specs} if self.loose_after else self._left_jobs
            if kept := tuple(name for name in dict.fromkeys(names) if name not in gone):
                after[job] = kept
        for job, problem in _stuck(after, specs) if after else ():
            self.bad(self._entries[job].line, problem, self._format.columns.get("after"))
            del specs[job], after[job]
        for job, kept in after.items():
            specs[job] = msgspec.structs.replace(specs[job], after=kept)


def _stuck(after: Mapping[str, tuple[str, ...]], known: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The jobs that never become ready, each with what it waits for in vain."""
    waiting = {job: set(names) for job, names in after.items()}
    dependants: dict[str, list[str]] = {}
    for job, names in waiting.items():
        for name in names:
            dependants.setdefault(name, []).append(job)
    ready = deque(job for job in known if job not in waiting)
    while ready:
        name = ready.popleft()
        for job in dependants.get(name, ()):
            waiting[job].discard(name)
            if not waiting[job]:
                ready.append(job)
    missing = {job: sorted(names - known.keys()) for job, names in waiting.items()}
    for job, names in waiting.items():
        if missing[job]:
            yield job, f"job {job!r} waits for {missing[job][0]!r}, which is not in the trace"
        elif names:
            yield job, f"job {job!r} waits for {min(names)!r}, which can never end before it"
