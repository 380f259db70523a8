"""The log in a database: durable when the call returns, readable while written; with snapshots and a writer's lease.

There is one writer: a controller takes the lease before it folds the log, and every append checks, inside its own
transaction, that the lease is still its own. So a controller that was stopped for longer than its lease, and then
continues, cannot write, and what is not written is not done. Expiry only decides who may take over; safety does not
depend on clocks.

Every change of the holder gives the lease a larger *epoch*. A controller that lost the lease cannot renew it, also when
its successor has let it expire; and an executor that was told of an epoch refuses controllers of smaller ones.
"""

from __future__ import annotations

import uuid
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import msgspec

from coadapt.errors import InputError, InvariantError, LeaseHeldError, StoreError
from coadapt.model import Record
from coadapt.model.lease import Holder
from coadapt.store._sql import Sql, meta, set_meta
from coadapt.store.pack import pack, unpack
from coadapt.store.row import decode_row, encode_row

_PAGE = 1000
#: Snapshots that are retained: the newest, the one before in case it cannot be read, and the first of every ANCHOR_EVERY records,
#: from which the past is folded (``why --at``), and up to which the log may be forgotten.
SNAPSHOTS, ANCHOR_EVERY = 2, 100_000
#: Of the snapshots between packs one is retained per so many records in packs, or seconds.
ANCHOR_PACKED, ANCHOR_S = 40_000, 86400.0
#: Records and bytes that are cleared away in one transaction, so that no writer waits for long.
_CLEARED, _GIVEN_BACK = 2000, 4 << 20
_FORGOTTEN, _HOME, _STATUS, _EPOCH = "forgotten", "home", "status", "epoch"


class SqlLog:
    """Implements ``runtime.LeasedLog``."""

    def __init__(self, database: Sql) -> None:
        self._database = database
        self._owner: str | None = None
        self._pack: tuple[int, Sequence[Record]] | None = None
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """Epoch of the lease that was taken; 0: none was."""
        return self._epoch

    @property
    def name(self) -> str:
        """Name of the store in messages."""
        return self._database.name

    @property
    def identity(self) -> str:
        """A name that no other store has."""
        return meta(self._database, "identity") or ""

    # -- records -----------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> None:
        """Appends records in one transaction: all of them, or none."""
        if not records:
            return
        rows = [(record.seq, encode_row(record)) for record in records]
        with self._database.transaction():
            self._check_lease()
            last = self.last()
            for offset, (seq, _) in enumerate(rows):
                if seq != last + 1 + offset:
                    raise InvariantError(
                        f"store {self.name}: record {seq} appended after {last + offset}; "
                        "another controller wrote to this store, or a record was lost"
                    )
            for row in rows:
                self._database.change("INSERT INTO log (seq, data) VALUES (?, ?)", *row)

    def read(self, after: int = -1) -> Iterable[Record]:
        """Yields the records after sequence number ``after``, page by page, so that a slow reader blocks no writer."""
        while True:
            page = self._database.rows(
                "SELECT seq, data FROM log WHERE seq > ? ORDER BY seq LIMIT ?", after, _PAGE
            )
            for seq, data in page:
                if seq != after + 1:
                    # packed, perhaps while we were reading; a pack stands for its records as a whole
                    yield from self._packed(after)
                    after = self._pack_end(after)
                    break
                after = seq
                yield decoded(data, f"record {seq}", self.name)
            else:
                if len(page) < _PAGE:
                    return

    def find(self, seq: int) -> Record | None:
        """Returns the record with this number; None if there is none any more."""
        found = self._database.rows("SELECT data FROM log WHERE seq = ?", seq)
        if found:
            return decoded(found[0][0], f"record {seq}", self.name)
        packs = self._database.rows("SELECT first FROM packs WHERE first <= ? AND last >= ?", seq, seq)
        if not packs:
            return None
        records = self._unpacked(int(packs[0][0]))
        at = bisect_left(records, seq, key=attrgetter("seq"))
        return records[at] if at < len(records) and records[at].seq == seq else None

    # -- packs -------------------------------------------------------------------------------------

    def _packed(self, after: int) -> Iterable[Record]:
        """The records after ``after`` of the pack that holds the next one; StoreError if there is none."""
        found = self._database.rows("SELECT first FROM packs WHERE first <= ? AND last > ?", after + 1, after)
        if not found:
            self._missing(after + 1)
        return [record for record in self._unpacked(int(found[0][0])) if record.seq > after]

    def _pack_end(self, after: int) -> int:
        ((last,),) = self._database.rows("SELECT min(last) FROM packs WHERE last > ?", after)
        return int(last)

    def _unpacked(self, first: int) -> Sequence[Record]:
        """The records of one pack; the last one that was asked for is at hand."""
        if self._pack is None or self._pack[0] != first:
            ((data,),) = self._database.rows("SELECT data FROM packs WHERE first = ?", first)
            self._pack = (first, unpack(bytes(data), first, self.name))
        return self._pack[1]

    def packed_until(self) -> int:
        """Returns the number of the last record in a pack; -1 if there is none."""
        ((last,),) = self._database.rows("SELECT coalesce(max(last), -1) FROM packs")
        return int(last)

    def pack(self, first: int, last: int, records: Sequence[Record], state: bytes) -> int:
        """Puts records into a pack, in place of all that are in the log from ``first`` to ``last``; returns its bytes.

        ``state`` is the saved state as of ``last``: it becomes a snapshot, and those within the pack go.
        The originals may then be removed (``clear_packed``); until then both are there, and either is right. No lease is
        needed, since nothing that a controller writes is touched.
        """
        data = pack(records)
        with self._database.transaction():
            until = self.packed_until()
            begin = self.first() if until < 0 else until + 1
            ((there,),) = self._database.rows(
                "SELECT count(*) FROM log WHERE seq BETWEEN ? AND ?", first, last
            )
            if first != begin or there != last - first + 1 or not records or records[-1].seq != last:
                raise InvariantError(
                    f"store {self.name}: records {first} to {last} cannot be packed; packs begin anew at {begin}"
                )
            self._database.change(
                "INSERT INTO packs (first, last, at, records, data) VALUES (?, ?, ?, ?, ?)",
                first,
                last,
                records[-1].at,
                len(records),
                data,
            )
            self._database.change("DELETE FROM snapshots WHERE seq > ? AND seq < ?", first, last)
            self._database.change(
                "INSERT INTO snapshots (seq, data) VALUES (?, ?) ON CONFLICT DO NOTHING", last, state
            )
            self._thin_snapshots(first - 1)
        return len(data)

    def _thin_snapshots(self, seq: int) -> None:
        """Removes the snapshot ``seq`` between two packs, unless it would take long to fold without it."""
        before = self.newest_snapshot_seq(seq)
        if before < 0 and self.first() > 0:
            return
        rows = self._database.rows(
            "SELECT coalesce(sum(records), 0), coalesce(max(at) - min(at), 0) FROM packs WHERE last >= ? AND last <= ?",
            before,
            seq,
        )
        records, span_s = int(rows[0][0]), float(rows[0][1])
        if records < ANCHOR_PACKED and span_s < ANCHOR_S:
            self._database.change("DELETE FROM snapshots WHERE seq = ?", seq)

    def snapshot_seqs(self) -> list[int]:
        """Returns the numbers of the records of which there are snapshots, in order."""
        return [int(seq) for (seq,) in self._database.rows("SELECT seq FROM snapshots ORDER BY seq")]

    def newest_snapshot_seq(self, before: int) -> int:
        """Returns the number of the newest snapshot before ``before``; -1 if there is none."""
        ((seq,),) = self._database.rows("SELECT coalesce(max(seq), -1) FROM snapshots WHERE seq < ?", before)
        return int(seq)

    def clear_packed(self, most: int = _CLEARED) -> int:
        """Removes up to ``most`` records that are in packs, in one short transaction; returns how many."""
        until = self.packed_until()
        with self._database.transaction(lasting=False):
            ((low,),) = self._database.rows("SELECT min(seq) FROM log")
            if low is None or low > until:
                return 0
            return self._database.change("DELETE FROM log WHERE seq <= ?", min(until, int(low) + most - 1))

    def size(self) -> int:
        """Returns the bytes that the store takes."""
        return self._database.size()

    def give_back(self, most_bytes: int = _GIVEN_BACK) -> int:
        """Returns some free space to the system, in one short transaction; returns how many bytes."""
        return self._database.give_back(most_bytes)

    def last(self) -> int:
        """Returns the sequence number of the newest record; -1 if there is none."""
        ((seq,),) = self._database.rows("SELECT coalesce(max(seq), -1) FROM log")
        return int(seq)

    def first(self) -> int:
        """Returns the sequence number of the oldest record that is not forgotten; 0 if there is none."""
        ((seq,),) = self._database.rows(
            "SELECT coalesce((SELECT min(first) FROM packs), (SELECT min(seq) FROM log), 0)"
        )
        return int(seq)

    def _missing(self, seq: int) -> None:
        forgotten = int(meta(self._database, _FORGOTTEN) or 0)
        if seq < forgotten:
            raise InputError(
                f"store {self.name}: records before {forgotten} were forgotten; read from there, or from a snapshot"
            )
        raise StoreError(f"store {self.name} is damaged: record {seq} is missing")

    # -- snapshots ---------------------------------------------------------------------------------

    def save_snapshot(self, seq: int, data: bytes) -> None:
        """Saves the state as of record ``seq``, and removes older snapshots that are not needed any more."""
        with self._database.transaction():
            self._check_lease()
            if not 0 <= seq <= self.last():
                raise InvariantError(
                    f"store {self.name}: a snapshot of record {seq}, which is not in the log"
                )
            self._database.change(
                "INSERT INTO snapshots (seq, data) VALUES (?, ?) "
                "ON CONFLICT (seq) DO UPDATE SET data = excluded.data",
                seq,
                data,
            )
            self._database.change(
                "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)"
                f" AND seq NOT IN (SELECT min(seq) FROM snapshots GROUP BY seq / {ANCHOR_EVERY})"
                # the next pack begins at it
                " AND seq <> (SELECT coalesce(max(last), -1) FROM packs)",
                SNAPSHOTS,
            )

    def newest_snapshot(self, before: int | None = None) -> tuple[int, bytes] | None:
        """Returns the newest snapshot, or the newest one of a record before ``before``; None if there is none."""
        below = self.last() + 1 if before is None else before
        found = self._database.rows(
            "SELECT seq, data FROM snapshots WHERE seq < ? ORDER BY seq DESC LIMIT 1", below
        )
        return (int(found[0][0]), bytes(found[0][1])) if found else None

    def forget(self, before_seq: int) -> None:
        """Removes records before ``before_seq``, all of which must be in the newest snapshot."""
        with self._database.transaction():
            self._check_lease()
            ((newest,),) = self._database.rows("SELECT coalesce(max(seq), -1) FROM snapshots")
            if before_seq > newest:
                raise InvariantError(
                    f"store {self.name}: records before {before_seq} cannot be forgotten; "
                    f"the newest snapshot is of record {newest}"
                )
            if before_seq > int(meta(self._database, _FORGOTTEN) or 0):
                set_meta(self._database, _FORGOTTEN, str(before_seq))
            self._database.change("DELETE FROM log WHERE seq < ?", before_seq)
            # a pack that ends at it is in the snapshot as a whole
            self._database.change("DELETE FROM packs WHERE last <= ?", before_seq)
            # nothing can be folded onto them any more
            self._database.change("DELETE FROM snapshots WHERE seq < ?", before_seq)

    # -- the lease ---------------------------------------------------------------------------------

    def bind(self, home: str) -> None:
        """Ties the store to the first home directory that uses it; InputError for any other."""
        with self._database.transaction():
            bound = meta(self._database, _HOME)
            if bound is None:
                set_meta(self._database, _HOME, home)
            elif bound != home:
                raise InputError(
                    f"store {self.name} belongs to another home directory (its id is {bound}), whose jobs may be running; "
                    "use that one, or 'coadapt backup' and 'coadapt restore'"
                )

    def become_new(self) -> None:
        """Makes a copy a store of its own: another identity, bound to no home, without a lease.

        Keepers and homes that know the store it was copied from refuse it, and it refuses them.
        """
        with self._database.transaction():
            set_meta(self._database, "identity", uuid.uuid4().hex)
            self._database.change("DELETE FROM meta WHERE key = ?", _HOME)
            self._database.change("DELETE FROM lease")
            # the hub's rows are of machines and attempts of the other store, which it would refuse to leave
            found = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 4) = 'hub_'"
            for (name,) in self._database.rows(found):
                self._database.change(f"DROP TABLE {name}")

    def acquire(
        self, owner: str, ttl_s: float, now: float, *, gone: Callable[[str], bool] = lambda owner: False
    ) -> None:
        """Takes or renews the writer's lease; LeaseHeldError while another owner has it.

        Args:
            owner: Name of the controller.
            ttl_s: Seconds for which the lease is valid.
            now: Present time.
            gone: Returns True for an owner that is known to be dead, whose lease may be taken before it expires.
        """
        with self._database.transaction():
            epoch = self._epoch
            if self._owner == owner:
                self._check_lease()
            else:
                epoch = self._next_epoch(owner, now, gone)
            self._database.change(
                f"INSERT INTO lease (one, owner, expires_at, renewed_at) VALUES (1, ?, ?, {self._database.now}) "
                "ON CONFLICT (one) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at, "
                "renewed_at = excluded.renewed_at",
                owner,
                now + ttl_s,
            )
        self._owner, self._epoch = owner, epoch

    def _next_epoch(self, owner: str, now: float, gone: Callable[[str], bool]) -> int:
        """Begins an epoch, if the lease may be taken."""
        found = self._database.rows("SELECT owner, expires_at FROM lease")
        holder, expires_at = found[0] if found else (owner, now)
        if holder != owner and now < expires_at and not gone(str(holder)):
            raise LeaseHeldError(
                f"store {self.name} is in use by controller {holder} for another "
                f"{expires_at - now:.0f} s; stop it first, or wait"
            )
        # a store that was restored from a backup must not repeat epochs that executors have seen: hence the time
        epoch = max(int(meta(self._database, _EPOCH) or 0) + 1, int(now))
        set_meta(self._database, _EPOCH, str(epoch))
        return epoch

    def release(self) -> None:
        """Gives the lease back, so that the next controller need not wait."""
        if self._owner is not None:
            with self._database.transaction():
                if self._epoch == int(meta(self._database, _EPOCH) or 0):
                    self._database.change("DELETE FROM lease WHERE owner = ?", self._owner)
            self._owner, self._epoch = None, 0

    def holder(self) -> Holder | None:
        """Returns the holder of the lease; None if there is none."""
        found = self._database.rows(
            f"SELECT owner, expires_at, {self._database.now} - coalesce(renewed_at, 0) FROM lease"
        )
        if not found:
            return None
        owner, expires_at, age_s = found[0]
        return Holder(owner=str(owner), expires_at=float(expires_at), age_s=max(float(age_s), 0.0))

    def save_status(self, text: str) -> None:
        """Saves what the controller reports about itself."""
        with self._database.transaction(lasting=False):
            self._check_lease()
            set_meta(self._database, _STATUS, text)

    def status(self) -> str | None:
        """Returns what the controller last reported about itself; None if nothing yet."""
        return meta(self._database, _STATUS)

    def _check_lease(self) -> None:
        if self._owner is None:
            return
        found = self._database.rows("SELECT owner FROM lease")
        holder = str(found[0][0]) if found else None
        if holder != self._owner:
            raise InvariantError(
                f"store {self.name}: controller {self._owner} lost its lease to {holder or 'another controller'}; "
                "restart it"
            )
        check_epoch(self._database, self._epoch)

    def damage(self, *, full: bool = False) -> list[str]:
        """Returns the faults that the database finds in its own pages."""
        return self._database.damage(full=full)

    def close(self) -> None:
        """Closes the connection; the lease stays until it expires or is released."""
        self._database.close()


def check_epoch(sql: Sql, epoch: int) -> None:
    """Raises an InvariantError unless the lease has this epoch; call it inside the transaction of a change."""
    found = int(meta(sql, _EPOCH) or 0)
    if found != epoch:
        raise InvariantError(
            f"store {sql.name}: the lease of epoch {epoch} was lost to a controller of epoch {found}; restart this one"
        )


def decoded(data: object, what: str, store: str) -> Record:
    """Decodes the record in ``data``; InputError if that is not possible."""
    try:
        return decode_row(data if isinstance(data, bytes) else b"")
    except (msgspec.MsgspecError, zlib.error) as error:
        raise StoreError(f"store {store} is damaged: {what} cannot be read ({error})") from error
