"""The gang: all replicas of one attempt, which start together and end together, on however many machines.

A pure state machine: ``handle`` takes one message with the time and returns what is to be done. It knows machines by name
and replicas by the names it gave them; processes, devices, files and sockets are the machines' business.

A resize happens in place where the job's agent can (``resize``); else it is a restart: all replicas stop, then those of the
new size start, under the same attempt number. A replica that must stop gets SIGTERM, and is killed ``grace_s`` later; the stacks of a hung
one are collected first. The attempt has ended when every machine has reported that no process of it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coadapt.executors.gang import replica_seats
from coadapt.executors.gang.messages import (
    AskStore,
    AttemptGone,
    CannotStart,
    ClearAttempt,
    ClearMembers,
    Command,
    DumpStacks,
    FollowOutput,
    MarkOutput,
    Member,
    MembersGone,
    Notice,
    OpenRendezvous,
    ReleaseDevices,
    Rendezvous,
    RendezvousLost,
    RendezvousOpened,
    ReplicaExited,
    ReplicasStarted,
    Report,
    RunSetup,
    SetupEnded,
    SignalMembers,
    StacksDumped,
    StartReplicas,
    StoreAnswered,
)
from coadapt.executors.gang.replica_seats import Seat, change, possible, seated
from coadapt.executors.gang.resize import (
    KILL_AGAIN_S,
    Ask,
    Clear,
    GangReplica,
    InPlaceResize,
    Join,
    Kill,
    Step,
)
from coadapt.executors.gang.verdict import Verdict, Why
from coadapt.model import (
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Placement,
    ReplicasReleased,
    StartJob,
)
from coadapt.wire.agent import SAVED_AND_LEFT
from coadapt.wire.node_messages import Launch

GangEvent = JobStarted | JobResized | ReplicasReleased | JobFinished | JobStopped


class Begin(NamedTuple):
    """No process of an older attempt of the job is left: this one may start."""


class Stop(NamedTuple):
    """Message: end the attempt."""

    why: Why


class Resize(NamedTuple):
    """Message: continue the attempt at another placement."""

    placement: Placement


class Tick(NamedTuple):
    """Message: time has passed."""


class Recorded(NamedTuple):
    """Message: these events of the gang are in the journal."""

    events: tuple[GangEvent, ...]


class MachineGone(NamedTuple):
    """Message: the machine is known to be gone for good, with every process on it, and will report nothing more."""


Input = Begin | Stop | Resize | Tick | Recorded | MachineGone | Report


@dataclass(frozen=True, slots=True)
class Order:
    """A command for a machine."""

    machine: str
    command: Command


@dataclass(frozen=True, slots=True)
class Record:
    """Events that become durable together before any controller sees them; the gang then gets ``Recorded``."""

    events: tuple[GangEvent, ...]


Output = Order | Record


class Gang:
    """One attempt.

    Args:
        action: the start that made it.
        launch: what its replicas run.
        machine_of: the machine that a node of a placement is on.
        grace_s: seconds from SIGTERM to SIGKILL.
    """

    def __init__(
        self, action: StartJob, launch: Launch, *, machine_of: Callable[[str], str], grace_s: float
    ) -> None:
        self.job, self.attempt, self.placement = action.job, action.attempt, action.placement
        self._launch, self._machine_of, self._grace_s = launch, machine_of, grace_s
        self._verdict = Verdict(self.job, self.attempt)
        #: The end of the attempt is decided; further messages are ignored.
        self.ended = False
        self._begun = self._resized = False
        self._out: list[Output] = []
        #: Present replicas, in order of rank; and all that were started since no process was left, by name.
        self._replicas: list[GangReplica] = []
        self._known: dict[str, GangReplica] = {}
        self._generation, self._restarts, self._names, self._questions = 0, -1, 0, 0
        #: (machine, name) of processes that may run.
        self._running: set[tuple[str, str]] = set()
        #: Replicas that are not known to run yet; and whether the event that all run is still to be sent.
        self._awaited: set[str] = set()
        self._starting = False
        #: When remaining processes are killed; set as soon as the attempt is asked to stop.
        self._kill_at: float | None = None
        self._kill_again_at = 0.0
        #: The next placement; and the placement whose release is being recorded.
        self._next: Placement | None = None
        self._releasing: Placement | None = None
        self._prepared: set[str] = set()
        self._setup_until: float | None = None
        #: Number of the open request for a rendezvous; and of the request that led to the present one.
        self._meeting: int | None = None
        self._met: int | None = None
        self._rendezvous: Rendezvous | None = None
        self._store_machine = ""
        #: Machines that still have to send stacks, where processes may be left, and whose report that none is left is awaited.
        self._dumping: set[str] = set()
        self._stacks: list[str] = []
        self._touched: set[str] = set()
        self._clearing: dict[str, int] = {}
        #: Machines that know whose output to read.
        self._listening: set[str] = set()
        self._move: InPlaceResize | None = None
        #: Number of the open request to the store.
        self._question: int | None = None

    @property
    def stopped(self) -> bool:
        """Whether the attempt was asked to end for good."""
        return self._verdict.cause is not None

    @property
    def next_at(self) -> float | None:
        """Time at which a ``Tick`` is due even if nothing happens."""
        times = [self._setup_until, self._move.next_at if self._move else None]
        if self._kill_at is not None and self._running:
            times.append(max(self._kill_at, self._kill_again_at))
        return min((each for each in times if each is not None), default=None)

    def handle(self, message: Input, now: float, machine: str = "") -> list[Output]:
        """Handles one message, from ``machine`` if it is a report; returns what is to be done, in order."""
        if not self.ended:
            self._take(message, now, machine)
            self._advance_move(now)
            self._settle(now)
        out, self._out = self._out, []
        return out

    def _take(self, message: Input, now: float, machine: str) -> None:
        match message:
            case Begin():
                self._begin(now)
            case Stop(why):
                self._stop(why, now)
            case Resize(placement):
                self._resize(placement, now)
            case Tick():
                self._tick(now)
            case Recorded(events):
                self._recorded(events, now)
            case MachineGone():
                self._machine_gone(machine, now)
            case SetupEnded():
                self._setup_ended(message, machine, now)
            case RendezvousOpened():
                if message.number == self._meeting:
                    self._meeting, self._met = None, message.number
                    self._start_replicas(message.rendezvous, now)
            case RendezvousLost():
                if self._running and message.number == self._met and not self.stopped:
                    self._stop("preempted", now)
            case ReplicasStarted():
                self._runs(message.members)
            case CannotStart():
                self._could_not_start(message, machine, now)
            case ReplicaExited():
                if (machine, message.member) in self._running:
                    self._exited(message, machine, now)
            case MembersGone():
                if self._move is not None:
                    self._move.gone(message.members)
            case AttemptGone():
                if self._clearing.get(machine) == message.number:
                    del self._clearing[machine]
                    self._touched.discard(machine)
            case StacksDumped():
                self._stacks_dumped(message.text, machine, now)
            case StoreAnswered():
                if self._move is not None and message.number == self._question:
                    self._question = None
                    self._pursue(self._move, self._move.answered(message.ok, message.there, now), now)

    # -- requests: stop, resize, tick ----------------------------------------------------------------

    def _begin(self, now: float) -> None:
        if self._begun:
            return
        self._begun = True
        # asked to stop or to move before it began: no process exists, and ``_settle`` decides what follows
        if not self.stopped and self._next is None:
            self._start(now)

    def _stop(self, why: Why, now: float) -> None:
        """Ends the attempt and abandons a resize in progress."""
        self._next = None
        self._end_move()
        self._meeting = None
        if why == "hang" and not self.stopped and self._running and self._kill_at is None:
            self._dump_stacks()
        self._verdict.stop(why)
        if not self._dumping:
            self._tell(now)

    def _resize(self, placement: Placement, now: float) -> None:
        """Continues the attempt at ``placement``."""
        if self.stopped:
            return
        self._next = placement
        if self._can_move(placement):
            self._begin_move(placement, now)
        else:
            self._end_move()
            self._meeting = None
            self._tell(now)

    def _tick(self, now: float) -> None:
        if self._setup_until is not None and now >= self._setup_until and self._running:
            self._cannot(f"the set-up took longer than {self._launch.setup_limit_s:g} s", now)
        if self._kill_at is not None and now >= max(self._kill_at, self._kill_again_at) and self._running:
            self._kill_again_at = now + KILL_AGAIN_S
            self._signal(self._running, "kill")

    def _recorded(self, events: Sequence[GangEvent], now: float) -> None:
        if self._releasing is None or not isinstance(events[-1], ReplicasReleased):
            return
        self.placement, self._releasing = self._releasing, None
        if not self.stopped and self._next == self.placement:
            self._start(now)
        # else another request has come meanwhile: ``_settle`` concludes again

    def _machine_gone(self, machine: str, now: float) -> None:
        """Continues without a machine: nothing runs there any more. An attempt that needed it ends as lost."""
        met = (self._meeting is not None or self._rendezvous is not None) and self._store_machine == machine
        needed = met or machine in self._touched or any(where == machine for where, _ in self._running)
        self._running = {each for each in self._running if each[0] != machine}
        self._clearing.pop(machine, None)
        for machines in (self._touched, self._prepared, self._listening):
            machines.discard(machine)
        if self._meeting is not None and met:
            self._meeting = None
        self._stacks_dumped("", machine, now)
        if needed:
            self._verdict.lose_machine()
            self._stop("lost", now)

    # -- how it starts -------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        """Starts all replicas of its placement; where one cannot start, the attempt ends as failed."""
        self._resized, self._next = self._resized or self._next is not None, None
        self._kill_at = None
        self._verdict.begin()
        unprepared = [machine for machine in self._machines() if machine not in self._prepared]
        if not self._launch.command:
            self._cannot("cannot start: the job has no command", now)
        elif self._launch.setup and unprepared:
            self._setup_until = now + self._launch.setup_limit_s
            for machine in unprepared:
                setup = f"setup{self._number()}"
                self._running.add((machine, setup))
                self._touched.add(machine)
                self._order(machine, RunSetup(member=setup))
        else:
            self._meet(now)

    def _meet(self, now: float) -> None:
        """Asks the machine of the first replica for a rendezvous, and the store that their agent needs."""
        self._rendezvous = None
        machines = self._machines()
        if not machines:
            self._start_replicas(Rendezvous(address="", port=0), now)
            return
        self._store_machine, self._meeting = machines[0], self._number()
        self._order(self._store_machine, OpenRendezvous(number=self._meeting))

    def _start_replicas(self, rendezvous: Rendezvous, now: float) -> None:
        self._rendezvous, self._generation, self._restarts = rendezvous, 0, self._restarts + 1
        seats = replica_seats.seats(self.placement)
        self._replicas = [self._replica(number, seat) for number, seat in enumerate(seats)]
        self._awaited, self._starting = {replica.name for replica in self._replicas}, True
        self._launch_replicas(self._replicas, self._replicas, join=0)
        self._runs(())

    def _launch_replicas(
        self, new: Sequence[GangReplica], together: Sequence[GangReplica], *, join: int
    ) -> None:
        """Starts ``new`` ones; ``together``: all replicas that they will train with, in order of rank."""
        assert self._rendezvous is not None
        for machine in dict.fromkeys(replica.machine for replica in new):
            batch = [replica for replica in new if replica.machine == machine]
            self._touched.add(machine)
            self._running.update((machine, replica.name) for replica in batch)
            members = tuple(
                Member(
                    name=replica.name,
                    number=replica.number,
                    seat=replica.seat,
                    beside=tuple(each.name for each in together if _place(each) == _place(replica)),
                )
                for replica in batch
            )
            self._order(
                machine,
                StartReplicas(
                    members=members, rendezvous=self._rendezvous, restarts=self._restarts, join=join
                ),
            )

    def _runs(self, members: Iterable[str]) -> None:
        """Notes that these run; records an event once all do."""
        self._awaited -= set(members)
        if not self._starting or self._awaited or self._kill_at is not None:
            return
        self._starting = False
        self._follow_first()
        if self._resized:
            self._record(JobResized(job=self.job, attempt=self.attempt, placement=self.placement))
        else:
            self._record(JobStarted(job=self.job, attempt=self.attempt))

    def _could_not_start(self, report: CannotStart, machine: str, now: float) -> None:
        if not report.members:
            if report.number == self._meeting:
                self._meeting = None
                self._cannot(report.reason, now)
            return
        gone = {(machine, name) for name in report.members} & self._running
        self._running -= gone
        move = self._move
        if move is not None and any(self._is_newcomer(name) for _, name in gone):
            self._restart_instead(move, now)
        elif any(self._counts(name) for _, name in gone):
            self._cannot(report.reason, now)

    def _setup_ended(self, report: SetupEnded, machine: str, now: float) -> None:
        if (machine, report.member) not in self._running:
            return
        self._running.discard((machine, report.member))
        if self._kill_at is not None:
            self._setup_until = None
        elif report.code != 0:
            code = report.code
            how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
            self._verdict.show(report.lines)
            self._cannot(f"the set-up {how}", now)
        else:
            self._prepared.add(machine)
            if not self._running:
                self._setup_until = None
                self._meet(now)

    # -- how it ends ---------------------------------------------------------------------------------

    def _exited(self, report: ReplicaExited, machine: str, now: float) -> None:
        self._running.discard((machine, report.member))
        replica = self._known[report.member]
        if self._move is not None and self._ended_in_move(self._move, replica, report.code, now):
            return
        if not replica.counts:
            return
        asked = self._asked(report)
        self._verdict.exited(
            replica.number,
            report.code,
            report.lines,
            asked=asked,
            oom_killed=report.out_of_memory and not asked,
        )
        if report.code != 0 or asked:
            self._tell(now)  # the other ranks cannot continue without it
        self._runs((report.member,))

    def _asked(self, report: ReplicaExited) -> bool:
        """Whether a replica ended after it was asked to: of an exit with 0 its machine knows best, which may have been first."""
        if report.asked is None:
            return self._kill_at is not None
        return report.asked or (report.code != 0 and self._kill_at is not None)

    def _cannot(self, reason: str, now: float) -> None:
        self._setup_until = None
        self._verdict.cannot(reason)
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Sends SIGTERM to all running processes, once."""
        if self._kill_at is None:
            self._kill_at = now + self._grace_s
            self._signal(self._running, "terminate")

    def _dump_stacks(self) -> None:
        self._dumping = {machine for machine, _ in self._running}
        self._stacks = []
        for machine in sorted(self._dumping):
            ranks = {r.name: r.seat.rank for r in self._known.values() if r.machine == machine}
            self._order(machine, DumpStacks(ranks=ranks))

    def _stacks_dumped(self, text: str, machine: str, now: float) -> None:
        if machine not in self._dumping:
            return
        self._dumping.discard(machine)
        self._stacks.append(text)
        if not self._dumping:
            self._verdict.show("\n".join(self._stacks))
            self._tell(now)

    def _settle(self, now: float) -> None:
        """Once nothing runs: confirms that no process is left, then records how the attempt ended or where it continues."""
        waits = self._running or self._dumping or self._clearing
        if not self._begun or waits or self._meeting is not None or self._releasing is not None:
            return
        if self._touched:
            ask = self._kill_at is None  # the replicas have exited, and may have left processes
            if self._kill_at is None:
                self._kill_at = now + self._grace_s
            self._clearing = {machine: self._number() for machine in sorted(self._touched)}
            kill_in_s = max(self._kill_at - now, 0.0)
            for machine, number in self._clearing.items():
                self._order(machine, ClearAttempt(number=number, terminate=ask, kill_in_s=kill_in_s))
        else:
            self._conclude()

    def _conclude(self) -> None:
        """No process is left: releases the devices and records what follows."""
        self._end_move()
        self._release(self._known.values())
        self._known.clear()
        self._awaited.clear()
        self._replicas, self._rendezvous, self._met = [], None, None
        self._starting = False
        event = self._verdict.event(self._next)
        if isinstance(event, ReplicasReleased):
            self._releasing = self._next
        else:
            self.ended = True
        self._record(event)

    # -- a resize in place ---------------------------------------------------------------------------

    def _can_move(self, placement: Placement) -> bool:
        """Whether replicas can meet at ``placement`` without a restart, as far as the gang knows."""
        under_way = self._move is not None or self._meeting is not None or self._starting
        if under_way or self._kill_at is not None:
            return False
        if self._rendezvous is None or not self._rendezvous.store:
            return False
        unprepared = {self._machine_of(slot.node) for slot in placement.slots} - self._prepared
        return possible(self.placement, placement) and not (self._launch.setup and unprepared)

    def _begin_move(self, placement: Placement, now: float) -> None:
        found = change([replica.seat.node for replica in self._replicas], placement)
        staying = [self._replicas[position] for position in found.staying]
        leaving = [self._replicas[position] for position in found.leaving]
        for machine, names in _by_machine(staying):
            self._order(machine, MarkOutput(members=names))
        self._move = InPlaceResize(
            self._generation,
            staying=staying,
            leaving=leaving,
            nodes=found.joining,
            grace_s=self._grace_s,
            now=now,
        )

    def _pursue(self, move: InPlaceResize, step: Step, now: float) -> None:
        """Carries out the next step of a resize."""
        if move.stage == "failed":
            self._restart_instead(move, now)
        elif isinstance(step, Join):
            move.joining = self._newcomers(move)
            together = [*move.staying, *move.joining]
            self._launch_replicas(move.joining, together, join=step.generation)
        elif isinstance(step, Ask | Notice):
            self._question = self._number()
            notice, keys = (step, ()) if isinstance(step, Notice) else (None, step.keys)
            question = AskStore(number=self._question, restarts=self._restarts, keys=keys, notice=notice)
            self._order(self._store_machine, question)
        elif isinstance(step, Kill):
            self._signal([(replica.machine, replica.name) for replica in step.members], "kill")
        elif isinstance(step, Clear):
            for machine, names in _by_machine(step.members):
                self._order(machine, ClearMembers(members=names))
        if move.stage == "done":
            self._finish_move(move)

    def _newcomers(self, move: InPlaceResize) -> list[GangReplica]:
        nodes = [*(replica.seat.node for replica in move.staying), *move.nodes]
        new = seated(nodes, self._replicas[0].seat.gpu_type)[len(move.staying) :]
        used = {replica.number for replica in self._replicas}
        found = []
        for seat in new:
            number = seat.rank if seat.rank not in used else min(set(range(len(used) + 1)) - used)
            used.add(number)
            replica = self._replica(number, seat)
            replica.counts = False
            found.append(replica)
        return found

    def _ended_in_move(self, move: InPlaceResize, replica: GangReplica, code: int, now: float) -> bool:
        """Whether the end of a replica belongs to the resize; ends the resize where it cannot go on."""
        leaves = replica in move.leaving and move.notified
        if leaves and (code == SAVED_AND_LEFT or move.stage == "leaving"):
            return True
        if code != 0 and (move.notified or not replica.counts):
            self._restart_instead(move, now)
        elif code == 0 and move.notified:
            # the job has finished in the new generation: only its members count
            for each in move.joining:
                each.counts = True
            for each in move.leaving:
                each.counts = False
            self._forget_move()
            self._next = None
        else:
            self._end_move()  # the job finished before, or failed by itself
        return False

    def _restart_instead(self, move: InPlaceResize, now: float) -> None:
        self._verdict.excused = move.notified
        self._end_move()
        self._tell(now)

    def _end_move(self) -> None:
        """Abandons a resize in place: kills newcomers, which have nothing to save."""
        if self._move is not None:
            unneeded = {(r.machine, r.name) for r in self._move.joining if not r.counts}
            self._signal(unneeded & self._running, "kill")
            self._forget_move()

    def _forget_move(self) -> None:
        self._move = self._question = None

    def _advance_move(self, now: float) -> None:
        if self._move is not None:
            running = {name for _, name in self._running}
            self._pursue(self._move, self._move.look(now, running), now)

    def _finish_move(self, move: InPlaceResize) -> None:
        """Records a finished resize: all members run, and released devices are free."""
        assert self._next is not None
        self._release(move.leaving)
        for replica in move.leaving:
            del self._known[replica.name]
        members = move.members
        nodes = [replica.seat.node for replica in members]
        for replica, seat in zip(members, seated(nodes, members[0].seat.gpu_type), strict=True):
            replica.seat, replica.counts = seat, True
        self._replicas, self._generation = members, move.generation
        self.placement, self._next = self._next, None
        self._forget_move()
        self._follow_first()
        released = ReplicasReleased(job=self.job, attempt=self.attempt, placement=self.placement)
        self._record(released, JobResized(job=self.job, attempt=self.attempt, placement=self.placement))

    # -- small things --------------------------------------------------------------------------------

    def _machines(self) -> list[str]:
        """Machines of the placement; that of the first replica comes first."""
        seats = replica_seats.seats(self.placement)
        return list(dict.fromkeys(self._machine_of(seat.node) for seat in seats))

    def _replica(self, number: int, seat: Seat) -> GangReplica:
        name, self._names = f"m{self._names}", self._names + 1
        replica = GangReplica(name=name, number=number, seat=seat, machine=self._machine_of(seat.node))
        self._known[name] = replica
        return replica

    def _counts(self, name: str) -> bool:
        return name not in self._known or self._known[name].counts

    def _is_newcomer(self, name: str) -> bool:
        return self._move is not None and any(each.name == name for each in self._move.joining)

    def _number(self) -> int:
        self._questions += 1
        return self._questions

    def _follow_first(self) -> None:
        """Tells all machines which replica is the first, so that the machine of the previous one stops reading."""
        member = self._replicas[0].name if self._replicas else ""
        self._listening |= {replica.machine for replica in self._replicas}
        for machine in sorted(self._listening):
            self._order(machine, FollowOutput(member=member, placement=self.placement))

    def _release(self, replicas: Iterable[GangReplica]) -> None:
        for machine, names in _by_machine(replicas):
            self._order(machine, ReleaseDevices(members=names))

    def _signal(self, processes: Iterable[tuple[str, str]], signal: Literal["terminate", "kill"]) -> None:
        by_machine: dict[str, list[str]] = {}
        for machine, name in sorted(processes):
            by_machine.setdefault(machine, []).append(name)
        for machine, names in by_machine.items():
            self._order(machine, SignalMembers(members=tuple(names), signal=signal))

    def _order(self, machine: str, command: Command) -> None:
        self._out.append(Order(machine, command))

    def _record(self, *events: GangEvent) -> None:
        self._out.append(Record(events))


def _place(replica: GangReplica) -> tuple[str, str]:
    return replica.seat.node, replica.seat.role


def _by_machine(replicas: Iterable[GangReplica]) -> list[tuple[str, tuple[str, ...]]]:
    found: dict[str, list[str]] = {}
    for replica in replicas:
        found.setdefault(replica.machine, []).append(replica.name)
    return [(machine, tuple(names)) for machine, names in found.items()]
