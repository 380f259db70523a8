"""Opens a store by its name: a URL ``postgresql://...``, or the path of a SQLite file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from coadapt.errors import InputError, StoreError
from coadapt.store._sql import COPIED, Sql, set_meta
from coadapt.store.audit_log import AuditLog
from coadapt.store.inbox import SqlInbox
from coadapt.store.log import SqlLog
from coadapt.store.postgres import ANSWER_S, SCHEMES, PostgresDatabase
from coadapt.store.sqlite import Database, Synchronous
from coadapt.store.token_table import TokenStore

_ROWS = 5000
#: Seconds that a page of a backup may take.
_BACKUP_ANSWER_S = 600.0


class Store:
    """Location of log, inbox and tokens. Each call opens a new connection, for the calling thread."""

    def __init__(self, where: str, synchronous: Synchronous = "FULL", answer_s: float = ANSWER_S) -> None:
        self.where, self._synchronous, self._answer_s = where, synchronous, answer_s

    def log(self) -> SqlLog:
        """The log."""
        return SqlLog(self._connect())

    def inbox(self, epoch: Callable[[], int] | None = None) -> SqlInbox:
        """The inbox; for a controller with the ``epoch`` of its lease."""
        return SqlInbox(self._connect(), epoch)

    def writable(self, timeout_s: float) -> bool:
        """Returns True if the store takes a transaction within ``timeout_s``; False while another process blocks it."""
        try:
            with closing(self._connect(timeout_s)) as database, database.transaction():
                return True
        except StoreError:
            return False

    def tokens(self) -> TokenStore:
        """The tokens."""
        return TokenStore(self._connect())

    def connect(self) -> Sql:
        """A connection for tables of another component, which creates them itself."""
        return self._connect()

    def audit(self) -> AuditLog:
        """The audit log."""
        return AuditLog(self._connect())

    def backup(self, path: Path) -> None:
        """Copies everything as of one moment to a SQLite store that can be served; readers and writers do not wait.

        The copy has no lease and belongs to no home directory.
        """
        # nobody waits for it, and the last pages of a long log take a server long to find
        patient = Store(self.where, self._synchronous, max(self._answer_s, _BACKUP_ANSWER_S))
        with _whole_file(path) as part, closing(patient._connect()) as database:
            if damage := database.damage(full=False):
                raise StoreError(f"store {self.where} is damaged ({damage[0]}); a copy would be damaged, too")
            if isinstance(database, Database):
                database.copy_to(part)
            else:
                assert isinstance(database, PostgresDatabase)
                _copy(database, part)
            with closing(Database(part, synchronous="FULL")) as copy, copy.transaction():
                copy.change("DELETE FROM lease")
                copy.change("DELETE FROM meta WHERE key = 'home'")

    def fill_from(self, path: Path) -> None:
        """Copies the SQLite store ``path`` into this one, which must be empty; InputError if it is not."""
        with closing(self._connect()) as target, closing(Database(path, synchronous="OFF")) as source:
            ((records,),) = target.rows("SELECT count(*) FROM log")
            ((tokens,),) = target.rows("SELECT count(*) FROM tokens")
            if records or tokens:
                raise InputError(f"store {target.name} is not empty; name another, or another ?schema=NAME")
            with target.transaction():
                for key, value in source.rows(
                    "SELECT key, value FROM meta WHERE key NOT IN ('version', 'holds')"
                ):
                    set_meta(target, str(key), str(value))
                for table, columns in COPIED.items():
                    _copy_table(source, target, table, columns)
                target.skip_numbers(source.next_number() - 1)

    def _connect(self, timeout_s: float | None = None) -> Sql:
        if self.where.startswith(SCHEMES):
            return PostgresDatabase(self.where, answer_s=timeout_s or self._answer_s)
        if timeout_s is None:
            return Database(Path(self.where), synchronous=self._synchronous)
        return Database(Path(self.where), synchronous=self._synchronous, timeout_s=timeout_s)


def open_store(where: str | Path, *, synchronous: Synchronous = "FULL", answer_s: float = ANSWER_S) -> Store:
    """Returns the store at ``where``, created on first use; InputError if ``where`` is not a file or a PostgreSQL URL.

    ``answer_s``: longest wait for an answer of the server.
    """
    name = str(where)
    if "://" in name and not name.startswith(SCHEMES):
        raise InputError(f"store {name!r} is neither a file nor a URL postgresql://USER@HOST/DATABASE")
    return Store(name, synchronous, answer_s)


def _copy(source: PostgresDatabase, path: Path) -> None:
    with source.reading(), closing(Database(path, synchronous="OFF")) as copy, copy.transaction():
        for key, value in source.rows("SELECT key, value FROM meta WHERE key <> 'version'"):
            set_meta(copy, str(key), str(value))
        for table, columns in COPIED.items():
            _copy_table(source, copy, table, columns)
        # numbers of removed entries must not be used again
        ((last,),) = source.rows("SELECT last_value FROM inbox_number_seq")
        copy.skip_numbers(int(last))


def _copy_table(source: Sql, copy: Sql, table: str, columns: tuple[str, ...]) -> None:
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    at = 0
    while rows := source.rows(f"SELECT {names} FROM {table} ORDER BY 1 LIMIT ? OFFSET ?", _ROWS, at):
        for row in rows:
            copy.change(f"INSERT INTO {table} ({names}) VALUES ({marks})", *row)
        at += len(rows)


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary file, which becomes ``path`` at the end unless there is an error."""
    if path.exists():
        raise InputError(f"{path} exists; choose another name for the backup")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        yield part
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                part.with_name(part.name + ending).unlink()
