"""The hub's rows in the cluster's store: sessions of agents, commands on their way, gangs, events, units of an engine.

Every change is made inside ``transaction``, which is durable when it ends, and fails when another hub has taken over. The
statements are the same for SQLite and PostgreSQL; values are text (JSON) and numbers only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from coadapt.errors import CoadaptError
from coadapt.executors.agent.session_messages import Told
from coadapt.executors.gang.gang_table import Key
from coadapt.executors.gang.saved_gang import SavedGang
from coadapt.executors.node.protocol import Happened, Held
from coadapt.model import Action, AnyEvent, JobFinished, JobStopped, Measured, Node, Placement, StartJob
from coadapt.store import Sql
from coadapt.store.token_table import bind_nodes

_TABLES = """
CREATE TABLE IF NOT EXISTS hub_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS hub_applied (id BIGINT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS hub_attempts (
    job TEXT NOT NULL, attempt BIGINT NOT NULL, number BIGINT NOT NULL, token TEXT NOT NULL, placement TEXT NOT NULL,
    machines TEXT NOT NULL, end_number BIGINT, gang TEXT, PRIMARY KEY (job, attempt)
);
CREATE TABLE IF NOT EXISTS hub_events (number BIGINT PRIMARY KEY, event TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS hub_sessions (session TEXT PRIMARY KEY, data TEXT NOT NULL, reports BIGINT NOT NULL, gone TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS hub_orders (session TEXT NOT NULL, number BIGINT NOT NULL, told TEXT NOT NULL, PRIMARY KEY (session, number));
CREATE TABLE IF NOT EXISTS hub_units (name TEXT PRIMARY KEY, data TEXT NOT NULL, state TEXT NOT NULL)
"""
#: Numbers of actions, ended attempts and sessions that are remembered.
KEPT = 100_000
#: Most unacknowledged events at which measurements are still recorded: a controller may be away for long.
_MOST_UNHEARD = 20_000
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_T = TypeVar("_T")


class SavedSession(msgspec.Struct, frozen=True, kw_only=True):
    """One life of an agent."""

    session: str
    nodes: tuple[Node, ...]
    machine: str
    boot: str
    version: str = ""
    unit: str = ""
    generation: str = ""
    #: Unix seconds; None: the machine stays.
    until: float | None = None
    #: Whether it sees the hub's place of checkpoints.
    shares_checkpoints: bool = False
    joined_at: float = 0.0
    #: Name of the token that it joined with, and the hash of its machine's key; empty: not known.
    token: str = ""
    key_hash: str = ""


class SavedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that has not ended."""

    key: Key
    token: str
    #: Sessions that were told of it.
    machines: tuple[str, ...]
    gang: SavedGang | None


class SavedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """Room that was asked of an engine."""

    name: str
    node: str
    gpus: int
    gpu_type: str
    asked_at: float
    #: The life of it that was let in, and its session; empty: none yet.
    generation: str = ""
    session: str = ""


class TakenOverError(CoadaptError):
    """Another hub writes to the store."""


class HubJournal:
    """``sql`` is a connection of its own. The newest journal that is opened is the only one that may write."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql
        with sql.transaction():
            for statement in _TABLES.split(";"):
                sql.change(statement)
            self.epoch = int(self._meta("epoch") or 0) + 1
            self._set_meta("epoch", str(self.epoch))

    @contextmanager
    def transaction(self, *, lasting: bool = True) -> Iterator[None]:
        """All changes inside become durable together; TakenOverError if another hub has taken over."""
        with self._sql.transaction(lasting=lasting):
            if self._meta("epoch") != str(self.epoch):
                raise TakenOverError("another hub has taken over the store; this one ends")
            yield

    def close(self) -> None:
        """Closes the connection."""
        self._sql.close()

    # -- the controller (as the keeper's journal) -----------------------------------------------------

    def bind(self, log: str) -> str:
        """Ties the hub to the first event log that uses it; returns the log it is tied to."""
        with self.transaction():
            if (bound := self._meta("log")) is None:
                self._set_meta("log", bound := log)
            return bound

    def reach_epoch(self, epoch: int) -> int:
        """Notes the epoch of a controller; returns the largest that was ever noted."""
        with self.transaction():
            largest = max(int(self._meta("controller_epoch") or 0), epoch)
            self._set_meta("controller_epoch", str(largest))
        return largest

    def accept(self, actions: Iterable[Action]) -> list[tuple[Action, str]]:
        """Notes actions, in a transaction; returns those to carry out, each with the token of its attempt if it starts one."""
        fresh: list[tuple[Action, str]] = []
        floor = int(self._meta("floor") or 0)
        for action in actions:
            if 0 <= action.id < floor:
                continue
            if action.id >= 0 and not self._sql.change(
                "INSERT INTO hub_applied (id) VALUES (?) ON CONFLICT (id) DO NOTHING", action.id
            ):
                continue
            token = uuid.uuid4().hex
            if isinstance(action, StartJob) and not self._note_start(action, token):
                continue
            fresh.append((action, token))
        return fresh

    def held(self) -> list[Held]:
        """Returns the attempts that have not ended, or whose end was not acknowledged."""
        rows = self._sql.rows(
            "SELECT job, attempt, placement, end_number FROM hub_attempts WHERE end_number IS NULL "
            "OR end_number IN (SELECT number FROM hub_events) ORDER BY number"
        )
        return [
            Held(job=job, attempt=attempt, placement=_decoded(text, Placement), ended=end is not None)
            for job, attempt, text, end in rows
        ]

    def unheard(self, after: int) -> list[Happened]:
        """Returns the events with a larger number than ``after`` that were not acknowledged."""
        rows = self._sql.rows("SELECT number, event FROM hub_events WHERE number > ? ORDER BY number", after)
        return [Happened(number=number, event=_events.decode(text)) for number, text in rows]

    def acknowledge(self, number: int) -> None:
        """Removes events up to ``number``, which are in the controller's log."""
        with self.transaction(lasting=False):
            self._sql.change("DELETE FROM hub_events WHERE number <= ?", number)

    def emit(self, event: AnyEvent) -> int:
        """Adds an event, in a transaction; returns its number."""
        number = self._next("event")
        self._sql.change(
            "INSERT INTO hub_events (number, event) VALUES (?, ?)",
            number,
            msgspec.json.encode(event).decode(),
        )
        return number

    def measured(self, events: Sequence[Measured]) -> None:
        """Adds measurements, in a transaction, up to a bound of unacknowledged events."""
        ((unheard,),) = self._sql.rows("SELECT count(*) FROM hub_events")
        for event in events[: max(_MOST_UNHEARD - unheard, 0)]:
            self.emit(event)

    # -- attempts ------------------------------------------------------------------------------------

    def place(self, key: Key, placement: Placement) -> None:
        """Sets what an attempt holds."""
        self._sql.change(
            "UPDATE hub_attempts SET placement = ? WHERE job = ? AND attempt = ?", _text(placement), *key
        )

    def ended(self, event: JobFinished | JobStopped) -> None:
        """Adds the end of an attempt, once."""
        key = (event.job, event.attempt)
        open_still = "job = ? AND attempt = ? AND end_number IS NULL"
        if self._sql.rows(f"SELECT 1 FROM hub_attempts WHERE {open_still}", *key):
            number = self.emit(event)
            self._sql.change(
                f"UPDATE hub_attempts SET end_number = ?, gang = NULL WHERE {open_still}", number, *key
            )

    def save_gang(self, key: Key, gang: SavedGang, machines: Sequence[str]) -> None:
        """Writes the state of a gang and the sessions that know of its attempt."""
        self._sql.change(
            "UPDATE hub_attempts SET gang = ?, machines = ? WHERE job = ? AND attempt = ?",
            _text(gang),
            _text(list(machines)),
            *key,
        )

    def unfinished(self) -> list[SavedAttempt]:
        """Returns all attempts that have not ended, in the order they were started."""
        rows = self._sql.rows(
            "SELECT job, attempt, token, machines, gang FROM hub_attempts WHERE end_number IS NULL ORDER BY number"
        )
        return [
            SavedAttempt(
                key=(job, attempt),
                token=token,
                machines=_decoded(machines, tuple[str, ...]),
                gang=None if gang is None else _decoded(gang, SavedGang),
            )
            for job, attempt, token, machines, gang in rows
        ]

    def machines_of(self, key: Key) -> tuple[str, ...]:
        """Returns the sessions that had replicas of an attempt, ended or not."""
        rows = self._sql.rows("SELECT machines FROM hub_attempts WHERE job = ? AND attempt = ?", *key)
        return _decoded(rows[0][0], tuple[str, ...]) if rows else ()

    # -- sessions and commands -----------------------------------------------------------------------

    def add_session(self, session: SavedSession) -> None:
        """Adds a session; the claim of its nodes."""
        self._sql.change(
            "INSERT INTO hub_sessions (session, data, reports, gone) VALUES (?, ?, 0, '')",
            session.session,
            _text(session),
        )

    def bind_token(self, token: str, nodes: Iterable[str]) -> None:
        """Binds a token to the nodes of its first machine; InputError if it may not be used for these."""
        bind_nodes(self._sql, token, nodes)

    def sessions(self) -> list[tuple[SavedSession, int]]:
        """Returns the sessions that are not gone, with the number of their last report."""
        rows = self._sql.rows("SELECT data, reports FROM hub_sessions WHERE gone = ''")
        return [(_decoded(data, SavedSession), reports) for data, reports in rows]

    def session(self, name: str) -> tuple[SavedSession, str] | None:
        """Returns a session and why it is gone (empty: it is not); None if there never was one."""
        rows = self._sql.rows("SELECT data, gone FROM hub_sessions WHERE session = ?", name)
        return (_decoded(rows[0][0], SavedSession), str(rows[0][1])) if rows else None

    def reported(self, session: str, number: int) -> None:
        """Notes the number of the last report of a session."""
        self._sql.change("UPDATE hub_sessions SET reports = ? WHERE session = ?", number, session)

    def session_gone(self, session: str, why: str) -> None:
        """Ends a session, with all commands on their way to it."""
        self._sql.change("UPDATE hub_sessions SET gone = ? WHERE session = ?", why, session)
        self._sql.change("DELETE FROM hub_orders WHERE session = ?", session)

    def order(self, session: str, told: Told) -> None:
        """Adds a command for a session."""
        self._sql.change(
            "INSERT INTO hub_orders (session, number, told) VALUES (?, ?, ?)",
            session,
            told.number,
            _text(told),
        )

    def orders(self, session: str) -> list[Told]:
        """Returns the commands that a session may not have."""
        rows = self._sql.rows("SELECT told FROM hub_orders WHERE session = ? ORDER BY number", session)
        return [_decoded(text, Told) for (text,) in rows]

    def delivered(self, session: str, number: int) -> None:
        """Removes commands that a session has."""
        self._sql.change("DELETE FROM hub_orders WHERE session = ? AND number <= ?", session, number)

    def next_order(self) -> int:
        """Returns a number larger than that of any command before."""
        return self._next("order")

    # -- units ---------------------------------------------------------------------------------------

    def save_unit(self, unit: SavedUnit, state: str) -> None:
        """Writes a unit; ``state``: wanted, released or over."""
        self._sql.change(
            "INSERT INTO hub_units (name, data, state) VALUES (?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET data = excluded.data, state = excluded.state",
            unit.name,
            _text(unit),
            state,
        )

    def units(self) -> list[tuple[SavedUnit, str]]:
        """Returns the units that are not over, with their state."""
        rows = self._sql.rows("SELECT data, state FROM hub_units WHERE state <> 'over' ORDER BY name")
        return [(_decoded(data, SavedUnit), str(state)) for data, state in rows]

    # -- small things --------------------------------------------------------------------------------

    def nodes(self) -> list[str]:
        """Returns the names of nodes that were announced and not lost since."""
        return _decoded(self._meta("nodes") or "[]", list[str])

    def set_nodes(self, names: Sequence[str]) -> None:
        """Sets the names of announced nodes, in a transaction."""
        self._set_meta("nodes", _text(list(names)))

    def text(self, key: str) -> str | None:
        """Returns a text that the hub keeps under a name."""
        return self._meta(key)

    def set_text(self, key: str, value: str) -> None:
        """Keeps a text under a name, in a transaction."""
        self._set_meta(key, value)

    def clock(self) -> float:
        """Returns the last time that was written down; time never goes back beyond it."""
        return float(self._meta("clock") or 0.0)

    def set_clock(self, now: float) -> None:
        """Writes the time down, in a transaction."""
        self._set_meta("clock", repr(now))

    def prune(self, kept: int = KEPT) -> None:
        """Forgets all but the newest ``kept`` actions and ended attempts, and sessions and units that are long over."""
        with self.transaction(lasting=False):
            ((newest,),) = self._sql.rows("SELECT coalesce(max(id), -1) FROM hub_applied")
            floor = max(newest - kept, int(self._meta("floor") or 0))
            self._set_meta("floor", str(floor))
            self._sql.change("DELETE FROM hub_applied WHERE id < ?", floor)
            self._sql.change(
                "DELETE FROM hub_attempts WHERE end_number IS NOT NULL AND end_number NOT IN (SELECT number FROM hub_events) "
                "AND number <= (SELECT max(number) FROM hub_attempts) - ?",
                kept,
            )

    def _note_start(self, action: StartJob, token: str) -> bool:
        ((newest,),) = self._sql.rows(
            "SELECT coalesce(max(attempt), 0) FROM hub_attempts WHERE job = ?", action.job
        )
        if action.attempt <= newest:
            return False
        self._sql.change(
            "INSERT INTO hub_attempts (job, attempt, number, token, placement, machines) VALUES (?, ?, ?, ?, ?, '[]')",
            action.job,
            action.attempt,
            self._next("attempt"),
            token,
            _text(action.placement),
        )
        return True

    def _next(self, what: str) -> int:
        number = int(self._meta(f"last_{what}") or 0) + 1
        self._set_meta(f"last_{what}", str(number))
        return number

    def _meta(self, key: str) -> str | None:
        rows = self._sql.rows("SELECT value FROM hub_meta WHERE key = ?", key)
        return str(rows[0][0]) if rows else None

    def _set_meta(self, key: str, value: str) -> None:
        self._sql.change(
            "INSERT INTO hub_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            key,
            value,
        )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _decoded(text: str, kind: type[_T]) -> _T:
    return msgspec.json.decode(text, type=kind)


def controller_epoch(sql: Sql) -> int:
    """Returns the largest epoch of a controller that a hub has noted, and closes the connection; for processes beside the hub."""
    try:
        for statement in _TABLES.split(";"):
            sql.change(statement)
        rows = sql.rows("SELECT value FROM hub_meta WHERE key = 'controller_epoch'")
        return int(rows[0][0]) if rows else 0
    finally:
        sql.close()


def running_jobs(sql: Sql) -> set[str]:
    """Returns the jobs with an attempt that has not ended, and closes the connection; for processes beside the hub."""
    try:
        for statement in _TABLES.split(";"):
            sql.change(statement)
        return {str(job) for (job,) in sql.rows("SELECT job FROM hub_attempts WHERE end_number IS NULL")}
    finally:
        sql.close()
