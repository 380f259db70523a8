"""The store in PostgreSQL, by its URL; needs the extra ``postgres``.

It is for a controller whose own disk must not hold the log. The store's tables are in a schema of their own,
``coadapt`` unless the URL says ``?schema=NAME``. Writers run one by one, by an advisory lock that lasts as long as their
transaction: what they read inside it stays true, as in SQLite.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from coadapt.errors import InputError, StoreError
from coadapt.store._sql import POSTGRES, VERSION, Row

SCHEMES = ("postgresql://", "postgres://")
#: Seconds that a statement or a connection may take.
ANSWER_S = 10.0
#: Seconds that a transaction may stand still.
_IDLE_S = 10.0
#: A failure that took so long was no quick refusal: the server is asked again after a pause, which grows.
_SLOW_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 2.0, 15.0


class PostgresDatabase:
    """Connects when it is created, and again after the connection broke.

    A server that does not answer within ``answer_s`` is not asked again for a while, by any connection of this process
    to the same URL: callers get a StoreError at once and continue with what they know.
    """

    now = "extract(epoch FROM clock_timestamp())::float8"

    def __init__(self, url: str, *, answer_s: float = ANSWER_S) -> None:
        self._psycopg, self._answer_s = _library(), answer_s
        self._url, self._schema = _parts(url)
        self._connection: Any = None
        self._inside = False
        with self.guard():
            self._prepare()

    @property
    def name(self) -> str:
        """Name of the store in messages, without a password."""
        return _shown(self._url)

    def rows(self, sql: str, *values: object) -> list[Row]:
        """Runs a query and returns its rows."""
        with self.guard():
            rows: list[Row] = self._open().execute(sql.replace("?", "%s"), values).fetchall()
            return rows

    def change(self, sql: str, *values: object) -> int:
        """Runs a statement and returns the number of rows it changed."""
        with self.guard():
            return int(self._open().execute(sql.replace("?", "%s"), values).rowcount)

    @contextmanager
    def transaction(self, *, lasting: bool = True) -> Iterator[None]:
        """Opens a transaction under the advisory lock of writers; ``lasting``: durable when it returns."""
        with self.guard():
            connection = self._open()
            with connection.transaction():
                self._inside = True
                try:
                    if not lasting:
                        connection.execute("SET LOCAL synchronous_commit = off")
                    connection.execute(
                        "SELECT pg_advisory_xact_lock(hashtext(%s))", (f"coadapt {self._schema}",)
                    )
                    yield
                finally:
                    self._inside = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Opens a transaction that reads the database as of one moment and blocks no other."""
        with self.guard():
            connection = self._open()
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                self._inside = True
                try:
                    yield
                finally:
                    self._inside = False

    def damage(self, *, full: bool) -> list[str]:
        """Returns nothing: a server checks its pages itself (``pg_amcheck``)."""
        return []

    def next_number(self) -> int:
        """Returns a number that no entry of the inbox has had."""
        return int(self.rows("SELECT nextval('inbox_number_seq')")[0][0])

    def skip_numbers(self, last: int) -> None:
        """Makes sure that no entry of the inbox gets a number up to ``last``."""
        if last > 0:
            self.rows("SELECT setval('inbox_number_seq', ?)", last)
        # and none of the audit log one that is there
        self.rows(
            "SELECT setval(pg_get_serial_sequence('audit', 'number'), max(number)) FROM audit HAVING max(number) > 0"
        )

    def size(self) -> int:
        """Returns the bytes that the tables and their indices take."""
        found = self.rows(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c"
            " WHERE c.relkind = 'r' AND c.relnamespace = to_regnamespace(?)",
            self._schema,
        )
        return int(found[0][0])

    def give_back(self, most_bytes: int) -> int:
        """Returns 0: the server's autovacuum makes the space of removed rows usable again."""
        return 0

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turns the database's errors into a StoreError."""
        began = time.monotonic()
        outage = _outages.get(self._url)
        probing = _probing.get(self._url, get_ident()) == get_ident()
        if outage is not None and (began < outage.until or not probing) and not self._inside:
            raise StoreError(
                f"store {self.name} did not answer; it is asked again in {max(outage.until - began, 0):.0f} s"
            )
        try:
            yield
        except self._psycopg.Error as error:
            ended = time.monotonic()
            if ended - began >= _SLOW_S:
                pause_s = _FIRST_PAUSE_S if outage is None else min(2 * outage.pause_s, _LONGEST_PAUSE_S)
                _outages[self._url] = _Outage(ended + pause_s, pause_s)
            said = " ".join(str(error).split()) or type(error).__name__
            raise StoreError(
                f"store {self.name}: {said}; is the server running, and may we write there?"
            ) from error
        else:
            if outage is not None:
                _outages.pop(self._url, None)

    def _open(self) -> Any:
        if self._connection is not None and (self._inside or not self._connection.closed):
            return self._connection
        connection = _limited_connection(self._answer_s).connect(
            self._url, autocommit=True, connect_timeout=max(round(self._answer_s), 2)
        )
        try:
            # the server ends what we no longer wait for, so that its locks go with it
            connection.execute(f"SET statement_timeout TO {round(1000 * self._answer_s)}")
            # a process that was stopped inside a transaction must not keep the lock of writers
            connection.execute(f"SET idle_in_transaction_session_timeout TO {round(1000 * _IDLE_S)}")
            connection.execute(f"SET search_path TO {self._schema}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self) -> None:
        try:
            connection = self._open()
            with connection.transaction():
                # concurrent CREATE IF NOT EXISTS can fail
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"coadapt {self._schema}",))
                known = self._version_there(connection)
                if known < VERSION:
                    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
                    for statement in POSTGRES.split(";"):
                        connection.execute(statement)
                    connection.execute(
                        "INSERT INTO meta VALUES ('identity', %s) ON CONFLICT DO NOTHING", (uuid.uuid4().hex,)
                    )
                    connection.execute(
                        "INSERT INTO meta VALUES ('version', %s) "
                        "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                        (str(VERSION),),
                    )
        except BaseException:
            self.close()
            raise

    def _version_there(self, connection: Any) -> int:
        found = connection.execute("SELECT to_regclass(%s)", (f"{self._schema}.meta",)).fetchone()
        if found is None or found[0] is None:
            return 0
        row = connection.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
        version = int(row[0]) if row is not None else 0
        if version > VERSION:
            raise InputError(
                f"store {self.name} has schema {version}, this coadapt reads up to {VERSION}; "
                "use the newer coadapt that wrote it"
            )
        return version


class _Outage(NamedTuple):
    """Until when a server is not asked (monotonic), and how long that pause is."""

    until: float
    pause_s: float


#: Servers that did not answer, by URL; and the only thread that asks them again, where there is one.
_outages: dict[str, _Outage] = {}
_probing: dict[str, int] = {}


@contextmanager
def probing_thread(url: str) -> Iterator[None]:
    """Makes the calling thread the only one of this process that asks a server again which did not answer."""
    if not url.startswith(SCHEMES):
        yield
        return
    name = _parts(url)[0]
    _probing[name] = get_ident()
    try:
        yield
    finally:
        _probing.pop(name, None)


@cache
def _limited_connection(answer_s: float) -> Any:
    """The class of connections that wait for an answer at most so long.

    A server that is frozen answers neither a statement nor its timeout, and TCP does not notice.
    """
    psycopg = _library()

    class LimitedConnection(psycopg.Connection):  # type: ignore[name-defined,misc]
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            deadline = time.monotonic() + answer_s
            try:
                return super().wait(_until(gen, deadline), *args, **kwargs)
            except _NoAnswerError:
                # what it would say later belongs to nobody
                self.close()
                raise psycopg.OperationalError(f"no answer within {answer_s:g} s") from None

    return LimitedConnection


class _NoAnswerError(Exception):
    """The time of a statement is over."""


def _until(gen: Any, deadline: float) -> Any:
    """Psycopg's generator of what to wait for; it is resumed at least every tenth of a second."""
    ready = None
    while True:
        try:
            waits_for = next(gen) if ready is None else gen.send(ready)
        except StopIteration as end:
            return end.value
        ready = yield waits_for
        if time.monotonic() > deadline:
            gen.close()
            raise _NoAnswerError


def _library() -> Any:
    try:
        import psycopg
    except ImportError:
        raise InputError(
            "a store in PostgreSQL needs psycopg, which is not installed; pip install 'coadapt[postgres]'"
        ) from None
    return psycopg


def _parts(url: str) -> tuple[str, str]:
    """The URL as libpq takes it, and the name of the schema."""
    split = urlsplit(url)
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    schema = query.pop("schema", "coadapt")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise InputError(f"schema {schema!r} must consist of lowercase letters, digits and _")
    return urlunsplit(split._replace(query=urlencode(query))), schema


def _shown(url: str) -> str:
    """Without password and options."""
    split = urlsplit(url)
    user, at, host = split.netloc.rpartition("@")
    return f"{split.scheme}://{user.partition(':')[0]}{at}{host}{split.path}"
