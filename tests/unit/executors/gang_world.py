"""Machines that carry out a gang's commands in a test: processes and devices are entries in a table, and everything is chosen by chance.

The world is faithful (a machine carries out commands in their order and reports in the order things happened) but knows no
haste: commands, reports and records wait for as long as chance has it. What must never happen is asserted where it would happen.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from coadapt.executors.gang.gang import GangEvent, Record
from coadapt.executors.gang.gang_table import Addressed, GangTable, Key
from coadapt.executors.gang.messages import (
    AskStore,
    AttemptGone,
    CannotStart,
    ClearAttempt,
    ClearMembers,
    Command,
    DumpStacks,
    MembersGone,
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
from coadapt.executors.gang.saved_gang import SavedGang
from coadapt.model import Action, JobFinished, JobStopped, Placement, ResizeJob, Slot, StartJob, StopJob
from coadapt.wire.node_messages import Launch

GRACE_S = 10.0
NODES = {"n0": "left", "n1": "left", "n2": "right"}
CODES = (0, 0, 1, 143, -9, -15)


@dataclass
class Process:
    key: Key
    name: str
    restarts: int = 0
    asked: bool = False
    killed: bool = False
    sets_up: bool = False


@dataclass
class Machine:
    name: str
    commands: deque[tuple[Key, Command]] = field(default_factory=deque)
    reports: deque[tuple[Key, Report]] = field(default_factory=deque)
    running: list[Process] = field(default_factory=list)
    helpers: list[Process] = field(default_factory=list)
    held: set[tuple[Key, str]] = field(default_factory=set)
    clearing: dict[Key, tuple[int, float]] = field(default_factory=dict)
    leaving: dict[Key, set[str]] = field(default_factory=dict)
    #: Questions that are open: for a place to meet, to the store, for stacks.
    opening: list[tuple[Key, int]] = field(default_factory=list)
    asked: list[tuple[Key, int]] = field(default_factory=list)
    dumping: list[Key] = field(default_factory=list)

    def of(self, key: Key) -> list[Process]:
        return [each for each in (*self.running, *self.helpers) if each.key == key]

    def of_job(self, job: str) -> set[Key]:
        return {each.key for each in (*self.running, *self.helpers) if each.key[0] == job}


class World:
    """``chance`` decides; ``setup``: jobs have one. ``reliable``: nothing fails to start and stores say yes."""

    def __init__(self, chance: random.Random, *, setup: bool = False, reliable: bool = False) -> None:
        self.chance, self.reliable, self.now = chance, reliable, 0.0
        self.nodes = dict(NODES)
        self.table = self._new_table()
        self.machines = {name: Machine(name) for name in dict.fromkeys(NODES.values())}
        self.unsaid: deque[tuple[Key, tuple[GangEvent, ...]]] = deque()
        self.events: dict[Key, list[GangEvent]] = {}
        self.placements: dict[Key, Placement] = {}
        self.launch = Launch(command=("train",), setup=("prepare",) if setup else ())
        #: The last place to meet of each attempt, by the number of its question.
        self.opened: dict[Key, int] = {}
        self._ids = 0
        self._told: list[tuple[Key, str, Report]] = []

    def _new_table(self) -> GangTable:
        return GangTable(machine_of=lambda key, node: self.nodes[node], grace_s=GRACE_S)

    def restart_host(self) -> None:
        """The host of the gangs dies and another goes on from what it wrote down; nothing unwritten had been said."""
        keys = [key for key in self.events if key in self.table]
        written = [msgspec.json.encode(self.table.saved(key)) for key in keys]
        self.table = self._new_table()
        for data in written:
            self.table.restore(msgspec.json.decode(data, type=SavedGang))

    def lose(self, name: str) -> None:
        """A machine is gone with all that ran there; another takes over its nodes."""
        self.machines.pop(name)
        another = f"{name}'"
        self.machines[another] = Machine(another)
        self.nodes = {node: another if where == name else where for node, where in self.nodes.items()}
        for key in [key for key in self.events if key in self.table]:
            self.take(self.table.machine_gone(key, name, self.now))

    # -- actions -------------------------------------------------------------------------------------

    def start(self, job: str, placement: Placement) -> Key:
        attempt = 1 + max((number for name, number in self.events if name == job), default=0)
        key = (job, attempt)
        self.events[key], self.placements[key] = [], placement
        self.act(StartJob(id=self._id(), job=job, attempt=attempt, placement=placement))
        return key

    def resize(self, key: Key, placement: Placement) -> None:
        before, self.placements[key] = self.placements[key], placement
        self.act(ResizeJob(id=self._id(), job=key[0], attempt=key[1], before=before, placement=placement))

    def stop(self, key: Key, why: str = "pause") -> None:
        self.act(StopJob(id=self._id(), job=key[0], attempt=key[1], why=why))  # type: ignore[arg-type]

    def act(self, action: Action) -> None:
        self.take(self.table.act(action, {action.job: self.launch}, self.now))

    def take(self, outputs: list[Addressed]) -> None:
        for key, output in outputs:
            assert not self.has_ended(key), f"{output} after the end of {key}"
            if isinstance(output, Record):
                self.unsaid.append((key, output.events))
            elif output.machine in self.machines:
                self.machines[output.machine].commands.append((key, output.command))

    def has_ended(self, key: Key) -> bool:
        return any(isinstance(event, JobFinished | JobStopped) for event in self.events[key])

    # -- what happens --------------------------------------------------------------------------------

    def step(self) -> None:
        """Something that can happen happens."""
        happenings = [self.tick, self.repeat]
        for machine in self.machines.values():
            happenings += [lambda m=machine: self.work(m)] * 3 if machine.commands else []  # type: ignore[misc]
            happenings += [lambda m=machine: self.report(m)] * 3 if machine.reports else []  # type: ignore[misc]
            happenings.append(lambda m=machine: self.live(m))  # type: ignore[misc]
        if self.unsaid:
            happenings += [self.record] * 3
        self.chance.choice(happenings)()

    def tick(self, seconds: float | None = None) -> None:
        self.now += seconds if seconds is not None else self.chance.choice((0.01, 0.1, 1.0, 20.0))
        self.take(self.table.tick(self.now))

    def record(self) -> None:
        key, events = self.unsaid.popleft()
        self.events[key] += events
        if self.has_ended(key):
            ends = [event for event in self.events[key] if isinstance(event, JobFinished | JobStopped)]
            assert len(ends) == 1, f"{key} ended twice: {ends}"
            for machine in self.machines.values():
                assert not machine.of(key), f"{key} has ended and left {machine.of(key)}"
                waiting = [each for each in machine.commands if each[0] == key]
                assert not [c for _, c in waiting if isinstance(c, RunSetup | StartReplicas)], waiting
        assert key in self.table, "an attempt was forgotten before its end was written down"
        self.take(self.table.recorded(key, events, self.now))

    def report(self, machine: Machine) -> None:
        key, report = machine.reports.popleft()
        self.take(self.table.report(key, machine.name, report, self.now))
        self._told.append((key, machine.name, report))

    def repeat(self) -> None:
        """A report comes once more, however late."""
        if self._told:
            key, machine, report = self.chance.choice(self._told)
            self.take(self.table.report(key, machine, report, self.now))

    def live(self, machine: Machine) -> None:
        """Time passes on a machine: a process ends, an answer comes, what is left is killed."""
        self._poll(machine)
        if machine.running and self.chance.random() < 0.5:
            process = self.chance.choice(machine.running)
            if process.killed or process.asked or self.chance.random() < 0.2:
                self.exit(machine, process)
        if machine.opening and self.chance.random() < 0.5:
            key, number = machine.opening.pop(0)
            self._answer_opening(machine, key, number)
        if machine.asked and self.chance.random() < 0.5:
            key, number = machine.asked.pop(0)
            ok = self.reliable or self.chance.random() < 0.95
            there = self.reliable or self.chance.random() < 0.8
            machine.reports.append((key, StoreAnswered(number=number, ok=ok, there=there)))
        if not self.reliable and machine.running and self.chance.random() < 0.02:
            key = self.chance.choice(machine.running).key
            if key in self.opened:
                machine.reports.append((key, RendezvousLost(number=self.opened[key])))

    def exit(self, machine: Machine, process: Process, code: int | None = None) -> None:
        machine.running.remove(process)
        if code is None:
            code = -9 if process.killed else self.chance.choice(CODES)
        if self.chance.random() < 0.3:
            machine.helpers.append(process)
        said: Report = ReplicaExited(member=process.name, code=code, asked=process.asked)
        if process.sets_up:
            said = SetupEnded(member=process.name, code=code)
        machine.reports.append((process.key, said))

    def _poll(self, machine: Machine) -> None:
        for key, (number, kill_at) in list(machine.clearing.items()):
            if self.now >= kill_at:
                machine.helpers = [each for each in machine.helpers if each.key != key]
            if not machine.of(key):
                del machine.clearing[key]
                machine.reports.append((key, AttemptGone(number=number)))
        for key, names in machine.leaving.items():
            machine.helpers = [
                each for each in machine.helpers if not (each.key == key and each.name in names)
            ]
            if names:
                machine.reports.append((key, MembersGone(members=tuple(sorted(names)))))
                names.clear()
        for key in machine.dumping:
            machine.reports.append((key, StacksDumped(text="stack")))
        machine.dumping.clear()

    def _answer_opening(self, machine: Machine, key: Key, number: int) -> None:
        if not self.reliable and self.chance.random() < 0.1:
            machine.reports.append((key, CannotStart(members=(), number=number, reason="no port")))
            return
        store = "store" if self.reliable or self.chance.random() < 0.8 else ""
        place = Rendezvous(address=machine.name, port=1, store=store)
        self.opened[key] = number
        machine.reports.append((key, RendezvousOpened(number=number, rendezvous=place)))

    # -- commands ------------------------------------------------------------------------------------

    def work(self, machine: Machine) -> None:
        key, command = machine.commands.popleft()
        match command:
            case RunSetup():
                self._nothing_else_runs(key)
                machine.running.append(Process(key, command.member, sets_up=True))
            case OpenRendezvous():
                machine.opening.append((key, command.number))
            case StartReplicas():
                self._start(machine, key, command)
            case SignalMembers():
                for process in machine.running:
                    if process.key == key and process.name in command.members:
                        process.asked = True
                        process.killed = process.killed or command.signal == "kill"
            case ClearMembers():
                alive = {p.name for p in machine.running if p.key == key}
                assert not alive & set(command.members), "cleared while it runs"
                machine.leaving.setdefault(key, set()).update(command.members)
            case ClearAttempt():
                assert not [p for p in machine.running if p.key == key], "cleared while it runs"
                machine.clearing[key] = (command.number, self.now + command.kill_in_s)
            case ReleaseDevices():
                for name in command.members:
                    assert (key, name) in machine.held, f"{name} of {key} released twice or never taken"
                    assert not [p for p in machine.of(key) if p.name == name], "released while in use"
                    machine.held.discard((key, name))
            case DumpStacks():
                machine.dumping.append(key)
            case AskStore():
                machine.asked.append((key, command.number))
                if command.notice is not None and self.reliable:
                    self._leave(key, command.notice.members)

    def _start(self, machine: Machine, key: Key, command: StartReplicas) -> None:
        self._nothing_else_runs(key, restarts=command.restarts)
        for member in command.members:
            assert self.nodes[member.seat.node] == machine.name
            assert (key, member.name) not in machine.held, "a name was used again"
            machine.held.add((key, member.name))
            assert all((key, name) in machine.held for name in member.beside[: member.seat.local_rank + 1])
        names = [member.name for member in command.members]
        started = names if self.reliable or self.chance.random() < 0.9 else names[: len(names) // 2]
        for name in started:
            machine.running.append(Process(key, name, command.restarts))
        if started:
            machine.reports.append((key, ReplicasStarted(members=tuple(started))))
        if rest := tuple(names[len(started) :]):
            machine.reports.append((key, CannotStart(members=rest, reason="no device")))

    def _leave(self, key: Key, members: tuple[str, ...]) -> None:
        """Replicas that a notice leaves out save their state and leave."""
        for machine in self.machines.values():
            for process in [p for p in machine.running if p.key == key and p.name not in members]:
                self.exit(machine, process, 143)

    def _nothing_else_runs(self, key: Key, restarts: int = 0) -> None:
        """Nothing of an older attempt, and nothing of this one before it was last started anew."""
        for machine in self.machines.values():
            others = machine.of_job(key[0]) - {key}
            assert not others, f"{key} starts while {others} has processes"
            for process in machine.of(key):
                # what a set-up left behind may be there beside the first replicas
                assert process.sets_up or process.restarts == restarts, f"{process} still runs"

    # -- until everything has come to rest -----------------------------------------------------------

    def advance(self) -> None:
        """Nothing is held up: every command, answer, report and record there is, and a moment passes."""
        for machine in self.machines.values():
            while machine.commands:
                self.work(machine)
            self._poll(machine)
            for key, number in machine.opening:
                self._answer_opening(machine, key, number)
            machine.opening.clear()
            for key, number in machine.asked:
                machine.reports.append((key, StoreAnswered(number=number, there=True)))
            machine.asked.clear()
            for process in [p for p in machine.running if p.killed or p.asked]:
                self.exit(machine, process, -9 if process.killed else 143)
            while machine.reports:
                self.report(machine)
        while self.unsaid:
            self.record()
        self.tick(0.1)

    def advance_until(self, done: Callable[[], bool], rounds: int = 5000) -> None:
        for _ in range(rounds):
            if done():
                break
            self.advance()
        assert done(), "it never came to that"

    @property
    def at_rest(self) -> bool:
        """Whether no attempt is left, nor anything to be done about one."""
        return not self.table and not any(m.commands or m.reports for m in self.machines.values())

    def _id(self) -> int:
        self._ids += 1
        return self._ids


def placed(*slots: tuple[str, int]) -> Placement:
    return Placement(slots=tuple(Slot(node=node, replicas=count, gpu_type="t4") for node, count in slots))
