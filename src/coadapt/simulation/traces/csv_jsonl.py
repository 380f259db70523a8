"""Our own trace, as CSV or as JSON Lines, with the same columns.

``job, submit_s, gpus`` and ``duration_s`` (or ``start_s`` and ``end_s``, or ``profile``) say enough;
``replicas`` is another name for ``gpus``. Several values of ``after`` or ``gpu_type`` are separated by
``|`` (in JSON they may be a list). Seconds stay as given.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, TextIO

import msgspec

from coadapt.errors import InputError, suggestion
from coadapt.simulation.traces._base import (
    BadValue,
    Collector,
    Entry,
    Lines,
    Row,
    Submission,
    TraceFormat,
    Workload,
    table,
)

COLUMNS = (
    *("job", "submit_s", "gpus", "duration_s", "user", "team", "profile", "batch", "epochs", "priority"),
    *(
        "deadline_s",
        "after",
        "preemptible",
        "min_gpus",
        "max_gpus",
        "gpu_type",
        "start_s",
        "end_s",
        "time_limit_s",
    ),
)
_KNOWN = (*COLUMNS, "replicas")
_YES_NO = {"": True, "true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class CsvFormat(TraceFormat):
    """Our columns with a header line."""

    name, title = "csv", "coadapt CSV"
    order = 10
    columns: ClassVar[dict[str, str]] = {name: name for name in COLUMNS}

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        names = {cell.strip().strip('"') for cell in head[0].split(",")} if head else set()
        return "submit_s" in names or ("job" in names and len(names.intersection(_KNOWN)) > 1)

    def read(self, lines: Lines, into: Collector) -> None:
        into.take(table(lines, into, required=("job", "submit_s"), check=_check_columns), _entry)


class JsonLinesFormat(TraceFormat):
    """One JSON object per line, with our columns as keys."""

    name, title = "jsonl", "coadapt JSON Lines"
    order = 20
    columns: ClassVar[dict[str, str]] = CsvFormat.columns

    @staticmethod
    def sniff(head: Sequence[str]) -> bool:
        first = next((line for line in head if line.strip()), "")
        return first.lstrip().startswith("{")

    def read(self, lines: Lines, into: Collector) -> None:
        into.take(_numbered(lines), lambda line: _entry(line.row()))


class _JsonLine(msgspec.Struct):
    line: int
    text: str

    def row(self) -> Row:
        try:
            found = msgspec.json.decode(self.text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadValue(f"is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise BadValue("is not a JSON object")
        if self.text.count(":") > len(found):  # a second look only where a key may stand twice
            json.loads(self.text, object_pairs_hook=_once)
        _check_columns(list(found))
        for column in ("job", "submit_s"):
            if column not in found:
                raise BadValue(f"missing column {column}; found {', '.join(map(repr, found))}")
        cells = [_cell(value, column) for column, value in found.items()]
        return Row(self.line, cells, {column: place for place, column in enumerate(found)})


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise BadValue("appears twice", next(name for name in names if names.count(name) > 1))
    return found


def _numbered(lines: Lines) -> Iterator[_JsonLine]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _JsonLine(number, line)


def _cell(value: Any, column: str) -> str:
    """A JSON value as the CSV would have it, so that both are checked by the same code."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, int) and abs(value) > 10**15:
        raise BadValue("the number is too large", column)
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "|".join(value)
    raise BadValue(f"{type(value).__name__} is not a value of this column", column)


def _check_columns(header: list[str]) -> None:
    for column in header:
        if column not in _KNOWN:
            raise BadValue(f"unknown column; {suggestion(column, _KNOWN)}", column)
    if ("gpus" in header) == ("replicas" in header):
        raise BadValue("needs one column 'gpus' (or 'replicas')")


def _entry(row: Row) -> Entry:
    job, profile = row.text("job"), row.text("profile")
    if "|" in job:
        raise BadValue(f"{job!r}: a job id must not contain '|'", "job")
    submit_s = row.number("submit_s")
    start_s, end_s = row.number_or_none("start_s"), row.number_or_none("end_s")
    duration_s = row.number_or_none("duration_s")
    if profile and duration_s is not None:
        raise BadValue(
            "give a profile or duration_s, not both: a profile determines the duration", "duration_s"
        )
    if start_s is not None and end_s is not None:
        duration_s = _duration(start_s, end_s, duration_s)
    if duration_s is None and not profile:
        raise BadValue("give duration_s, or start_s and end_s, or profile", "duration_s")
    gpus = row.whole("replicas" if row.has("replicas") else "gpus", least=1)
    least, most = row.whole_or_none("min_gpus", least=1), row.whole_or_none("max_gpus", least=1)
    if least is not None and most is not None and least > most:
        raise BadValue(f"{least} is more than max_gpus {most}", "min_gpus")
    if not profile and not (least or 1) <= gpus <= (most or math.inf):
        raise BadValue(f"{gpus} is not between min_gpus and max_gpus", "gpus")
    preemptible = row.text("preemptible").strip().lower()
    if preemptible not in _YES_NO:
        raise BadValue(f"{preemptible[:40]!r} is neither true nor false", "preemptible")
    return Entry(
        line=row.line,
        job=job,
        submit_s=submit_s,
        gpus=gpus,
        duration_s=None if profile else duration_s,
        start_s=start_s,
        end_s=end_s,
        user=row.text("user"),
        team=row.text("team"),
        profile=profile,
        batch=row.whole_or_none("batch", least=1),
        epochs=row.number_or_none("epochs"),
        priority=row.whole_or_none("priority", least=-math.inf) or 0,
        deadline_s=row.number_or_none("deadline_s"),
        time_limit_s=row.number_or_none("time_limit_s"),
        after=_several(row.text("after")),
        preemptible=_YES_NO[preemptible],
        min_gpus=least,
        max_gpus=most,
        gpu_types=_several(row.text("gpu_type")),
    )


def _duration(start_s: float, end_s: float, duration_s: float | None) -> float:
    """Seconds of work; less than start to end where a job was paused between attempts, never more."""
    held_s = max(0.0, end_s - start_s)
    if duration_s is None:
        return held_s
    if end_s >= start_s and duration_s > held_s * 1.01 + 1:
        raise BadValue(f"{duration_s:g} is more than the {held_s:g} s from start_s to end_s", "duration_s")
    return duration_s


def _several(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part for part in text.split("|") if part))


def write(workload: Workload, stream: TextIO, format: Literal["csv", "jsonl"] = "csv") -> None:
    """The jobs in our format; reading them again gives the same jobs.

    Seconds, ids, sizes and times are kept. What a profile says is not written but taken from the
    profile again. A CSV stream must be open with ``newline=""``.
    """
    rows = [_row(submission) for submission in workload.jobs]
    if format == "jsonl":
        for row in rows:
            stream.write(msgspec.json.encode(row).decode() + "\n")
        return
    used = [column for column in COLUMNS if any(column in row for row in rows)]
    plain = csv.writer(stream, lineterminator="\n")
    quoted = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)  # csv leaves a lone \r unquoted
    plain.writerow(used)
    for row in rows:
        cells = [_text(row.get(column, "")) for column in used]
        (quoted if any("\r" in cell for cell in cells) else plain).writerow(cells)


def _row(submission: Submission) -> dict[str, Any]:
    spec = submission.spec
    if spec.gpus_per_replica != 1 or any(
        "|" in name for name in (submission.job, *spec.after, *spec.gpu_types)
    ):
        raise InputError(
            f"job {submission.job!r} cannot be written: several GPUs per replica, or a name with '|', cannot be expressed in this format"
        )
    row: dict[str, Any] = {"job": submission.job, "submit_s": submission.at, "gpus": spec.requested}
    bounds = (spec.worker.min, spec.worker.max)
    if spec.profile and bounds[0] >= 1:
        row["min_gpus"], row["max_gpus"] = bounds
    elif spec.elastic and not spec.profile:
        raise InputError(f"job {submission.job!r} cannot be written: minimum and maximum GPUs need a profile")
    recorded = spec.recorded
    row |= {"start_s": recorded and recorded.start_s, "end_s": recorded and recorded.end_s}
    row |= {"batch": spec.requested_batch, "after": list(spec.after), "gpu_type": list(spec.gpu_types)}
    row["preemptible"] = None if spec.preemptible else False
    same = ("user", "team", "profile", "epochs", "priority", "deadline_s", "time_limit_s")
    row |= {name: getattr(spec, name) for name in same} | {
        "duration_s": None if spec.profile else spec.duration_s
    }
    return {name: _short(value) for name, value in row.items() if _worth(name, value)}


def _worth(name: str, value: Any) -> bool:
    return value is not None and value != "" and value != [] and not (name == "priority" and value == 0)


def _short(value: Any) -> Any:
    """107 instead of 107.0: the same number, easier to read."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
