"""Follows a file that somebody else appends to: whole lines, each once, never more at a time than can be dealt with."""

from __future__ import annotations

from pathlib import Path

from coadapt.cluster.logs import read_part

#: Read at one look; and how far it may fall behind before it skips.
_CHUNK, _MOST_BEHIND = 1 << 18, 1 << 21
#: A longer line says nothing we know.
MAX_LINE = 1 << 16


class Follower:
    """Of one file, from ``offset`` on. It need not exist yet."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset
        self._rest = b""
        #: The line at hand began before what was read.
        self._torn = False

    def lines(self) -> list[str]:
        """What has been completed since the last look; costs one ``stat`` where the file has not grown."""
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
