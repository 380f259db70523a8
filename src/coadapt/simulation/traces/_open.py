"""Opens traces: from a path or a stream to a workload, by compression, encoding and format; and describes a workload.

``open_trace`` is the only function below ``cli`` that opens files, so that a directory of two tables and a gzip file
behave like any other trace. The description is a few numbers, and the cluster that the workload would have needed.
"""

from __future__ import annotations

import gzip
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import IO, Any, TextIO, cast

from coadapt.errors import InputError, UnknownNameError
from coadapt.plugins import FORMATS
from coadapt.simulation.traces._base import (
    Collector,
    Lines,
    MapProfiles,
    SpecBuilder,
    SpecFor,
    Submission,
    TraceFormat,
    Workload,
    guarded,
)
from coadapt.simulation.traces.alibaba import PaiFormat, is_task_table

#: GPUs of a node where the trace does not tell: the most common machine.
_PER_NODE = 8


def describe(workload: Workload) -> dict[str, Any]:
    """Jobs, span, GPU-hours, sizes ... of a workload, as plain data."""
    specs = [submission.spec for submission in workload.jobs]
    known = [(spec, spec.duration_s) for spec in specs if spec.duration_s is not None]
    durations = [duration for _, duration in known]
    first = workload.jobs[0].at if workload.jobs else 0.0
    last = workload.jobs[-1].at if workload.jobs else 0.0
    sizes = Counter(spec.requested_gpus for spec in specs)
    profiles = Counter(spec.profile for spec in specs if spec.profile)
    types = Counter("|".join(spec.gpu_types) for spec in specs if spec.gpu_types)
    peaks = peak_gpus(workload)
    return {
        "source": workload.source,
        "jobs": len(specs),
        "first_submit_s": first,
        "span_s": last - first,
        "gpu_hours": sum(spec.requested_gpus * duration for spec, duration in known) / 3600,
        "jobs_with_duration": len(known),
        "median_duration_s": median(durations) if durations else None,
        "longest_duration_s": max(durations, default=None),
        "sizes": dict(sorted(sizes.items())),
        "gpu_types": dict(sorted(types.items())),
        "profiles": dict(sorted(profiles.items())),
        "users": len({spec.user for spec in specs if spec.user}),
        "teams": len({spec.team for spec in specs if spec.team}),
        "recorded": workload.recorded,
        "skipped": len(workload.skipped),
        "left_out": dict(workload.left_out),
        "started_at": workload.started_at,
        "cluster_hint": workload.cluster_hint,
        "peak_gpus": peaks,
        "peak_cluster": _shorthand(peaks),
    }


def peak_gpus(workload: Workload) -> dict[str, int]:
    """The most GPUs in use at once by type ("": no job names one), where the trace tells how long jobs ran.

    At the recorded times, else as if every job had started when it was submitted. Jobs that take any type count
    with the type that is asked for most; one that takes several, with the first of them.
    """
    asked = Counter(job.spec.gpu_types[0] for job in workload.jobs if job.spec.gpu_types)
    usual = asked.most_common(1)[0][0] if asked else ""
    by_type: dict[str, list[Submission]] = {}
    for job in workload.jobs:
        by_type.setdefault(job.spec.gpu_types[0] if job.spec.gpu_types else usual, []).append(job)
    peaks = {name: _peak(jobs) for name, jobs in sorted(by_type.items())}
    return {name: peak for name, peak in peaks.items() if peak}


def _peak(jobs: Iterable[Submission]) -> int:
    changes: list[tuple[float, int]] = []
    for job in jobs:
        span = _span(job)
        if span is not None:
            gpus = job.spec.requested_gpus
            changes += [(span[0], gpus), (span[1], -gpus)]
    # what ends at a moment is free for what starts then
    changes.sort()
    used = most = 0
    for _, change in changes:
        used += change
        most = max(most, used)
    return most


def _span(job: Submission) -> tuple[float, float] | None:
    recorded, duration_s = job.spec.recorded, job.spec.duration_s
    if recorded is not None and recorded.start_s is not None and recorded.end_s is not None:
        return recorded.start_s, recorded.end_s
    return None if duration_s is None else (job.at, job.at + duration_s)


def _shorthand(peaks: dict[str, int]) -> str | None:
    """Nodes for the peak of each type."""
    groups = []
    for gpu_type, peak in peaks.items():
        per_node = min(_PER_NODE, 1 << (peak - 1).bit_length())
        groups.append(f"{math.ceil(peak / per_node)}x{per_node}" + (f":{gpu_type}" if gpu_type else ""))
    return ",".join(groups) or None


_HEAD_LINES = 60  # the comments that open an SWF log may be long
_LONGEST_LINE = 16_000_000
_PAI_JOBS, _PAI_TASKS = "pai_job_table", "pai_task_table"


def read_trace(
    lines: Lines,
    *,
    file: str,
    format: str | TraceFormat | None = None,
    strict: bool = True,
    map_profiles: MapProfiles = "rigid",
    profiles: SpecFor | None = None,
    any_gpu_type: bool = False,
) -> Workload:
    """Reads the workload from the lines of an open text stream.

    Args:
        lines: The lines.
        file: Name of the stream in messages.
        format: A name in ``plugins.FORMATS``, a format with its options, or None to detect it from the first lines.
        strict: Raise TraceError at the first bad row; otherwise bad rows are kept in ``skipped``.
        map_profiles: "profiles" gives a profile to jobs that have none, by their GPU time; "rigid" keeps them rigid.
        profiles: Makes the specification of a job with a profile.
        any_gpu_type: Drop the GPU types that jobs asked for.
    """
    if map_profiles not in ("rigid", "profiles"):
        raise UnknownNameError("mapping", map_profiles, ("rigid", "profiles"))
    lines = guarded(lines, file)
    if not isinstance(format, TraceFormat):
        head = list(islice(lines, _HEAD_LINES))
        format = FORMATS.make(format) if format is not None else _detected(head, file)
        lines = chain(head, lines)
    specs = SpecBuilder(
        profiles,
        by_gpu_time=map_profiles == "profiles",
        any_gpu_type=any_gpu_type,
        column=format.columns.get("profile"),
    )
    into = Collector(format, specs, file=file, strict=strict)
    format.read(lines, into)
    return into.workload()


def open_trace(
    path: str | Path,
    format: str | TraceFormat | None = None,
    *,
    strict: bool = True,
    map_profiles: MapProfiles = "rigid",
    profiles: SpecFor | None = None,
    any_gpu_type: bool = False,
) -> Workload:
    """Reads the workload from a file, plain or gzip, or from a directory with PAI's two tables.

    Args:
        path: The file or directory.
        format: A name in ``plugins.FORMATS``, a format with its options, or None to detect it from the first lines.
        strict: Raise TraceError at the first bad row; otherwise bad rows are kept in ``skipped``.
        map_profiles: "profiles" gives a profile to jobs that have none, by their GPU time; "rigid" keeps them rigid.
        profiles: Makes the specification of a job with a profile.
        any_gpu_type: Drop the GPU types that jobs asked for.
    """
    path = Path(path)
    with ExitStack() as files:
        if _is_directory(path):
            path, format = _job_table(path), PaiFormat.name
        lines: Lines = files.enter_context(_opened(path))
        if format is None or format == PaiFormat.name:
            # Read the head once and put it back: the path may be a pipe.
            lines = guarded(lines, str(path))
            head = list(islice(lines, 1))
            lines = chain(head, lines)
            if is_task_table(head):
                tasks, task_file, path = lines, str(path), _other(path, "task", "job")
                lines = files.enter_context(_opened(path))
                format = PaiFormat(tasks, task_file)
            elif format is not None or PaiFormat.sniff(head):
                other = _other(path, "job", "task")
                format = PaiFormat(files.enter_context(_opened(other)), str(other))
        return read_trace(
            lines,
            file=str(path),
            format=format,
            strict=strict,
            map_profiles=map_profiles,
            profiles=profiles,
            any_gpu_type=any_gpu_type,
        )


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        shown = str(path) if len(str(path)) <= 200 else str(path)[:200] + " ..."
        raise InputError(f"cannot open the trace {shown!r}: {error.strerror}") from None


def _detected(head: list[str], file: str) -> TraceFormat:
    written = [line for line in head if line.strip()]
    if not written:
        raise InputError(f"{file} has no jobs: it is empty")
    formats: list[type[TraceFormat]] = FORMATS.classes()
    for format in sorted(formats, key=lambda each: (each.order, each.name)):
        if format.sniff(written):
            return format()
    raise InputError(
        f"{file}: no known trace begins with {written[0].strip()[:60]!r}; formats: {', '.join(FORMATS)}; "
        "if the header is missing, give one with --format"
    )


def _job_table(directory: Path) -> Path:
    found = _beside(directory / _PAI_JOBS)
    if found is None:
        raise InputError(
            f"{directory} is a directory without {_PAI_JOBS}.csv; traces of other formats are files"
        )
    return found


def _other(path: Path, this: str, that: str) -> Path:
    found = (
        _beside(path.with_name(path.name.split(".")[0].replace(this, that))) if this in path.name else None
    )
    if found is None:
        raise InputError(
            f"{path} is the PAI {this} table; the {that} table must be in the same directory ({_PAI_JOBS}.csv, {_PAI_TASKS}.csv)"
        )
    return found


def _beside(stem: Path) -> Path | None:
    candidates = (stem.with_name(stem.name + ending) for ending in (".csv", ".csv.gz"))
    return next((path for path in candidates if path.is_file()), None)


@contextmanager
def _opened(path: Path) -> Iterator[Lines]:
    """The lines of a file; gzip is recognised by its first two bytes, not by its name."""
    try:
        raw = path.open("rb")
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot open the trace {str(path)!r}: {reason}") from None
    with raw:
        plain = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
        with io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as text:
            yield _with_line_ends(text, str(path))


def _with_line_ends(text: TextIO, file: str) -> Iterator[str]:
    """The same lines, unless the first never ends: no memory would be enough for that of /dev/zero."""
    first = text.readline(_LONGEST_LINE)
    if len(first) == _LONGEST_LINE and not first.endswith("\n"):
        raise InputError(
            f"{file} has no line end in its first {_LONGEST_LINE:,} characters; it is not a trace"
        )
    if first:
        yield first
    yield from text
