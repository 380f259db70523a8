"""Opens the event log of a run: the directory that ``coadapt simulate -o`` wrote, its log, or a controller's store."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coadapt.cli.result import EVENTS
from coadapt.errors import InputError
from coadapt.model import Record, decode
from coadapt.store import SqliteLog

_GZIP, _SQLITE = b"\x1f\x8b", b"SQLite format 3\0"


def read_events(name: str) -> Iterator[Record]:
    """The records of a run, in their order; InputError, at the latest while they are read, where they cannot be had."""
    path = Path(name)
    if path.is_dir():
        path /= EVENTS
        if not path.exists():
            raise InputError(
                f"{name} holds no {EVENTS}; name a directory that 'coadapt simulate TRACE -o DIR' wrote"
            )
    try:
        with path.open("rb") as stream:
            start = stream.read(len(_SQLITE))
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None
    if start == _SQLITE:
        return _stored(path)
    return _lines(path, packed=start.startswith(_GZIP))


def _stored(path: Path) -> Iterator[Record]:
    log = SqliteLog(path)
    try:
        yield from log.read()
    finally:
        log.close()


def _lines(path: Path, *, packed: bool) -> Iterator[Record]:
    whole = 0
    with gzip.open(path) if packed else path.open("rb") as stream:
        try:
            for line in stream:
                yield decode(line)
                whole += 1
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"{path}:{whole + 1} is no record of an event log ({error}); 'coadapt simulate TRACE -o DIR' writes one"
            ) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path} is damaged after line {whole}: {error}") from None
    if not whole:
        raise InputError(
            f"{path} is empty: no event was recorded; 'coadapt simulate TRACE -o DIR' writes a log"
        )
