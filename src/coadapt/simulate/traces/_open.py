"""From a path or a stream to a workload: compression, encoding, format.

`open_trace` is the only function below ``cli`` that opens files, so that a directory of two tables
and a gzip file behave like any other trace.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, TextIO, cast

from coadapt.errors import InputError, UnknownNameError
from coadapt.simulate.traces._base import Lines, MapProfiles, SpecFor, TraceFormat, Workload
from coadapt.simulate.traces._collect import Collector
from coadapt.simulate.traces._specs import SpecBuilder
from coadapt.simulate.traces._table import guarded
from coadapt.simulate.traces.helios import HeliosFormat
from coadapt.simulate.traces.ours import CsvFormat, JsonLinesFormat
from coadapt.simulate.traces.pai import OpenbFormat, PaiFormat, SpotFormat, is_task_table
from coadapt.simulate.traces.philly import PhillyFormat, PhillyJsonFormat
from coadapt.simulate.traces.pollux import PolluxFormat
from coadapt.simulate.traces.slurm import SlurmFormat
from coadapt.simulate.traces.swf import SwfFormat

#: In the order in which a file's head is tried.
FORMATS: dict[str, type[TraceFormat]] = {
    format.name: format
    for format in (
        CsvFormat,
        JsonLinesFormat,
        PolluxFormat,
        PhillyFormat,
        PhillyJsonFormat,
        HeliosFormat,
        PaiFormat,
        OpenbFormat,
        SpotFormat,
        SlurmFormat,
        SwfFormat,
    )
}
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
    """The workload in the lines of an open text stream.

    ``file`` is its name in messages; ``format`` a name in FORMATS, a format with its options, or None to
    tell it from the first lines. ``strict``: the first bad row is a TraceError; else bad rows are kept in
    ``skipped``. ``profiles`` makes the spec of a job with a profile. ``any_gpu_type`` drops the GPU types
    the trace's jobs asked for.
    """
    if map_profiles not in ("rigid", "profiles"):
        raise UnknownNameError("mapping", map_profiles, ("rigid", "profiles"))
    lines = guarded(lines, file)
    if not isinstance(format, TraceFormat):
        head = list(islice(lines, _HEAD_LINES))
        format = _made(format) if format is not None else _detected(head, file)
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
    """The workload in a file, plain or gzip, or in a directory with PAI's two tables."""
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


def _made(name: str) -> TraceFormat:
    if name not in FORMATS:
        raise UnknownNameError("trace format", name, FORMATS)
    return FORMATS[name]()


def _detected(head: list[str], file: str) -> TraceFormat:
    written = [line for line in head if line.strip()]
    if not written:
        raise InputError(f"{file} has no jobs: it is empty")
    for format in FORMATS.values():
        if format.sniff(written):
            return format()
    raise InputError(
        f"{file}: no known trace begins with {written[0].strip()[:60]!r}; formats: {', '.join(FORMATS)}; "
        "name one if the header is missing"
    )


def _job_table(directory: Path) -> Path:
    found = _beside(directory / _PAI_JOBS)
    if found is None:
        raise InputError(f"{directory} is a directory without {_PAI_JOBS}.csv; any other trace is a file")
    return found


def _other(path: Path, this: str, that: str) -> Path:
    found = (
        _beside(path.with_name(path.name.split(".")[0].replace(this, that))) if this in path.name else None
    )
    if found is None:
        raise InputError(
            f"{path} is the PAI {this} table; the {that} table must lie beside it ({_PAI_JOBS}.csv, {_PAI_TASKS}.csv)"
        )
    return found


def _beside(stem: Path) -> Path | None:
    candidates = (stem.with_name(stem.name + ending) for ending in (".csv", ".csv.gz"))
    return next((path for path in candidates if path.is_file()), None)


@contextmanager
def _opened(path: Path) -> Iterator[Lines]:
    """The lines of a file; gzip is told by its first two bytes, not by its name."""
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
        raise InputError(f"{file} has no line end in its first {_LONGEST_LINE:,} characters; it is no trace")
    if first:
        yield first
    yield from text
