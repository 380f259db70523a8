"""The audit log: who changed what, when, and from where.

A row about a change is written in the transaction of the change: one is never there without the other. Rows are only added;
the only way to remove them is ``prune``, by age. ``at`` is the store's own clock.
"""

from __future__ import annotations

import re

from coadapt.model import (
    AnyEvent,
    CancelRequested,
    Fact,
    JobSubmitted,
    NodeDrained,
    NodeOpened,
    PauseRequested,
    QuotaSet,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
)
from coadapt.store._sql import Sql

#: Characters of a value that comes from outside.
_MOST = 300
_COLUMNS = "number, at, actor, role, via, address, action, subject, detail"
_ACTIONS: dict[type, str] = {
    JobSubmitted: "submit",
    CancelRequested: "cancel",
    PauseRequested: "pause",
    ResumeRequested: "resume",
    RetryRequested: "retry",
    SpecChanged: "update",
    NodeDrained: "drain",
    NodeOpened: "open",
    QuotaSet: "quota",
}


class Attribution(Fact, frozen=True):
    """Who does something: the name and role, how they were proved (token, proxy, local), and the address."""

    actor: str
    role: str = ""
    via: str = ""
    address: str = ""
    #: What exactly is changed, in a few words.
    detail: str = ""


class AuditEntry(Fact, frozen=True):
    """One row: ``actor`` did ``action`` to ``subject`` (a job, node, group or token) at ``at``, in unix seconds."""

    number: int
    at: float
    actor: str
    role: str
    via: str
    address: str
    action: str
    subject: str
    detail: str


def action_of(event: AnyEvent) -> str:
    """Returns the name of the action that an event asks for; that of the event where it has no other."""
    known = _ACTIONS.get(type(event))
    return known or re.sub(r"(?<!^)(?=[A-Z])", "-", type(event).__name__).lower()


def subject_of(event: AnyEvent) -> str:
    """Returns the name of what an event is about."""
    for name in ("job", "node", "group", "user", "team", "name"):
        if isinstance(found := getattr(event, name, None), str):
            return found
    return ""


def record(sql: Sql, who: Attribution, action: str, subject: str) -> None:
    """Adds a row; call it inside the transaction of the change."""
    sql.change(
        "INSERT INTO audit (at, actor, role, via, address, action, subject, detail) "
        f"VALUES ({sql.now}, ?, ?, ?, ?, ?, ?, ?)",
        *(_safe(value) for value in (who.actor, who.role, who.via, who.address, action, subject, who.detail)),
    )


def _safe(value: str) -> str:
    """PostgreSQL stores no NUL, and neither database lone surrogates."""
    return value[:_MOST].replace("\0", "").encode(errors="replace").decode()


class AuditLog:
    """The audit log of a store. Every call is one transaction."""

    def __init__(self, database: Sql) -> None:
        self._database = database

    def add(self, *rows: tuple[Attribution, str, str]) -> None:
        """Adds rows (who, action, subject) about what changes nothing in the store, such as a sign-in."""
        with self._database.transaction():
            for row in rows:
                record(self._database, *row)

    def read(
        self,
        *,
        actor: str = "",
        subject: str = "",
        since: float | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        """Returns rows, newest first.

        Args:
            actor: only of this user.
            subject: only about this job, node, group or token.
            since: only from this time on, in unix seconds.
            before: only with a smaller number.
            limit: most rows.
        """
        wanted: list[tuple[str, object]] = []
        if actor:
            wanted.append(("actor = ?", actor))
        if subject:
            wanted.append(("subject = ?", subject))
        if since is not None:
            wanted.append(("at >= ?", since))
        if before is not None:
            wanted.append(("number < ?", before))
        where = f"WHERE {' AND '.join(text for text, _ in wanted)} " if wanted else ""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM audit {where}ORDER BY number DESC LIMIT ?",
            *(value for _, value in wanted),
            limit,
        )
        return [AuditEntry(**dict(zip(_COLUMNS.split(", "), row, strict=True))) for row in rows]

    def prune(self, older_than_s: float) -> int:
        """Removes rows that are older; returns how many."""
        with self._database.transaction(lasting=False):
            return self._database.change(
                f"DELETE FROM audit WHERE at < {self._database.now} - ?", older_than_s
            )

    def close(self) -> None:
        """Closes the connection."""
        self._database.close()
