"""The inbox in a database: durable before it is answered, given again until it is in the log.

Any number of processes may put; the controller takes. The function that makes an event gets its number, within the transaction
that stores it, so that a job can be named by it: jobs are numbered one after another, everything else by its entry. A job's
number is never larger than its entry's; so in a store that has not counted jobs yet, counting begins at the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from coadapt.errors import InputError
from coadapt.model import AnyEvent, JobSubmitted, Record, encode
from coadapt.model.lease import Make
from coadapt.store._sql import Row, Sql, meta, set_meta
from coadapt.store.audit_log import Attribution, action_of, record, subject_of
from coadapt.store.log import check_epoch, decoded

_PAGE = 1000
#: Key of the number of the newest job.
_JOBS = "jobs"
#: Seconds that a key is remembered after its entry was acknowledged.
KEYS_KEPT_S = 86400.0
#: The same for keys of agents' reports.
REPORT_KEYS_KEPT_S = 600.0
#: Seconds that an answer to a request is remembered, from when it was given.
ANSWERS_KEPT_S = 7 * 86400.0


class Asked(NamedTuple):
    """What a request asked for, as a digest, and what is said with its answer: a repeat has the same answer."""

    digest: str
    note: str = ""


class Answered(NamedTuple):
    """The answer to an earlier request with the same key."""

    number: int
    asked: Asked


class SqlInbox:
    """Implements ``runtime.Inbox``; in the same database as the log, and written by other processes.

    Args:
        database: Connection to the store.
        epoch: Epoch of the lease of the controller that takes entries, which must be the present one whenever it changes
            them; None: not a controller.
    """

    def __init__(self, database: Sql, epoch: Callable[[], int] | None = None) -> None:
        self._database, self._epoch = database, epoch

    def put(self, event: AnyEvent, key: str | None = None) -> int:
        """Stores an event and returns its number; a repeat with the same ``key`` returns the earlier number."""
        return self.submit(lambda number: event, key)

    def submit(self, make: Make, key: str | None = None) -> int:
        """Stores the event that ``make`` returns for its number; a repeat with the same ``key`` gives the earlier number."""
        (answer,) = self.submit_all([(make, key)])
        if isinstance(answer, InputError):
            raise answer
        return answer

    def submit_all(
        self,
        entries: Sequence[tuple[Make, str | None]],
        who: Sequence[Attribution | None] = (),
        asked: Sequence[Asked | None] = (),
    ) -> list[int | InputError]:
        """Stores several entries in one transaction and returns a number or an error for each.

        Args:
            entries: what makes each event, and the key of the request.
            who: the one who asks, for each entry; with it the audit log is written, too.
            asked: what was asked for, for each entry; with it the answer is remembered under the key, for longer than
                the entry, and a repeat is recognised by what it asks for, not by the event that was made of it.
        """
        none = [None] * len(entries)
        with self._database.transaction():
            return [
                self._submit(make, key, whom, what)
                for (make, key), whom, what in zip(entries, who or none, asked or none, strict=True)
            ]

    def answered(self, key: str) -> Answered | None:
        """Returns the answer to an earlier request with this key; None if there was none."""
        found = self._database.rows("SELECT number, asked, note FROM answers WHERE key = ?", key)
        return Answered(int(found[0][0]), Asked(str(found[0][1]), str(found[0][2]))) if found else None

    def _submit(
        self, make: Make, key: str | None, who: Attribution | None, asked: Asked | None
    ) -> int | InputError:
        if key is not None and asked is not None and (before := self.answered(key)) is not None:
            if before.asked.digest == asked.digest:
                return before.number
            return InputError(f"key {key!r} was used for another request; use a new key")
        found = [] if key is None else self._of_key(key)
        if found:
            entry, data = int(found[0][0]), bytes(found[0][1])
            for number in (
                entry,
                _number_in(decoded(data, f"inbox entry {entry}", self._database.name).event),
            ):
                if number is not None and data == _encoded(make(number)):
                    return number
            return InputError(f"key {key!r} was used for another request; use a new key")
        entry = self._database.next_number()
        number, event = self._numbered(make, entry)
        self._database.change(
            "INSERT INTO inbox (number, key, data) VALUES (?, ?, ?)", entry, key, _encoded(event)
        )
        if key is not None and asked is not None:
            self._database.change(
                f"INSERT INTO answers (key, number, asked, note, at) VALUES (?, ?, ?, ?, {self._database.now})",
                key,
                number,
                *asked,
            )
        if who is not None:
            record(self._database, who, action_of(event), subject_of(event))
        return number

    def _numbered(self, make: Make, entry: int) -> tuple[int, AnyEvent]:
        """The event with its number: the job's own number if the job is named by it."""
        event = make(entry)
        if not isinstance(event, JobSubmitted):
            return entry, event
        counted = meta(self._database, _JOBS)
        job = (entry - 1 if counted is None else int(counted)) + 1
        called = make(job)
        if called == event and job != entry:
            return entry, event  # named otherwise
        set_meta(self._database, _JOBS, str(job))
        return job, called

    def _of_key(self, key: str) -> list[Row]:
        return self._database.rows("SELECT number, data FROM inbox WHERE key = ?", key)

    def take(self) -> Iterator[tuple[int, AnyEvent]]:
        """Yields the events that are not acknowledged yet, in order."""
        rows = self._database.rows(
            "SELECT number, data FROM inbox WHERE acknowledged = 0 ORDER BY number LIMIT ?", _PAGE
        )
        for number, data in rows:
            yield int(number), decoded(data, f"inbox entry {number}", self._database.name).event

    def waiting(self) -> list[AnyEvent]:
        """Returns all events that are not acknowledged yet, in order; ``take`` yields the first thousand."""
        rows = self._database.rows("SELECT number, data FROM inbox WHERE acknowledged = 0 ORDER BY number")
        return [decoded(data, f"inbox entry {number}", self._database.name).event for number, data in rows]

    def acknowledge(self, number: int) -> None:
        """Marks an event as logged. If a power cut undoes this, the event is given again, which does no harm."""
        with self._database.transaction(lasting=False):
            self._check_epoch()
            self._database.change(
                f"UPDATE inbox SET acknowledged = 1, acknowledged_at = {self._database.now} WHERE number = ?",
                number,
            )

    def prune(self, keys_kept_s: float = KEYS_KEPT_S) -> int:
        """Removes acknowledged entries, those with a key after ``keys_kept_s``; returns how many."""
        with self._database.transaction(lasting=False):
            self._check_epoch()
            self._database.change(f"DELETE FROM answers WHERE at <= {self._database.now} - ?", ANSWERS_KEPT_S)
            return self._database.change(
                "DELETE FROM inbox WHERE acknowledged = 1 AND (key IS NULL"
                f" OR coalesce(acknowledged_at, 0) <= {self._database.now} - ?"
                # reports are frequent, and are not repeated after minutes
                f" OR (substr(key, 1, 7) = 'report:' AND coalesce(acknowledged_at, 0) <= {self._database.now} - ?))",
                keys_kept_s,
                min(keys_kept_s, REPORT_KEYS_KEPT_S),
            )

    def _check_epoch(self) -> None:
        if self._epoch is not None:
            check_epoch(self._database, self._epoch())

    def close(self) -> None:
        """Closes the connection."""
        self._database.close()


def _number_in(event: AnyEvent) -> int | None:
    """The number in the name of a job."""
    number = event.job.rpartition("-")[2] if isinstance(event, JobSubmitted) else ""
    return int(number) if number.isascii() and number.isdigit() else None


def _encoded(event: AnyEvent) -> bytes:
    return encode(Record(seq=0, at=0.0, event=event))
