"""The audit log as the API writes it: who asks is a context variable, so that no route can forget to say it.

Authentication sets the actor of a request; ``attribution`` names him beside every event that the request puts into the inbox.
Sign-ins and refusals change nothing in the store: a thread writes them. Refusals are counted by address and written at most
once a minute each, so that a flood of guesses does not fill the store.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing
from contextvars import ContextVar
from typing import NamedTuple

import msgspec

from coadapt.errors import CoadaptError
from coadapt.model import AnyEvent, JobSpec, JobSubmitted, Measured, QuotaSet, SpecChanged
from coadapt.store.audit_log import Attribution, AuditLog
from coadapt.units import format_duration

log = logging.getLogger(__name__)

Row = tuple[Attribution, str, str]
#: Seconds within which refusals of one address make one row; addresses that are told apart.
_COUNTED_S, _MOST_ADDRESSES = 60.0, 100
#: Rows that wait to be written.
_MOST_WAITING = 1000
#: Seconds between two clearings, and until a store that was away is tried again.
_PRUNE_S, _AGAIN_S = 3600.0, 5.0
#: Seconds after which a user who comes through a proxy signs in again, as far as the audit log is concerned.
_SESSION_S = 12 * 3600.0
_OTHERS = "(others)"


class Actor(NamedTuple):
    """Who makes a request, how it was proved, and from where."""

    name: str
    role: str
    via: str
    address: str


_actor: ContextVar[Actor | None] = ContextVar("actor", default=None)


def set_actor(actor: Actor | None) -> None:
    """Sets the actor of this request; None: a job, or nobody."""
    _actor.set(actor)


def attribution(detail: str = "") -> Attribution | None:
    """Returns the actor of this request with a detail; None if there is none."""
    actor = _actor.get()
    if actor is None:
        return None
    return Attribution(actor=actor.name, role=actor.role, via=actor.via, address=actor.address, detail=detail)


def actor_name() -> str:
    """Returns the name of the actor of this request; empty if there is none."""
    actor = _actor.get()
    return "" if actor is None else actor.name


def attributed(event: AnyEvent, by: str) -> AnyEvent:
    """Returns the event with the name of the actor, if it has a place for it."""
    return msgspec.structs.replace(event, by=by) if getattr(event, "by", None) == "" else event


def detail_of(event: AnyEvent, before: JobSpec | QuotaSet | None) -> str:
    """Describes a change in a few words. ``before``: the specification, or what was granted, that is replaced."""
    if isinstance(event, JobSubmitted):
        return _size(event.spec) + (f", team {event.spec.team}" if event.spec.team else "")
    if isinstance(event, SpecChanged) and isinstance(before, JobSpec):
        return ", ".join(_differences(before, event.spec))
    if isinstance(event, QuotaSet):
        old = before if isinstance(before, QuotaSet) else QuotaSet(group=event.group)
        return ", ".join(_granted(old, event))
    known = {"job", "node", "group", "by", "type", "spec"}
    values = {name: value for name, value in msgspec.to_builtins(event).items() if name not in known}
    return ", ".join(f"{name} {value}" for name, value in values.items())


def is_audited(event: AnyEvent) -> bool:
    """Returns False for reports of jobs, which are measurements and no changes."""
    return not isinstance(event, Measured)


def _size(spec: JobSpec) -> str:
    least, most = (count * spec.gpus_per_replica for count in (spec.worker.min, spec.worker.max))
    gpus = f"{least}..{most} GPUs" if least != most else f"{most} GPU{'' if most == 1 else 's'}"
    return gpus + (f", priority {spec.priority:g}" if spec.priority else "")


def _differences(before: JobSpec, after: JobSpec) -> list[str]:
    parts = []
    if before.priority != after.priority:
        parts.append(f"priority {before.priority:g} -> {after.priority:g}")
    for name, label in (("deadline_s", "deadline"), ("time_limit_s", "time limit")):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            parts.append(f"{label} {_time(old)} -> {_time(new)}")
    if before.roles != after.roles:
        parts.append(
            f"{_size(msgspec.structs.replace(before, priority=0))} -> {_size(msgspec.structs.replace(after, priority=0))}"
        )
    return parts or ["no change"]


def _granted(before: QuotaSet, after: QuotaSet) -> list[str]:
    """What changed of the quota, the budgets and the members; an event states all, also those that stay."""
    parts = []
    if before.gpus != after.gpus:
        parts.append(f"{_limit(before.gpus, 'GPU')} -> {_limit(after.gpus, 'GPU')}")
    if before.priority != after.priority:
        parts.append(f"priority up to {before.priority} -> {after.priority}")
    if before.deadlines != after.deadlines:
        parts.append(f"deadlines: {_limit(before.deadlines, 'job')} -> {_limit(after.deadlines, 'job')}")
    if before.members != after.members:
        parts.append(f"members: {_members(before.members)} -> {_members(after.members)}")
    return parts or ["no change"]


def _time(seconds: float | None) -> str:
    return "none" if seconds is None else format_duration(seconds)


def _members(names: tuple[str, ...] | None) -> str:
    return "no list" if names is None else ", ".join(names) or "none"


def _limit(most: int | None, noun: str) -> str:
    return "no limit" if most is None else f"{most} {noun}{'' if most == 1 else 's'}"


class AuditTrail:
    """Writes sign-ins, refusals and uploads, in a thread; removes rows that are older than ``keep_s``.

    Used from one event loop. While the store is away up to a thousand rows wait; more are dropped, which is logged.
    """

    def __init__(
        self,
        open_log: Callable[[], AuditLog],
        *,
        keep_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open, self._keep_s, self._clock = open_log, keep_s, clock
        self._rows: queue.Queue[Row | None] = queue.Queue(_MOST_WAITING)
        #: By address: when its last row was written, and how many refusals came since.
        self._refusals: dict[str, tuple[float, int]] = {}
        self._seen: dict[tuple[str, str], float] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="audit-trail", daemon=True)
        self._thread.start()

    def note(self, who: Attribution, action: str, subject: str = "") -> None:
        """Queues a row."""
        try:
            self._rows.put_nowait((who, action, subject))
        except queue.Full:
            log.error("the audit log cannot be written; %s of %s was dropped", action, who.actor)

    def proxied(self, actor: Actor) -> None:
        """Counts the first request of a user whom a proxy signed in as a sign-in, every twelve hours."""
        key, now = (actor.name, actor.address), self._clock()
        if now - self._seen.get(key, -_SESSION_S) < _SESSION_S:
            return
        if len(self._seen) >= _MOST_WAITING:
            self._seen.clear()
        self._seen[key] = now
        self.note(
            Attribution(actor=actor.name, role=actor.role, via=actor.via, address=actor.address), "sign-in"
        )

    def refused(self, address: str, why: str) -> None:
        """Counts a refused credential: the first of an address at once, further ones together after a minute."""
        now = self._clock()
        for other, (at, count) in list(self._refusals.items()):
            if now - at >= _COUNTED_S:
                del self._refusals[other]
                if count:
                    self._write_refusal(other, f"{count} more within {_COUNTED_S:.0f} s")
        if address not in self._refusals and len(self._refusals) >= _MOST_ADDRESSES:
            address = _OTHERS
        known = self._refusals.get(address)
        if known is None:
            self._refusals[address] = (now, 0)
            self._write_refusal(address, why)
        else:
            self._refusals[address] = (known[0], known[1] + 1)

    def _write_refusal(self, address: str, why: str) -> None:
        self.note(Attribution(actor="", address=address, detail=why), "refused")

    def close(self) -> None:
        """Writes what waits, if the store takes it, and ends the thread."""
        for address, (_, count) in self._refusals.items():
            if count:
                self._write_refusal(address, f"{count} more")
        self._stopped = True
        try:
            self._rows.put_nowait(None)
        except queue.Full:
            log.error("the audit log cannot be written; %d rows are dropped", self._rows.qsize())
            return
        self._thread.join()

    def _run(self) -> None:
        pruned = -_PRUNE_S
        waiting: list[Row] = []
        going = True
        while going:
            try:
                row = self._rows.get(timeout=_AGAIN_S if waiting else _PRUNE_S)
                going = row is not None
                if row is not None:
                    waiting.append(row)
            except queue.Empty:
                pass
            if len(waiting) < _MOST_WAITING and not self._rows.empty() and going:
                continue
            try:
                with closing(self._open()) as audit:
                    if waiting:
                        audit.add(*waiting)
                        waiting.clear()
                    if self._keep_s is not None and time.monotonic() - pruned >= _PRUNE_S:
                        pruned = time.monotonic()
                        audit.prune(self._keep_s)
            except CoadaptError as error:
                log.error("the audit log cannot be written: %s", error)
                del waiting[:-_MOST_WAITING]
