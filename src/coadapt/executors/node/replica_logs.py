"""Output of replicas: ``logs/JOB.ATTEMPT/RANK.out`` and ``.err``, written by the replicas, bounded and removed by the
keeper.

A file that has grown too long loses its beginning in place (a hole is punched): no replica has to open another file,
no line is lost in between, and offsets stay valid. Where the file system cannot do that the file is emptied instead.

``Follower`` reads a file that another process appends to: whole lines, each once, in bounded portions.
``Housekeeping`` trims long files, and removes old directories and the journal's past. ``tail`` and ``masked`` make the
last lines of a failed replica fit to be shown.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Container, Mapping
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
    """Returns the directory of an attempt's output, whatever characters the job's name has."""
    name = quote(job, safe="")
    if len(name) > 150:
        name = f"{name[:150]}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
    return keeper / "logs" / f"{name}.{attempt}"


def size_of(path: Path) -> int:
    """Returns the bytes in a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_part(path: Path, offset: int, most: int = 1 << 16) -> tuple[bytes, int]:
    """Returns the bytes at ``offset`` and the next offset; a negative offset counts from the end."""
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
    """Removes directories in ``logs`` not written to for ``age_s`` seconds before ``now``, except those named in
    ``keep``.
    """
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


#: Bytes read at once; and how far a follower may fall behind before it skips.
_CHUNK, _MOST_BEHIND = 1 << 18, 1 << 21
#: Longer lines are ignored.
MAX_LINE = 1 << 16


class Follower:
    """Follows the file ``path`` from ``offset`` on. The file need not exist yet."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset
        self._rest = b""
        #: Whether the present line began before what was read.
        self._torn = False

    def lines(self) -> list[str]:
        """Returns the lines completed since the last call; costs one ``stat`` if the file has not grown."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return []
        if size == self.offset:
            return []
        if size < self.offset:
            self.offset, self._rest, self._torn = 0, b"", False  # emptied
        if size - self.offset > _MOST_BEHIND:
            self.offset, self._rest, self._torn = size - _CHUNK, b"", True
        data, after = read_part(self.path, self.offset, _CHUNK)
        if after - len(data) != self.offset:
            self._rest, self._torn = b"", True  # its beginning was freed
        self.offset = after
        *whole, rest = (self._rest + data).split(b"\n")
        if whole and self._torn:
            whole, self._torn = whole[1:], False
        if len(rest) > MAX_LINE:
            rest, self._torn = b"", True
        self._rest = rest
        return [line.decode("utf-8", "replace") for line in whole if len(line) <= MAX_LINE]


#: Seconds between two checks for long files, and for old ones.
_TRIM_S, _REMOVE_S = 10.0, 3600.0


class Housekeeping:
    """Bounds the logs of one keeper. ``look`` may be called often; it acts at intervals.

    Args:
        directory: holds one directory of output per attempt.
        most_bytes: size above which a file loses its beginning.
        retention_s: age in seconds at which a directory is removed.
        also: called whenever old directories are removed, to clear something else.
    """

    def __init__(
        self,
        directory: Path,
        *,
        most_bytes: int = MOST_BYTES,
        retention_s: float = RETENTION_S,
        also: Callable[[], object] = lambda: None,
    ) -> None:
        self.directory, self.most_bytes, self.retention_s = directory, most_bytes, retention_s
        #: Called when old files are removed.
        self._also = also
        self._trim_at = self._remove_at = float("-inf")

    def look(self, now: float, in_use: Collection[Path]) -> None:
        """Trims long files in ``in_use``, the directories that replicas write to, and removes old directories, if it is
        time.
        """
        if now >= self._trim_at:
            self._trim_at = now + _TRIM_S
            for directory in in_use:
                for path in (*directory.glob("*.out"), *directory.glob("*.err")):
                    trim(path, self.most_bytes)
        if now >= self._remove_at:
            self._remove_at = now + _REMOVE_S
            remove_old(self.directory, {path.name for path in in_use}, age_s=self.retention_s)
            self._also()


# -- the last lines, for reports of failures --------------------------------------------------------

TAIL_LINES, TAIL_BYTES = 20, 8192
_SECRET = re.compile(r"token|secret|passw|pwd|key|credential|auth|cookie|private", re.I)
_LOGIN = re.compile(r"(\w{1,20}://[^\s/:@]{0,200}:)[^\s/@]{1,500}@")
_HIDDEN = "***"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")


def masked(text: str, envs: Mapping[str, str], *secrets: str) -> str:
    """``text`` without values of variables that are named like secrets, and without passwords in addresses."""
    hidden = [value for name, value in envs.items() if _SECRET.search(name)]
    for value in sorted({*hidden, *secrets}, key=len, reverse=True):
        if len(value) >= 4:
            text = text.replace(value, _HIDDEN)
    return _LOGIN.sub(rf"\1{_HIDDEN}@", text)


def tail(data: bytes, lines: int = TAIL_LINES) -> str:
    """Returns the last lines of ``data`` as text, without unprintable characters."""
    text = _ESCAPE.sub("", data[-TAIL_BYTES:].decode("utf-8", "replace"))
    # a progress bar overwrites itself: the last state is shown
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    clean = ("".join(c for c in line if c.isprintable() or c == "\t").rstrip() for line in shown)
    return "\n".join([line for line in clean if line][-lines:])
