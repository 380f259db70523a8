"""Progress of the controller, in a small file that is mapped into memory (``HOME/controller.progress``).

The controller counts whatever it does, and writes which record it handles before it does so. Writing costs no system
call, so it is done for every record. The supervisor reads the count: one that stands still is a controller that hangs,
however alive its process looks. The file outlives the process, so that the next controller knows what the last one did.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from coadapt.model import Record, Woke

log = logging.getLogger(__name__)

Stage = Literal["idle", "decision", "record"]
_STAGES: tuple[Stage, ...] = ("idle", "decision", "record")
#: Count, stage, sequence number, length of the job's name, the name.
_LAYOUT = struct.Struct("<QBqH237s")


class Reached(NamedTuple):
    """How far a controller has come: ``steps`` grows with all it does; ``job`` is named by the record it handles."""

    steps: int
    stage: Stage = "idle"
    seq: int = -1
    job: str = ""


class ProgressFile:
    """Implements ``runtime.loop.Progress``. Without space for the file nothing is written: the cluster goes on."""

    def __init__(self, path: Path) -> None:
        self._count = 0
        self._map: mmap.mmap | None = None
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                known = read_progress(path)
                self._count = known.steps if known is not None else 0
                # written, not merely lengthened: a hole in a full disk would kill us at the first use
                os.pwrite(fd, bytes(_LAYOUT.size), 0)
                self._map = mmap.mmap(fd, _LAYOUT.size)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            log.warning("progress is not recorded in %s: %s", path, error)
        self.advanced()

    def handling(self, record: Record) -> None:
        """Writes that ``record`` is handled now."""
        event = record.event
        if isinstance(event, Woke):
            self._write(1, record.seq, "")
        else:
            self._write(2, record.seq, getattr(event, "job", None) or "")

    def advanced(self) -> None:
        """Writes that something was done."""
        self._write(0, -1, "")

    def _write(self, stage: int, seq: int, job: str) -> None:
        self._count += 1
        if self._map is not None:
            name = job.encode()[:237]
            _LAYOUT.pack_into(self._map, 0, self._count, stage, seq, len(name), name)


def read_progress(path: Path) -> Reached | None:
    """Returns what the controller last wrote; None if it has written nothing that can be read."""
    with suppress(OSError, struct.error, IndexError):
        count, stage, seq, length, name = _LAYOUT.unpack(path.read_bytes())
        return Reached(count, _STAGES[stage], seq, name[:length].decode(errors="replace"))
    return None
