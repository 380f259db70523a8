"""The hub: gangs above, sessions of agents below. What it decides is in the store before anybody hears of it.

``transact`` is the one way in: reports, actions and time go in, and the new states of gangs, events and commands are committed
together; only then are commands answered to agents. If the commit fails, the hub goes back to what the store has: agents send
their reports again, and the controller its actions.

A session is one life of an agent. It is gone by the agent's own word (it left, or its successor on the machine buried it), when
lease, grace and a margin have passed since it was last answered, when its machine has booted again, or when an administrator
vouches for it (docs/design/0025-engines.md). Only then do gangs hear that the machine is gone, and the node is lost.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from coadapt.errors import InputError, StoreError
from coadapt.executors.agent.session_messages import (
    MARGIN_S,
    OLDEST,
    PROOF,
    PROTOCOL,
    Admit,
    AgentLine,
    AgentsListed,
    Declared,
    Exchange,
    Exchanged,
    Forget,
    Join,
    Joined,
    Leave,
    Left,
    Measurements,
    Said,
    Told,
    WaitingLine,
)
from coadapt.executors.gang.gang import GangEvent, Record
from coadapt.executors.gang.gang_table import Addressed, GangTable, Key
from coadapt.executors.gang.messages import Command
from coadapt.executors.hub.engine_units import EndedForGoodError, EngineUnits
from coadapt.executors.hub.hub_journal import HubJournal, SavedSession
from coadapt.executors.hub.log_requests import LogRequests
from coadapt.executors.node.protocol import Apply
from coadapt.model import (
    JobFinished,
    JobStopped,
    Measured,
    Node,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    Placement,
    ReplicasReleased,
    ResizeJob,
    StartJob,
)
from coadapt.store.token_table import token_hash
from coadapt.wire.node_messages import Launch

log = logging.getLogger(__name__)

#: Commands in one answer.
_MOST_COMMANDS = 200
#: Seconds before a machine is taken away at which jobs are asked to leave it, beyond the grace: an engine's own signal comes up to
#: so early. No more than half of the time that the machine had.
_LEAVE_S = 180.0
#: Seconds beyond the grace for agents in units to leave when the hub ends.
_FAREWELL_S = 5.0
#: Seconds between two removals of commands that agents have.
_TIDY_S = 5.0
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_MOST_GPUS = 1024


def boot_time_s() -> float:
    """Returns seconds since this machine booted, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Session:
    """A session that is not gone: what is on its way to the agent, and when the agent was last answered."""

    def __init__(self, saved: SavedSession, reports: int, orders: Iterable[Told], renewed: float) -> None:
        self.saved, self.reports, self.renewed = saved, reports, renewed
        self.orders = deque(orders)
        self.delivered = 0
        #: Whether the agent was told that it is to leave.
        self.told_to_leave = False

    @property
    def name(self) -> str:
        """Name of the session."""
        return self.saved.session

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes."""
        return tuple(node.name for node in self.saved.nodes)

    def leave_at(self, grace_s: float) -> float:
        """Returns when jobs must be asked to leave, in unix seconds; inf: the machine stays."""
        until, joined_at = self.saved.until, self.saved.joined_at
        if until is None:
            return float("inf")
        return until - min(_LEAVE_S + grace_s, (until - joined_at) / 2)

    def received(self, number: int) -> None:
        """Notes that the agent has all commands up to ``number``."""
        while self.orders and self.orders[0].number <= number:
            self.delivered = self.orders.popleft().number

    def unsent(self, received: int) -> tuple[Told, ...]:
        """Returns the next commands that the agent does not have."""
        found = [told for told in self.orders if told.number > received]
        return tuple(found[:_MOST_COMMANDS])


class Hub:
    """Single-threaded; ``hub_process`` calls it. It may be asked anything before ``turn`` is called again.

    Args:
        directory: the hub's own, for its lock and socket.
        journal: its rows in the store.
        lease_s: seconds for which an agent may go on without an answer.
        grace_s: what a replica gets from SIGTERM to SIGKILL.
        checkpoints: the place of checkpoints that machines may share; None: there is none.
        units: room that an engine grants; None: machines join by themselves.
        boot_time: seconds since boot; replaced in tests.
    """

    def __init__(
        self,
        directory: Path,
        journal: HubJournal,
        *,
        lease_s: float,
        grace_s: float,
        checkpoints: Path | None = None,
        units: EngineUnits | None = None,
        boot_time: Callable[[], float] = boot_time_s,
    ) -> None:
        self.directory, self.journal = directory, journal
        self.lease_s, self.grace_s, self._boot_time = lease_s, grace_s, boot_time
        self.closing = self.trouble = False
        #: Whether no controller listens: ends are then recorded with their time.
        self.unattended = False
        self.logs = LogRequests()
        self.units, self._checkpoints = units, checkpoints
        self._proof = _write_proof(checkpoints)
        # unix seconds at the rate of the monotonic clock, never before what was written down
        self._offset_s = max(time.time(), journal.clock()) - time.monotonic()
        self._dirty: set[Key] = set()
        self._tidied = 0.0
        self._empty_since: float | None = None
        self.sessions: dict[str, Session] = {}
        self._restore()

    @property
    def now(self) -> float:
        """Returns unix seconds that never go back, also after a restart of the hub."""
        return time.monotonic() + self._offset_s

    @property
    def empty(self) -> bool:
        """Whether no attempt is left, and the agents in units have left or had the time to."""
        if self.gangs:
            self._empty_since = None
            return False
        if self.units is None or not self.sessions:
            return True
        if self._empty_since is None:
            self._empty_since = time.monotonic()
        return time.monotonic() - self._empty_since > self.grace_s + _FAREWELL_S

    def _restore(self) -> None:
        """Takes over what the store has. A session that was not answered by this hub may have been by the one before, just now."""
        renewed = {name: session.renewed for name, session in self.sessions.items()}
        self.gangs = GangTable(machine_of=self._machine_of, grace_s=self.grace_s, may_begin=self._may_begin)
        self._tokens: dict[Key, str] = {}
        self._launches: dict[Key, Launch] = {}
        #: Resizes that wait for room, by attempt.
        self._resizes: dict[Key, ResizeJob] = {}
        for action in msgspec.json.decode(self.journal.text("resizes") or "[]", type=list[ResizeJob]):
            self._resizes[(action.job, action.attempt)] = action
        #: Nodes that were drained because they will be taken away.
        self._leaving = set(msgspec.json.decode(self.journal.text("leaving") or "[]", type=list[str]))
        if self.units is not None:
            self.units.restore()
        #: Sessions that know of an attempt.
        self._machines: dict[Key, list[str]] = {}
        self._dirty.clear()
        self.sessions = {
            saved.session: Session(
                saved,
                reports,
                self.journal.orders(saved.session),
                renewed.get(saved.session, self._boot_time()),
            )
            for saved, reports in self.journal.sessions()
        }
        for attempt in self.journal.unfinished():
            self._tokens[attempt.key], self._machines[attempt.key] = attempt.token, list(attempt.machines)
            if attempt.gang is not None:
                self._launches[attempt.key] = attempt.gang.launch
                self.gangs.restore(attempt.gang)

    @contextmanager
    def transact(self, *, lasting: bool = True) -> Iterator[None]:
        """Everything inside is committed together. StoreError: nothing of it has happened."""
        try:
            with self.journal.transaction(lasting=lasting):
                yield
                for key in self._dirty:
                    saved = self.gangs.saved(key)
                    if saved is not None:
                        self.journal.save_gang(key, saved, self._machines[key])
                self._dirty.clear()
                self.journal.set_clock(self.now)
        except StoreError:
            self.trouble = True
            self._restore()
            raise
        self.trouble = False
        if self.units is not None:
            self.units.tell()

    # -- the controller -------------------------------------------------------------------------------

    def apply(self, request: Apply) -> None:
        """Carries out actions of the controller; each id once."""
        with self.transact():
            for action, token in self.journal.accept(request.actions):
                key = (action.job, action.attempt)
                if isinstance(action, StartJob):
                    self._tokens[key], self._machines[key] = token, []
                    self._launches[key] = request.launches.get(action.job, Launch(command=()))
                self._dirty.add(key)
                if key in self._resizes:
                    self._keep_resize(
                        key, None
                    )  # another request has come first: room is not waited for any more
                if (
                    isinstance(action, ResizeJob)
                    and key in self.gangs
                    and not self._has_room(action.placement)
                ):
                    self._keep_resize(key, action)
                else:
                    self._carry_out(self.gangs.act(action, request.launches, self.now))
            self._seek_room()
            self._carry_out(self.gangs.tick(self.now))

    def close_down(self) -> None:
        """Stops all attempts; the hub ends when none is left."""
        if not self.closing:
            with self.transact():
                self._carry_out(self.gangs.stop_all("shutdown", self.now))
                self._carry_out(self.gangs.tick(self.now))
            self.closing = True

    def reap(self) -> None:
        """Nothing to do: the hub has no children."""

    def turn(self) -> None:
        """Advances what time advances: gangs, leases, removal of what agents have."""
        now, next_at = self.now, self.gangs.next_at
        over = [session for session in self.sessions.values() if self._is_gone(session)]
        self._hear_engine()
        self._empty_before_end()
        if over or (next_at is not None and next_at <= now):
            with self.transact():
                for session in over:
                    self._end_session(session, "its lease has run out")
                self._carry_out(self.gangs.tick(now))
        if now - self._tidied >= _TIDY_S:
            self._tidy()

    def _empty_before_end(self) -> None:
        """Drains nodes that will be taken away, in time for jobs to save their state and to go on elsewhere."""
        due = {
            name
            for session in self.sessions.values()
            if self.units is None and session.leave_at(self.grace_s) <= self.now
            for name in session.nodes
        } - self._leaving
        if due:
            with self.transact():
                self._set_leaving(due, leaving=True)

    def _set_leaving(self, names: set[str], *, leaving: bool) -> None:
        """Inside a transaction: closes nodes that will be taken away, or opens those that were and are back."""
        changed = names - self._leaving if leaving else names & self._leaving
        if not changed:
            return
        for name in sorted(changed):
            self.journal.emit(NodeDrained(node=name) if leaving else NodeOpened(node=name))
        self._leaving ^= changed
        self.journal.set_text("leaving", msgspec.json.encode(sorted(self._leaving)).decode())

    def patience_s(self) -> float | None:
        """Returns the seconds until ``turn`` is needed even if nothing happens."""
        times = [_TIDY_S, *(left for each in self.sessions.values() if (left := self.gone_in_s(each)) > 0)]
        if (next_at := self.gangs.next_at) is not None:
            times.append(next_at - self.now)
        return max(min(times), 0.01)

    def close(self) -> None:
        """Closes the store."""
        self.journal.close()

    # -- agents ---------------------------------------------------------------------------------------

    def join(self, request: Join) -> Joined:
        """Lets an agent in: the claim of its nodes, in one transaction."""
        if request.protocol < OLDEST:
            return Joined(
                refused=f"this agent (coadapt {request.version}) is too old for the controller; update it",
                final=True,
            )
        if request.protocol > PROTOCOL:
            return Joined(
                refused=f"this agent (coadapt {request.version}) is newer than the controller; update the controller first",
                final=True,
            )
        if fault := _fault(request.nodes):
            return Joined(refused=fault, final=True)
        place = str(self._checkpoints) if self._proof else ""
        if request.shares_checkpoints is None:
            return Joined(checkpoints=place, proof=self._proof)
        known = self.journal.session(request.session)
        if known is not None and known[1]:
            return Joined(refused=f"this session is over: {known[1]}", final=True)
        if known is None:
            try:
                with self.transact():
                    self._claim(request)
            except InputError as error:
                if isinstance(error, StoreError):
                    raise
                self._restore()
                return Joined(refused=str(error), final=isinstance(error, EndedForGoodError))
        session = self.sessions[request.session]
        session.renewed = self._boot_time()
        return Joined(lease_s=self.lease_s, grace_s=self.grace_s, checkpoints=place, proof=self._proof)

    def _claim(self, request: Join) -> None:
        names = {node.name for node in request.nodes}
        key_hash = token_hash(request.key) if request.key else ""
        if request.by:
            self._bind_token(request.by, sorted(names))
        for other in [each for each in self.sessions.values() if names & set(each.nodes)]:
            same = other.saved.machine == request.machine
            if other.name in request.buried and same:
                self._end_session(other, "another agent of its machine has buried it", lost=False)
            elif same and other.saved.boot != request.boot and other.saved.key_hash == key_hash:
                self._end_session(other, "its machine has booted again", lost=False)
            else:
                shared = ", ".join(sorted(names & set(other.nodes)))
                raise InputError(
                    f"node {shared} is joined by another agent on machine {other.saved.machine}; choose another --name, or wait "
                    f"{max(self.gone_in_s(other), 0):.0f} s until its lease has run out"
                )
        if self.units is not None:
            self.units.admit(request)
        elif request.unit:
            raise EndedForGoodError("this controller uses no engine; join without a unit")
        alone = not request.shares_checkpoints or not all(
            s.saved.shares_checkpoints for s in self.sessions.values()
        )
        if alone and self.sessions:
            raise InputError(
                f"not all machines see the checkpoints in {self._checkpoints}: a job that moves would lose its work. Name a directory "
                "that all see, 'coadapt serve --checkpoints DIR', or use one machine only"
            )
        saved = SavedSession(
            session=request.session,
            nodes=request.nodes,
            machine=request.machine,
            boot=request.boot,
            version=request.version,
            unit=request.unit,
            generation=request.generation,
            shares_checkpoints=bool(request.shares_checkpoints),
            until=None if request.remaining_s is None else self.now + request.remaining_s,
            joined_at=self.now,
            token=request.by,
            key_hash=key_hash,
        )
        self.journal.add_session(saved)
        self.sessions[saved.session] = Session(saved, 0, (), self._boot_time())
        if self.units is None:
            for node in saved.nodes:
                self.journal.emit(NodeJoined(node=node, until=saved.until))
            self._set_leaving(names, leaving=False)
            self.journal.set_nodes(sorted({*self.journal.nodes(), *names}))
        self._use_room()
        log.info("joined: %s, session %s on machine %s", ", ".join(names), saved.session, saved.machine)

    def _bind_token(self, token: str, names: list[str]) -> None:
        try:
            self.journal.bind_token(token, names)
        except StoreError:
            raise
        except InputError as error:
            raise EndedForGoodError(str(error)) from None

    def exchange(self, request: Exchange) -> Exchanged:
        """Takes reports of an agent, and returns commands for it. The answer renews its lease."""
        session = self.sessions.get(request.session)
        if session is None:
            return Exchanged(over=self.why_over(request.session))
        if session.saved.token != request.by:
            return Exchanged(over="it was joined with another token")
        session.received(request.received)
        self.logs.answered(session.name, request.logs)
        fresh = [said for said in request.reports if said.number > session.reports]
        with suppress(
            StoreError
        ):  # not acknowledged: the agent sends it again, and its lease is renewed all the same
            if fresh:
                self._hear(session, fresh)
        # the store may have failed, and the session been read from it again
        session = self.sessions[request.session]
        session.renewed = self._boot_time()
        session.told_to_leave = self._is_to_leave(session)
        return Exchanged(
            leave=session.told_to_leave,
            commands=session.unsent(request.received),
            reads=self.logs.take(session.name),
            acknowledged=session.reports,
        )

    def has_news(self, request: Exchange) -> bool:
        """Whether ``exchange`` would return more than an acknowledgement."""
        session = self.sessions.get(request.session)
        if session is None or session.saved.token != request.by or self.logs.waits(session.name):
            return True
        if self._is_to_leave(session) and not session.told_to_leave:
            return True
        return bool(session.orders) and session.orders[-1].number > request.received

    def _is_to_leave(self, session: Session) -> bool:
        """Whether the room of an agent is given back. The engine is asked for the same, but may not reach it any more."""
        if self.units is None or any(session.name in machines for machines in self._machines.values()):
            return False
        return self.closing or not self.units.usable(session.saved.unit)

    def leave(self, request: Leave) -> Left:
        """Lets an agent go that has no process left."""
        session = self.sessions.get(request.session)
        if session is not None and session.saved.token == request.by:
            with self.transact():
                self._end_session(session, "it has left")
        return Left()

    def declare_gone(self, node: str) -> Declared:
        """Takes an administrator's word that no process is left on a node's machine."""
        session = next((each for each in self.sessions.values() if node in each.nodes), None)
        if session is None:
            return Declared(error=f"node {node} is not joined")
        with self.transact():
            self._end_session(session, "an administrator declared it gone")
        return Declared()

    def list_agents(self) -> AgentsListed:
        """Returns all machines that are not gone."""
        now, boot = self.now, self._boot_time()
        return AgentsListed(
            agents=tuple(
                AgentLine(
                    nodes=each.nodes,
                    session=each.name,
                    machine=each.saved.machine,
                    version=each.saved.version,
                    silent_s=boot - each.renewed,
                    lease_left_s=max(each.renewed + self.lease_s - boot, 0.0),
                    shares_checkpoints=each.saved.shares_checkpoints,
                    unit=each.saved.unit,
                    remaining_s=None if each.saved.until is None else each.saved.until - now,
                )
                for each in sorted(self.sessions.values(), key=lambda each: each.nodes)
            ),
            waiting=self._waiting_lines(),
            engine_trouble="" if self.units is None else self.units.thread.trouble,
        )

    def holders_of(self, key: Key) -> list[str]:
        """Returns the sessions that may have output of an attempt: those it ran in, or their successors on the same nodes."""
        found: list[str] = []
        for name in self.journal.machines_of(key):
            saved = self.journal.session(name)
            if name in self.sessions:
                found.append(name)
            elif saved is not None:
                found += [s.name for s in self.sessions.values() if set(s.nodes) & _names(saved[0].nodes)]
        return list(dict.fromkeys(found))

    def machine_names(self) -> dict[str, str]:
        """Returns how each session is called in messages."""
        return {name: ", ".join(session.nodes) for name, session in self.sessions.items()}

    def gone_in_s(self, session: Session) -> float:
        """Returns the seconds until a session is taken to be gone, if it is not heard again."""
        return session.renewed + self.lease_s + self.grace_s + MARGIN_S - self._boot_time()

    def why_over(self, name: str) -> str:
        """Returns why there is no such session."""
        known = self.journal.session(name)
        return "the controller does not know it" if known is None else known[1] or "it is being restored"

    def _hear(self, session: Session, fresh: list[Said]) -> None:
        with self.transact():
            for said in fresh:
                key = (said.job, said.attempt)
                if isinstance(said.report, Measurements):
                    self.journal.measured(
                        [
                            Measured(job=key[0], attempt=key[1], measurement=m)
                            for m in said.report.measurements
                        ]
                    )
                else:
                    self._dirty.add(key)
                    self._carry_out(self.gangs.report(key, session.name, said.report, self.now))
            self.journal.reported(session.name, fresh[-1].number)
            session.reports = fresh[-1].number

    def _end_session(self, session: Session, why: str, *, lost: bool = True) -> None:
        """Ends a session, and tells the gangs; ``lost``: its nodes are gone with it."""
        log.warning("gone: %s, session %s: %s", ", ".join(session.nodes), session.name, why)
        del self.sessions[session.name]
        self.journal.session_gone(session.name, why)
        for key in [key for key, machines in self._machines.items() if session.name in machines]:
            self._dirty.add(key)
            self._carry_out(self.gangs.machine_gone(key, session.name, self.now))
        if self.units is not None:
            if lost:
                self.units.session_gone(session.saved.unit)
        elif lost:
            for name in session.nodes:
                self.journal.emit(NodeLost(node=name))
            self.journal.set_nodes([name for name in self.journal.nodes() if name not in session.nodes])

    # -- gangs and machines ---------------------------------------------------------------------------

    def _machine_of(self, key: Key, node: str) -> str:
        session = self._session_of(node)
        # orders for a machine that is not there come back as its loss
        return f"none for {node}" if session is None else session.name

    def _session_of(self, node: str) -> Session | None:
        for session in self.sessions.values():
            if node in session.nodes and (self.units is None or self.units.usable(session.saved.unit)):
                return session
        return None

    def _may_begin(self, key: Key) -> bool:
        return self._has_room(self.gangs.waiting[key])

    # -- room that an engine grants -------------------------------------------------------------------

    def _has_room(self, placement: Placement) -> bool:
        """Whether every node of a placement has an agent, as far as it is the hub that has to wait for one."""
        return self.units is None or all(self._session_of(slot.node) is not None for slot in placement.slots)

    def _needed(self) -> set[str]:
        """Nodes on which something is to start."""
        placements = [*self.gangs.waiting.values(), *(each.placement for each in self._resizes.values())]
        return {slot.node for placement in placements for slot in placement.slots}

    def _seek_room(self) -> None:
        if self.units is not None:
            self.units.want(
                self._needed() - {n for s in self.sessions.values() for n in s.nodes if self._session_of(n)},
                self.now,
            )

    def _use_room(self) -> None:
        """Begins and resizes what has waited for room that is there now."""
        for key, action in list(self._resizes.items()):
            if self._has_room(action.placement):
                self._keep_resize(key, None)
                self._dirty.add(key)
                self._carry_out(self.gangs.act(action, {}, self.now))
        self._carry_out(self.gangs.tick(self.now))

    def _keep_resize(self, key: Key, action: ResizeJob | None) -> None:
        self._resizes.pop(key, None)
        if action is not None:
            self._resizes[key] = action
        self.journal.set_text("resizes", msgspec.json.encode(list(self._resizes.values())).decode())

    def _is_gone(self, session: Session) -> bool:
        """Whether lease, grace and margin have passed, and an engine agrees that nothing of the unit runs."""
        left_s = self.gone_in_s(session)
        if left_s > 0:
            return False
        return self.units is None or self.units.agrees(session.saved.unit, self._boot_time() + left_s)

    def _hear_engine(self) -> None:
        """Takes what the engine has said since the last turn; while it is silent nothing follows."""
        units = self.units
        view = units.news() if units is not None else None
        if units is None or view is None:
            return
        with self.transact(lasting=False):
            for event in units.events(view):
                self.journal.emit(event)
            used = {name for machines in self._machines.values() for name in machines}
            busy = {s.saved.unit for s in self.sessions.values() if s.name in used}
            units.look(busy, self._needed() if not self.closing else (), self.now)
            for key in [key for key in self._resizes if key not in self.gangs]:
                self._keep_resize(key, None)

    def _waiting_lines(self) -> tuple[WaitingLine, ...]:
        if self.units is None:
            return ()
        found = []
        waiting = {**self.gangs.waiting, **{key: action.placement for key, action in self._resizes.items()}}
        for (job, attempt), placement in waiting.items():
            names, reason = self.units.waiting_for({slot.node for slot in placement.slots})
            found.append(WaitingLine(job=job, attempt=attempt, units=tuple(names), reason=reason))
        return tuple(found)

    def _carry_out(self, outputs: Iterable[Addressed]) -> None:
        """Inside a transaction: writes commands and events, and what follows from the events."""
        waiting = deque(outputs)
        while waiting:
            key, output = waiting.popleft()
            self._dirty.add(key)
            if isinstance(output, Record):
                waiting.extend(self._write_events(key, output.events))
            elif output.machine in self.sessions:
                self._order(self.sessions[output.machine], key, output.command)
            else:
                waiting.extend(self.gangs.machine_gone(key, output.machine, self.now))

    def _write_events(self, key: Key, events: tuple[GangEvent, ...]) -> list[Addressed]:
        for event in events:
            if isinstance(event, JobFinished | JobStopped):
                self.journal.ended(
                    msgspec.structs.replace(event, ended_at=time.time()) if self.unattended else event
                )
                for name in self._machines.pop(key):
                    if name in self.sessions:
                        self._tell(self.sessions[name], key, Forget())
                self._tokens.pop(key)
                self._launches.pop(key)
                continue
            self.journal.emit(event)
            if isinstance(event, ReplicasReleased):
                self.journal.place(key, event.placement)
        return self.gangs.recorded(key, events, self.now)

    def _order(self, session: Session, key: Key, command: Command) -> None:
        if key not in self._machines:
            return  # it has ended
        if session.name not in self._machines[key]:
            self._machines[key].append(session.name)
            # one for each session: agents on one machine must not take each other's processes for their own
            token = f"{self._tokens[key]}-{session.name[:12]}"
            self._tell(session, key, Admit(launch=self._launches[key], token=token))
        self._tell(session, key, command)

    def _tell(self, session: Session, key: Key, command: Command | Admit | Forget) -> None:
        told = Told(number=self.journal.next_order(), job=key[0], attempt=key[1], command=command)
        self.journal.order(session.name, told)
        session.orders.append(told)

    def _tidy(self) -> None:
        self._tidied = self.now
        done = [session for session in self.sessions.values() if session.delivered]
        if done:
            with self.transact(lasting=False):
                for session in done:
                    self.journal.delivered(session.name, session.delivered)
                    session.delivered = 0


def _names(nodes: Iterable[Node]) -> set[str]:
    return {node.name for node in nodes}


def _fault(nodes: tuple[Node, ...]) -> str:
    """Returns what is wrong with the nodes that an agent offers; empty: nothing."""
    if not nodes:
        return "the agent offers no node"
    for node in nodes:
        if not _NODE.fullmatch(node.name):
            return (
                f"{node.name[:80]!r} is no name of a node: use letters, digits, '-', '_' and '.', at most 63"
            )
        if not 1 <= node.gpus <= _MOST_GPUS:
            return f"node {node.name} offers {node.gpus} GPUs; it must be 1 to {_MOST_GPUS}"
    return ""


def _write_proof(place: Path | None) -> str:
    """Writes a random text into the place of checkpoints; whoever can read it sees the same place."""
    if place is None:
        return ""
    text = secrets.token_hex(16)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(place / PROOF, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "w") as file:
            file.write(text)
    except OSError as error:
        log.error("the place of checkpoints %s cannot be written: %s", place, error.strerror)
        return ""
    return text
