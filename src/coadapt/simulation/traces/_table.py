"""Lines, rows and cells: from a text stream to checked values, with the place of every mistake.

Nothing that a broken file can cause (bad encoding, a truncated archive, NUL bytes, huge fields)
leaves this module as anything but a TraceError.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from coadapt.errors import TraceError
from coadapt.simulation.traces._base import BadValue, Lines

if TYPE_CHECKING:
    from coadapt.simulation.traces._base import Collector

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
#: Beyond this, seconds lose their fractions and counts their exactness.
_LARGEST = 1e15
#: How traces write "nothing here".
_NOTHING = frozenset(("", "none", "null", "nan", "n/a", "na", "unknown"))


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
        raise TraceError("the compressed file ends too early; copy it again", file=file) from None
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


Split = Callable[[Lines, str], Iterator[tuple[int, list[str]]]]


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
