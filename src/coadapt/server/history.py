"""Which records of the log are about which job, so that a job's own story is read without reading everybody's.

Kept by sequence number only, a few bytes per record. What was in the log before this process started is looked through
in a thread; until that is done a story may lack its beginning.
"""

from __future__ import annotations

import heapq
import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

from coadapt.errors import CoadaptError
from coadapt.model import Measured, Record
from coadapt.server.follower import Readable
from coadapt.server.touched import touched

log = logging.getLogger(__name__)


class _Seqs(NamedTuple):
    changes: array[int]
    measured: array[int]


class History:
    """``open_log`` opens the log anew, for the thread; ``until``: records after it are told by ``note``."""

    def __init__(self, read: Callable[[Sequence[int]], Sequence[Record]]) -> None:
        self._read = read
        self._old: dict[str, _Seqs] = {}
        self._new: dict[str, _Seqs] = {}
        self.complete = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def look_back(self, open_log: Callable[[], ReadableLog], until: int) -> None:
        """Looks through the records up to ``until``, in a thread."""
        self._thread = threading.Thread(
            target=self._look_back, args=(open_log, until), name="history", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """No more looking."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def note(self, record: Record) -> None:
        """A record was appended to the log."""
        _note(self._new, record)

    def changes(self, job: str) -> list[int]:
        """Records about the job except measurements."""
        return [seq for known in self._of(job) for seq in known.changes]

    def measured(self, job: str) -> list[int]:
        """The job's measurements."""
        return [seq for known in self._of(job) for seq in known.measured]

    def all(self, job: str) -> list[int]:
        """Everything about the job, in order."""
        return list(heapq.merge(self.changes(job), self.measured(job)))

    def records(self, seqs: Sequence[int]) -> Sequence[Record]:
        """These records."""
        return self._read(seqs) if seqs else ()

    def _of(self, job: str) -> Iterator[_Seqs]:
        for known in (self._old, self._new):
            if (found := known.get(job)) is not None:
                yield found

    def _look_back(self, open_log: Callable[[], ReadableLog], until: int) -> None:
        try:
            with closing(open_log()) as events:
                for record in events.read(events.first() - 1):
                    if record.seq > until or self._stopped:
                        break
                    _note(self._old, record)
        except CoadaptError as error:
            log.warning("the beginning of the log cannot be read: %s", error)
        self.complete.set()


class ReadableLog(Readable, Protocol):
    """A log that is opened to be read, and closed."""

    def first(self) -> int: ...

    def close(self) -> None: ...


def _note(known: dict[str, _Seqs], record: Record) -> None:
    for job in touched(record.event):
        seqs = known.get(job)
        if seqs is None:
            seqs = known[job] = _Seqs(array("q"), array("q"))
        (seqs.measured if isinstance(record.event, Measured) else seqs.changes).append(record.seq)
