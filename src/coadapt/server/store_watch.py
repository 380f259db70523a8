"""Reads a store on a server in a thread, so that the event loop never waits for it.

A database server may stop answering without closing its connections. The API then goes on with what it knows: the thread
waits, and the event loop finds new records, the lease and the tokens in memory, or the error of the last look. A store in a
local file is read in the event loop: its readers wait for nobody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import islice

from coadapt.errors import StoreError
from coadapt.model import Record
from coadapt.model.lease import Holder
from coadapt.runtime.controller import ControllerStatus, read_status
from coadapt.store import Store
from coadapt.store.log import SqlLog
from coadapt.store.postgres import probing_thread
from coadapt.store.token_table import Token

#: Seconds between two looks at the log, at the lease, and at the tokens; and after a failure.
_RECORDS_S, _LEASE_S, _TOKENS_S, _AGAIN_S = 0.05, 0.5, 2.0, 0.5
#: Records that wait to be folded; and those read at one look.
_MOST_WAITING, _AT_ONCE = 20_000, 2000


class StoreWatch:
    """What is new in a store. Before ``start`` it reads ``log`` directly; afterwards only the thread touches the store."""

    def __init__(self, store: Store, log: SqlLog) -> None:
        self._store, self._log = store, log
        self._records: deque[Record] = deque()
        self._last = -1
        self._fault: StoreError | None = None
        #: When it was read (monotonic), the holder of the lease, and the controller's status.
        self.lease: tuple[float, Holder | None, ControllerStatus] = (-_LEASE_S, None, ControllerStatus())
        self._tokens: Mapping[str, Token] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._wake = threading.Condition()
        #: Looks that were begun and ended; somebody may wait for the next.
        self._begun = self._ended = 0

    def start(self, after: int) -> None:
        """Begins to watch, with the records after ``after``; reads tokens once before it returns."""
        self._last = after
        self.reload_tokens()
        self._thread = threading.Thread(target=self._run, name="store-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped = True
        with self._wake:
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def read(self, after: int = -1) -> Iterable[Record]:
        """Returns the records after ``after`` that were read so far; StoreError if the last look failed."""
        if self._thread is None:
            return self._log.read(after)
        while self._records and self._records[0].seq <= after:
            self._records.popleft()
        if not self._records and self._fault is not None:
            raise self._fault
        return islice(list(self._records), 0, None)

    def tokens(self) -> Mapping[str, Token]:
        """Returns the tokens by hash; StoreError if the last look failed."""
        if self._fault is not None:
            raise self._fault
        return self._tokens

    def reload_tokens(self) -> None:
        """Reads the tokens again, in the calling thread: after one was made or revoked."""
        with closing(self._store.tokens()) as tokens:
            self._tokens = tokens.by_hash()

    def look_again(self, timeout_s: float) -> None:
        """Waits until a look that begins after this call has ended; not longer than ``timeout_s``. Not for the event loop."""
        with self._wake:
            wanted = self._begun + 1
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._ended >= wanted or self._stopped, timeout_s)

    def _run(self) -> None:
        leased = tokened = time.monotonic()
        with probing_thread(self._store.where), closing(self._log_of_thread()) as log:
            while not self._stopped:
                with self._wake:
                    self._begun += 1
                found = 0
                try:
                    if len(self._records) < _MOST_WAITING:
                        for record in islice(log.read(self._last), _AT_ONCE):
                            self._records.append(record)
                            self._last = record.seq
                            found += 1
                    now = time.monotonic()
                    if now - leased >= _LEASE_S:
                        self.lease, leased = (now, log.holder(), read_status(log.status())), now
                    if now - tokened >= _TOKENS_S:
                        self.reload_tokens()
                        tokened = now
                    self._fault = None
                except StoreError as error:
                    self._fault = error
                    self.lease = (time.monotonic(), None, self.lease[2])
                with self._wake:
                    self._ended += 1
                    self._wake.notify_all()
                    if not self._stopped and found < _AT_ONCE:
                        self._wake.wait(_AGAIN_S if self._fault is not None else _RECORDS_S)

    def _log_of_thread(self) -> SqlLog:
        """A connection of the thread's own; the store may be away just now."""
        while True:
            try:
                return self._store.log()
            except StoreError as error:
                self._fault = error
                if self._stopped:
                    raise
                time.sleep(_AGAIN_S)
