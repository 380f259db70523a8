"""Output of replicas: ``logs/JOB.ATTEMPT/RANK.out`` and ``.err``, written by the replicas themselves, bounded by the keeper.

A file that has grown too long loses its beginning in place (a hole is punched): nobody has to open another file, no line is
lost in between, and an offset means the same for ever. Where the file system cannot do that the file is emptied instead.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

log = logging.getLogger(__name__)
Stream = Literal["out", "err"]
#: A file keeps at least half of this.
MOST_BYTES = 128 << 20
RETENTION_S = 14 * 86400.0
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def directory_of(keeper: Path, job: str, attempt: int) -> Path:
    """Where output of an attempt is, whatever characters the job's name has."""
    name = quote(job, safe="")
    if len(name) > 150:
        name = f"{name[:150]}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
    return keeper / "logs" / f"{name}.{attempt}"


def read_part(path: Path, offset: int, most: int = 1 << 16) -> tuple[bytes, int]:
    """What stands at ``offset`` and where to go on; negative: so many bytes before the end.

    An offset before what is kept goes on at the beginning of that; an absent file is an empty one.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return b"", max(offset, 0)
    try:
        size = os.fstat(fd).st_size
        if offset < 0:
            offset = max(size + offset, 0)
        if offset > size:
            offset = 0  # it was emptied
        if offset == size:
            return b"", size
        with suppress(OSError):  # a file system without holes has nothing to skip
            offset = os.lseek(fd, offset, os.SEEK_DATA)
        data = os.pread(fd, most, offset)
        return data, offset + len(data)
    finally:
        os.close(fd)


def trim(path: Path, most: int = MOST_BYTES) -> bool:
    """Frees the beginning of a file that holds more than ``most`` bytes; True if there was something to free."""
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_blocks * 512 <= most:
        return False
    end = (status.st_size - most // 2) // _BLOCK * _BLOCK
    with path.open("r+b") as file:
        if end > 0 and not _punch(file.fileno(), end):
            os.ftruncate(file.fileno(), 0)
    return True


def remove_old(
    logs: Path, keep: Container[str], *, now: float | None = None, age_s: float = RETENTION_S
) -> None:
    """Removes directories that nothing was written to for ``age_s``, except those named in ``keep``."""
    now = time.time() if now is None else now
    with suppress(FileNotFoundError):
        for directory in list(logs.iterdir()):
            if directory.name not in keep and now - _newest(directory) > age_s:
                shutil.rmtree(directory, ignore_errors=True)


def _newest(directory: Path) -> float:
    times = [directory.stat().st_mtime]
    with suppress(OSError):
        times += [path.stat().st_mtime for path in directory.iterdir()]
    return max(times)


def _punch(fd: int, end: int) -> bool:
    """Whether the first ``end`` bytes are freed; False where that cannot be done."""
    mode, begin, length = ctypes.c_int(_KEEP_SIZE | _PUNCH_HOLE), ctypes.c_int64(0), ctypes.c_int64(end)
    if _libc.fallocate64(fd, mode, begin, length) == 0:
        return True
    number = ctypes.get_errno()
    if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
        log.warning("cannot trim a log: %s", os.strerror(number))
    return False
