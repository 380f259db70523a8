"""The result of reading a trace (``Workload``), the contract of a reader (``TraceFormat``), and the checks that all share.

A reader takes the lines of an open text stream and puts one ``Entry`` per job into a ``Collector``, in the trace's own
clock. The collector does what is the same for all formats: checks, duplicate ids, dependencies, rebasing of calendar
times to second 0, and the choice between a rigid job and a profile.

An entry becomes a rigid job, known by its recorded duration, or a job with a profile (``SpecBuilder``). A trace of a
production cluster says how long a job ran on how many GPUs, not how it would have run on others. The mapping by GPU
time is that of the Pollux workloads (Qiao et al., OSDI '21, section 5.1). Deviation: where two profiles share a class,
a digest of the job's id decides instead of a random draw, so that a job is the same in every run and in every part of a
trace.

Nothing that a broken file can cause (bad encoding, a truncated archive, NUL bytes, huge fields) leaves the readers as
anything but a TraceError with its place.
"""

from __future__ import annotations

import csv
import hashlib
import math
import zlib
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal, Protocol, TypeVar

import msgspec

from coadapt.errors import InputError, TraceError, UnknownNameError
from coadapt.model import Fact, JobSpec, Recorded, Role

#: Lines with their line ends, as an open text stream gives them.
Lines = Iterable[str]
#: (name, profile, replicas, total batch size) -> spec; raises an InputError for an unknown profile.
SpecFor = Callable[[str, str, int, int | None], JobSpec]
#: "rigid": a job of the recorded duration and size; "profiles": the profile its GPU time suggests.
MapProfiles = Literal["rigid", "profiles"]
NO_GPUS, NEVER_STARTED, UNFINISHED = "no GPUs", "never started", "not finished"
NO_TIME = "ran for 0 seconds"
_CLASSES: tuple[tuple[float, tuple[str, ...]], ...] = (  # upper limit in GPU-hours
    (1, ("cifar10", "ncf")),
    (10, ("deepspeech2", "bert")),
    (100, ("yolov3",)),
    (math.inf, ("imagenet",)),
)
_MOST_GPUS = 1_000_000
_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
#: Beyond this, seconds lose their fractions and counts their exactness.
_LARGEST = 1e15
#: How traces write "nothing here".
_NOTHING = frozenset(("", "none", "null", "nan", "n/a", "na", "unknown"))
Split = Callable[[Lines, str], Iterator[tuple[int, list[str]]]]


class Submission(Fact, frozen=True):
    """One job arriving at second ``at``; ``job`` is unique in its workload."""

    at: float
    job: str
    spec: JobSpec


class BadRow(Fact, frozen=True):
    """A row that was skipped because it is wrong."""

    file: str
    line: int
    problem: str
    column: str | None = None


class Workload(Fact, frozen=True):
    """The jobs of a trace in order of submission."""

    jobs: tuple[Submission, ...]
    source: str
    #: Wrong rows; empty unless they were allowed (``strict=False``).
    skipped: tuple[BadRow, ...] = ()
    #: Correct rows that are no GPU job that ran to its end, counted by reason.
    left_out: dict[str, int] = msgspec.field(default_factory=dict)
    #: True if the trace says when jobs really started.
    recorded: bool = False
    #: Unix time of second 0, where the trace tells; times without a zone count as UTC.
    started_at: float | None = None
    #: The machine in cluster shorthand, where the trace tells.
    cluster_hint: str | None = None
    #: Of jobs that were mapped to profiles by their GPU time: the GPU-seconds that were recorded.
    mapped_gpu_s: dict[str, float] = msgspec.field(default_factory=dict)


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """One job as its trace states it: times in the trace's clock, sizes in GPUs."""

    line: int
    job: str
    submit_s: float
    gpus: int
    duration_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    user: str = ""
    team: str = ""
    profile: str = ""
    batch: int | None = None
    epochs: float | None = None
    priority: int = 0
    deadline_s: float | None = None
    time_limit_s: float | None = None
    after: tuple[str, ...] = ()
    preemptible: bool = True
    min_gpus: int | None = None
    max_gpus: int | None = None
    gpu_types: tuple[str, ...] = ()


class BadValue(Exception):  # noqa: N818 - never leaves this package
    """A cell, or a row if ``column`` is None, is wrong. The collector turns it into a TraceError."""

    def __init__(self, problem: str, column: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.column = problem, column


class LeftOut(Exception):  # noqa: N818 - never leaves this package
    """The row is right but is nothing to schedule; counted by reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TraceFormat(ABC):
    """One format of traces; an instance holds the options of that format."""

    name: ClassVar[str]
    #: What a user would call it, for help texts.
    title: ClassVar[str]
    #: Formats are tried in ascending order on a file's head, those of one number by name.
    order: ClassVar[int] = 1000
    #: Names in this format of those entry fields that the collector checks.
    columns: ClassVar[dict[str, str]] = {}
    #: True if second 0 is the first submission; False if seconds stay as given.
    rebased: ClassVar[bool] = False
    #: True if rebased times count from 1970 (an anonymised clock does not).
    calendar: ClassVar[bool] = False

    @staticmethod
    @abstractmethod
    def sniff(head: Sequence[str]) -> bool:
        """True if a file that begins with these lines is of this format."""

    @abstractmethod
    def read(self, lines: Lines, into: Collector) -> None:
        """Put every job into the collector. Faults of the stream itself arrive as TraceErrors."""


def profile_for(job: str, gpu_s: float) -> str:
    """Returns the profile that stands for a job of ``gpu_s`` GPU-seconds; the same job always gets the same profile."""
    names = next(names for hours, names in _CLASSES if gpu_s < hours * 3600)
    return names[hashlib.blake2b(job.encode(), digest_size=1).digest()[0] % len(names)]


class SpecBuilder:
    """Makes the job specifications of one trace.

    Args:
        profiles: Makes the specification of a job with a profile; None: such jobs are an error.
        by_gpu_time: Give a profile to the jobs that have none, by their GPU time.
        any_gpu_type: Drop the GPU types that jobs asked for.
        column: Column of the profile in the trace, for messages.
    """

    def __init__(
        self, profiles: SpecFor | None, *, by_gpu_time: bool, any_gpu_type: bool, column: str | None
    ) -> None:
        self._profiles, self._by_gpu_time, self._any_type = profiles, by_gpu_time, any_gpu_type
        self._column = column
        self._roles: dict[int, tuple[Role, ...]] = {}
        #: By job: the recorded GPU-seconds that gave it its profile.
        self.mapped_gpu_s: dict[str, float] = {}

    def spec(self, entry: Entry, origin: float) -> JobSpec:
        """The entry's spec without its dependencies; times become seconds after ``origin``."""
        recorded = None
        if entry.start_s is not None or entry.end_s is not None:
            start_s = None if entry.start_s is None else entry.start_s - origin
            recorded = Recorded(start_s=start_s, end_s=None if entry.end_s is None else entry.end_s - origin)
        if not entry.profile and self._by_gpu_time and entry.duration_s is not None:
            gpu_s = entry.gpus * entry.duration_s
            self.mapped_gpu_s[entry.job] = gpu_s
            return self._profiled(entry, profile_for(entry.job, gpu_s), recorded)
        return (
            self._profiled(entry, entry.profile, recorded) if entry.profile else self._rigid(entry, recorded)
        )

    def _rigid(self, entry: Entry, recorded: Recorded | None) -> JobSpec:
        if not {entry.min_gpus, entry.max_gpus} <= {None, entry.gpus}:
            raise BadValue(
                "min_gpus and max_gpus need a profile: without one it is unknown how the job scales",
                "min_gpus" if entry.min_gpus not in (None, entry.gpus) else "max_gpus",
            )
        return JobSpec(
            name=entry.job,
            user=entry.user,
            team=entry.team,
            roles=self._of(entry.gpus),
            gpu_types=() if self._any_type else entry.gpu_types,
            requested=entry.gpus,
            requested_batch=entry.batch,
            epochs=entry.epochs,
            duration_s=entry.duration_s,
            recorded=recorded,
            priority=entry.priority,
            deadline_s=entry.deadline_s,
            time_limit_s=entry.time_limit_s,
            preemptible=entry.preemptible,
        )

    def _of(self, gpus: int) -> tuple[Role, ...]:
        """One object per size: a trace of a million jobs has a dozen sizes."""
        roles = self._roles.get(gpus)
        if roles is None:
            roles = self._roles[gpus] = (Role(min=gpus, max=gpus),)
        return roles

    def _profiled(self, entry: Entry, profile: str, recorded: Recorded | None) -> JobSpec:
        if self._profiles is None:
            raise InputError(f"job {entry.job!r} has the profile {profile!r}, but no profiles were given")
        try:
            spec = self._profiles(entry.job, profile, entry.gpus, entry.batch)
        except UnknownNameError as error:
            known = ", ".join(error.known)
            raise BadValue(f"unknown {error.kind} {error.name!r}; known: {known}", self._column) from None
        except InputError as error:
            raise BadValue(str(error), self._column) from None
        # epochs of a job that is mapped by its GPU time are those of its own model, not of the profile
        epochs = entry.epochs if entry.profile else None
        if epochs is not None and not 1 <= epochs <= (spec.epochs or epochs):
            raise BadValue(
                f"{epochs:g} epochs are too many or too few: {profile} has 1 to {spec.epochs:g}", "epochs"
            )
        changes: dict[str, object] = {"user": entry.user, "team": entry.team, "recorded": recorded}
        changes |= {"priority": entry.priority, "preemptible": entry.preemptible}
        if entry.gpu_types and not self._any_type:
            changes["gpu_types"] = entry.gpu_types
        if epochs is not None:
            changes["epochs"] = epochs
        for name in ("deadline_s", "time_limit_s"):
            if getattr(entry, name) is not None:
                changes[name] = getattr(entry, name)
        if entry.min_gpus is not None or entry.max_gpus is not None:
            worker = spec.worker
            least, most = entry.min_gpus or worker.min, entry.max_gpus or worker.max
            changes["roles"] = (msgspec.structs.replace(worker, min=least, max=most), *spec.roles[1:])
        return msgspec.structs.replace(spec, **changes)


class _HasLine(Protocol):
    @property
    def line(self) -> int: ...


T = TypeVar("T", bound=_HasLine)


class Collector:
    """Collects the entries of one trace, and raises or records bad ones.

    Args:
        format: Format of the trace.
        specs: Makes the job specifications.
        file: Name of the file in messages.
        strict: Raise TraceError at the first bad row, instead of recording it as skipped.
    """

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
            raise BadValue(f"{entry.job[:40]!r} is not a job id", names.get("job"))
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
            raise BadValue("the job has a negative duration", names.get("duration_s"))
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
        reasons += [f"{len(self._skipped)} with errors"] if self._skipped else []
        return f" (excluded: {', '.join(reasons)})" if reasons else ""

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
            yield job, f"job {job!r} waits for {min(names)!r}, which depends on it in turn"


def guarded(lines: Lines, file: str) -> Iterator[str]:
    """The same lines; whatever breaks while reading becomes a TraceError."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if "\0" in line:
                raise TraceError("contains a NUL byte; this is not a text file", file=file, line=number)
            yield line
    except UnicodeDecodeError as error:
        # a stream decodes a block at a time: the bad byte may be lines behind the last one that we saw
        at = number + 1 + error.object[: error.start].count(b"\n")
        raise TraceError(f"is not UTF-8 text ({error.reason})", file=file, line=at) from None
    except EOFError:
        raise TraceError("the compressed file is truncated; copy it again", file=file) from None
    except (OSError, zlib.error) as error:
        raise TraceError(f"cannot be read: {error}", file=file) from None


class Row:
    """One row; the accessors name the column of whatever they refuse."""

    __slots__ = ("_cells", "_index", "line")

    def __init__(self, line: int, cells: Sequence[str], index: dict[str, int]) -> None:
        self.line, self._cells, self._index = line, cells, index

    def has(self, column: str) -> bool:
        """True if the column exists and this row says something there."""
        return self.text(column).strip().lower() not in _NOTHING

    def text(self, column: str) -> str:
        """The cell as it stands; "" for a column the file does not have."""
        place = self._index.get(column)
        return "" if place is None else self._cells[place]

    def number(self, column: str, *, least: float = 0.0) -> float:
        """A finite number, not below ``least``."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or "_" in text:
            raise BadValue(f"{_shown(text)} is not a number", column)
        if abs(value) > _LARGEST:
            raise BadValue(f"{_shown(text)} is too large", column)
        if value < least:
            raise BadValue(f"{_shown(text)} is less than {least:g}", column)
        return value

    def whole(self, column: str, *, least: float = 0) -> int:
        """A whole number, not below ``least``; "4.0" will do."""
        value = self.number(column, least=least)
        if not value.is_integer():
            raise BadValue(f"{_shown(self.text(column))} is not a whole number", column)
        return int(value)

    def number_or_none(self, column: str, *, least: float = 0.0) -> float | None:
        """As ``number``, None where the row says nothing."""
        return self.number(column, least=least) if self.has(column) else None

    def whole_or_none(self, column: str, *, least: float = 0) -> int | None:
        """As ``whole``, None where the row says nothing."""
        return self.whole(column, least=least) if self.has(column) else None

    def moment(self, column: str) -> float:
        """A calendar time as Unix seconds."""
        return parse_moment(self.text(column), column)

    def moment_or_none(self, column: str) -> float | None:
        """As ``moment``, None where the row says nothing."""
        return self.moment(column) if self.has(column) else None


def parse_moment(text: str, column: str) -> float:
    """Unix seconds of an ISO date and time, or of a number of seconds; no zone means UTC."""
    text = text.strip()
    if text[:1].isdigit() and "-" not in text:  # 1769860800, not the date 17-69-86
        return Row(0, (text,), {column: 0}).number(column)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        return (moment - _EPOCH) / _SECOND
    except (ValueError, OverflowError):
        raise BadValue(f"{_shown(text)} is not a time such as 2026-01-31T12:00:00", column) from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def commas(lines: Lines, file: str) -> Iterator[tuple[int, list[str]]]:
    """Cells of comma-separated lines, with the line each record begins on."""
    reader = csv.reader(lines)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(f"is not CSV: {error}", file=file, line=line) from None
        if any(cells):
            yield line, cells


def bars(lines: Lines, file: str) -> Iterator[tuple[int, list[str]]]:
    """Cells separated by '|' without any quoting, as ``sacct -P`` (and ``-p``) writes them."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line.rstrip("\r\n").split("|")


def table(
    lines: Lines,
    into: Collector,
    *,
    required: Sequence[str],
    split: Split = commas,
    fixed: Sequence[str] | None = None,
    check: Callable[[list[str]], None] | None = None,
) -> Iterator[Row]:
    """Yields the rows of a table.

    Args:
        lines: Lines of the file, the header first.
        into: Collector that receives rows with a wrong number of columns.
        required: Columns that must be in the header.
        split: Splits lines into cells.
        fixed: Columns of a file that may have no header line.
        check: Called with the header; raises BadValue if it is not valid.
    """
    records = split(lines, into.file)
    first = next(records, None)
    if first is None:
        return
    header = [cell.strip() for cell in first[1]]
    headless = fixed is not None and header[0] != fixed[0]
    if headless and fixed is not None:
        header = list(fixed)
    try:
        _check_header(header, required)
        if check is not None:
            check(header)
    except BadValue as bad:  # the header is never a row to skip
        raise TraceError(bad.problem, file=into.file, line=first[0], column=bad.column) from None
    index = {column: place for place, column in enumerate(header)}
    if headless:
        yield from _sized([first], header, index, into)
    yield from _sized(records, header, index, into)


def _check_header(header: list[str], required: Sequence[str]) -> None:
    missing = [column for column in required if column not in header]
    if missing:
        found = ", ".join(_shown(column) for column in header[:30])
        raise BadValue(
            f"missing {'column' if len(missing) == 1 else 'columns'} {', '.join(missing)}; found {found}"
        )
    for column in header:
        if column and header.count(column) > 1:
            raise BadValue("appears twice in the header", column)


def _sized(
    records: Iterator[tuple[int, list[str]]] | list[tuple[int, list[str]]],
    header: list[str],
    index: dict[str, int],
    into: Collector,
) -> Iterator[Row]:
    width = len(header)
    for line, cells in records:
        if len(cells) == width:
            yield Row(line, cells, index)
        else:
            into.bad(line, f"has {len(cells)} columns, the header has {width}")


def header_has(head: Sequence[str], columns: Sequence[str], least: int, delimiter: str = ",") -> bool:
    """Returns True if the header names enough of the columns.

    Args:
        head: First lines of the file, the header first.
        columns: Columns to look for.
        least: How many of them must be there.
        delimiter: Separator of the header's cells.
    """
    if not head:
        return False
    names = {cell.strip().strip('"') for cell in head[0].split(delimiter)}
    return sum(column in names for column in columns) >= least
