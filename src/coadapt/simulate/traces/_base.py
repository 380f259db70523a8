"""What a trace becomes (`Workload`), and what a format has to provide (`TraceFormat`).

A reader takes the lines of an open text stream and puts one `Entry` per job into a `Collector`, in
the trace's own clock. The collector does what is the same for all formats: checks, duplicate ids,
rebasing of calendar times, the choice between a rigid job and a profile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from coadapt.model import Fact, JobSpec

if TYPE_CHECKING:
    from coadapt.simulate.traces._collect import Collector

#: Lines with their line ends, as an open text stream gives them.
Lines = Iterable[str]
#: (name, profile, replicas, total batch size) -> spec; raises an InputError for an unknown profile.
SpecFor = Callable[[str, str, int, int | None], JobSpec]
#: "rigid": a job of the recorded duration and size; "profiles": the profile its GPU time suggests.
MapProfiles = Literal["rigid", "profiles"]


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


NO_GPUS, NEVER_STARTED, UNFINISHED = "no GPUs", "never started", "not finished"
NO_TIME = "ran for 0 seconds"


class TraceFormat(ABC):
    """One format of traces; an instance holds the options of that format."""

    name: ClassVar[str]
    #: What a user would call it, for help texts.
    title: ClassVar[str]
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
