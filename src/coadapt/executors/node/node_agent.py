"""All attempts on one machine: carries out the commands of their gangs, and reports the results.

It decides nothing: the gang decides which replicas there are, when they stop and what their exits mean. The agent owns
what belongs to the machine: processes, devices, environments, output files, stacks, and the stores for the rendezvous.
``NodeAttempt`` is one attempt, ``NodeAgent`` all of them.

Single-threaded, and never blocks: its host calls ``do`` with commands, ``reap`` when a child may have ended, and
``poll`` now and then. In the keeper the host of the gangs is its host too.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path

from coadapt.errors import InputError
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
from coadapt.executors.node import environment, processes
from coadapt.executors.node.accounts import Account, account_of, own_checkpoints
from coadapt.executors.node.control_groups import ControlGroups
from coadapt.executors.node.devices import Devices, Taken
from coadapt.executors.node.hang_stacks import Hang
from coadapt.executors.node.node_files import NodeFiles
from coadapt.executors.node.orphans import Orphans
from coadapt.executors.node.processes import OomWatch, ProcessTable, entry_of
from coadapt.executors.node.rendezvous_stores import Store, StoreAnswer, Stores
from coadapt.executors.node.replica import Child, Replica
from coadapt.executors.node.replica_logs import masked
from coadapt.executors.node.stdout_reports import ReportFollower
from coadapt.model import Measured, Measurement, Node, Placement
from coadapt.wire.agent import Variable
from coadapt.wire.node_messages import Launch, Limits

_CANNOT = (OSError, ValueError, InputError, subprocess.SubprocessError)
#: Seconds that a store may take to listen, since it imports PyTorch. After that the job runs without one.
_STORE_S = 120.0
_SIGNALS = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}


class NodeAttempt:
    """Processes of one attempt on this machine.

    Args:
        job: id of the job.
        attempt: number of the attempt.
        launch: what its replicas run.
        token: marks all its processes; written to the journal before the first of them starts.
        files: paths of code, checkpoints and output.
        devices: GPUs and cores of this machine's nodes.
        stores: rendezvous stores.
        oom: counts kills for lack of memory.
        groups: control groups; None: this machine allows none.
        address: of this machine, where replicas meet.
    """

    def __init__(
        self,
        job: str,
        attempt: int,
        launch: Launch,
        token: str,
        *,
        files: NodeFiles,
        devices: Devices,
        stores: Stores,
        oom: OomWatch,
        groups: ControlGroups | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self._address = address
        self.job, self.attempt, self.launch, self.token = job, attempt, launch, token
        self._groups = groups
        self.logs = files.log_directory(job, attempt)
        self._files, self._devices, self._stores, self._oom = files, devices, stores, oom
        self._checkpoints = files.checkpoint_directory(job)
        saves = str(self._checkpoints) if self._checkpoints else ""
        #: The account that it runs as: found when it starts, since it may have been removed.
        self._account: Account | None = None
        self._common = environment.of_job(launch, token, job, attempt, checkpoints=saves)
        #: Processes that have not been reaped, by pid; replicas since the last time no process was left, by member.
        self._children: dict[int, Child] = {}
        self._replicas: dict[str, Replica] = {}
        self._leaders: list[tuple[str, processes.Leader]] = []
        #: Whether leaders are not in the journal yet.
        self.unled = False
        self._secret = ""
        self._held: dict[str, Taken] = {}
        self.store: Store | None = None
        #: Number of the open request for a rendezvous, and how long a store is waited for.
        self._opening: tuple[int, float] | None = None
        self._opened_by = 0
        self._answers: list[Report] = []
        self._hang: Hang | None = None
        #: Members whose helpers are being killed; and the request to clear the attempt, with the time of the kill.
        self._leaving: set[str] = set()
        self._clearing: tuple[int, float] | None = None
        #: Whether SIGTERM is still to be sent to what is cleared; and since when it is looked for.
        self._terminate = False
        self._since = 0.0
        #: Whether a process of it has exited: what that one left may be anywhere.
        self.has_left = False
        self._reports = ReportFollower(launch)
        self._placement = Placement()
        self._marks: dict[str, int] = {}

    @property
    def pids(self) -> Iterable[int]:
        """Its processes that this one has started and not reaped."""
        return self._children

    @property
    def leaders(self) -> list[processes.Leader]:
        """Leaders of the sessions in which processes of the attempt may be."""
        return [leader for _, leader in self._leaders]

    @property
    def impatient(self) -> bool:
        """Whether it waits for something that does not announce itself."""
        asks = self.store is not None and self.store.awaits_answer
        return bool(self.clearing or self._opening or asks)

    @property
    def clearing(self) -> bool:
        """Whether processes of it are to be gone, and are looked for."""
        return bool(self._clearing or self._leaving)

    @property
    def next_at(self) -> float | None:
        """When it must be polled even if nothing happens."""
        return self._hang.until if self._hang is not None else None

    def look_again_s(self, now: float) -> float:
        """Seconds until it looks again for what does not announce itself: what stays for long is looked for less often."""
        long = self.clearing and not self._opening and now - self._since > _PROMPT_S
        return _LOOK_SELDOM_S if long else _LOOK_AGAIN_S

    # -- commands ------------------------------------------------------------------------------------

    def do(self, command: Command, now: float) -> list[Report]:
        """Carries out a command; returns the reports that are known at once."""
        match command:
            case RunSetup():
                return self._run_setup(command.member)
            case OpenRendezvous():
                return self._open(command.number, now)
            case StartReplicas():
                return self._start(command)
            case SignalMembers():
                for child in self._children.values():
                    if child.member in command.members:
                        child.ask(_SIGNALS[command.signal])
            case ClearMembers():
                self._leaving |= set(command.members)
                self._since = now
            case ClearAttempt():
                # looked for in the next poll, together with what other attempts have left
                self._clearing = (command.number, now + command.kill_in_s)
                self._terminate, self._since = command.terminate, now
            case ReleaseDevices():
                self._release(command.members)
            case DumpStacks():
                leaders, children = self.leaders, self._children.values()
                self._hang = Hang(self.token, leaders, children, now, ranks=command.ranks)
                return self._show_stacks(now)
            case MarkOutput():
                here = [name for name in command.members if name in self._replicas]
                self._marks = {name: self._replicas[name].out_size() for name in here}
            case FollowOutput():
                self._placement = command.placement
                self._reports.listen_to(self._replicas.get(command.member), self._marks)
                self._marks = {}
            case AskStore():
                self._ask(command)
        return []

    # -- what happens --------------------------------------------------------------------------------

    def exited(self, pid: int, now: float) -> Report | None:
        """Reaps the process ``pid``; None if it is not one of this attempt's."""
        child = self._children.pop(pid, None)
        if child is None:
            return None
        self.has_left = True
        code = child.wait()
        lines = "" if code == 0 else self._hide(child.last_lines())
        if not isinstance(child, Replica):
            return SetupEnded(member=child.member, code=code, lines=lines)
        oom = code in (-signal.SIGKILL, 137) and (self._oom.grew(now) or self._at_its_limit(child.member))
        asked = child.asked and not (code == 0 and child.says_done())
        return ReplicaExited(member=child.member, code=code, lines=lines, out_of_memory=oom, asked=asked)

    def mark_asked(self) -> None:
        """Notes that its processes are being asked to stop by somebody else: whoever ends from now on may have been told to."""
        for child in self._children.values():
            child.asked = True

    def _at_its_limit(self, member: str) -> bool:
        return self._groups is not None and self._groups.out_of_memory(self.token, member)

    def poll(self, now: float, look: Callable[[], ProcessTable], *, haunted: bool = False) -> list[Report]:
        """Returns reports of changes that no signal announces. Kills processes whose grace time is over.

        Args:
            now: the present time.
            look: returns the processes of this turn.
            haunted: an orphan that may be of this attempt lives.
        """
        found, self._answers = self._answers, []
        found += self._show_stacks(now)
        if self._opening is not None:
            found += self._open_again(*self._opening, now)
        elif self.store is not None and self.store.gone:
            self.store = None
            found.append(RendezvousLost(number=self._opened_by))
        if self._leaving:
            found += self._clear_members(look, haunted=haunted)
        if self._clearing is not None:
            found += self._look_for_rest(now, look, haunted=haunted)
        return found

    def measurements(self, now: float) -> list[Measurement]:
        """Returns what the first replica has reported since the last call."""
        return self._reports.more(self._placement, now)

    # -- starting ------------------------------------------------------------------------------------

    def _run_setup(self, member: str) -> list[Report]:
        child = Child("setup", self.logs, member=member)
        try:
            self._find_account()
            self._make_directories()
            confinement = self._confinement(member, Limits())
            child.start(self.launch.setup, self._common, workdir=self._workdir(), confinement=confinement)
        except _CANNOT as error:
            return [CannotStart(members=(member,), reason=self._hide(f"cannot start: {error}"))]
        self._note(child)
        return []

    def _open(self, number: int, now: float) -> list[Report]:
        """Opens a rendezvous, once the store that the replicas' agent needs is there."""
        self.store, self._opening = None, None
        try:
            self._find_account()
            if interpreter := environment.interpreter_of(self.launch, self._common, self._workdir()):
                self.store = self._stores.of(interpreter, self._common, now, self._account)
        except _CANNOT as error:
            return [self._no_rendezvous(number, error)]
        if self.store is not None and not self.store.address:
            self._opening = (number, now + _STORE_S)
            return []
        return [self._opened(number)]

    def _open_again(self, number: int, until: float, now: float) -> list[Report]:
        store = self.store
        assert store is not None
        if not store.address and not store.gone and now < until:
            return []
        self._opening = None
        self.store = store if store.address else None
        return [self._opened(number)]

    def _opened(self, number: int) -> Report:
        try:
            port = _free_port(self._address)
        except OSError as error:
            return self._no_rendezvous(number, error)
        self._opened_by = number
        store, self._secret = self.store.address if self.store is not None else "", secrets.token_hex(32)
        found = Rendezvous(address=self._address, port=port, store=store, secret=self._secret)
        return RendezvousOpened(number=number, rendezvous=found)

    def _no_rendezvous(self, number: int, error: Exception) -> Report:
        return CannotStart(members=(), number=number, reason=self._hide(f"cannot start: {error}"))

    def _start(self, command: StartReplicas) -> list[Report]:
        names = [member.name for member in command.members]
        started: list[str] = []
        found: list[Report] = []
        try:
            self._find_account()
            self._make_directories()
            for member in command.members:
                seat = member.seat
                demand = self.launch.gpus.get(seat.role, 1)
                self._held[member.name] = self._devices.take(seat.node, demand, seat.share)
            for member in command.members:
                self._launch(member, command)
                started.append(member.name)
        except _CANNOT as error:
            rest = tuple(names[len(started) :])
            found.append(CannotStart(members=rest, reason=self._hide(f"cannot start: {error}")))
        if started:
            found.insert(0, ReplicasStarted(members=tuple(started)))
        return found

    def _launch(self, member: Member, command: StartReplicas) -> None:
        seat, taken = member.seat, self._held[member.name]
        replica = Replica(member.number, seat, taken, member.name, self.logs)
        cores = self._devices.cores(taken)
        place = environment.of_seat(
            seat,
            self.launch,
            address=command.rendezvous.address,
            port=command.rendezvous.port,
            cores=len(cores) if cores else None,
            virtual=self._devices.is_virtual(seat.node),
            pace=self._files.pace(self.launch.profile, seat.gpu_type),
        )
        beside = [number for name in member.beside for number in self._held[name].numbers]
        envs = {
            **self._common,
            **place,
            # all devices of the job on this node, so that LOCAL_RANK selects its own as under torchrun
            **self._devices.visible(seat.node, beside),
            **({Variable.STORE: command.rendezvous.store} if command.rendezvous.store else {}),
            Variable.STORE_SECRET: command.rendezvous.secret,
            Variable.MEMBER: member.name,
            "TORCHELASTIC_RESTART_COUNT": str(command.restarts),
            **({Variable.JOIN: str(command.join)} if command.join else {}),
        }
        limits = self.launch.limits.get(seat.role, Limits())
        confinement = self._confinement(member.name, limits, cores=cores)
        replica.start(self.launch.command, envs, workdir=self._workdir(), confinement=confinement)
        self._replicas[member.name] = replica
        self._note(replica)

    def _confinement(
        self, member: str, limits: Limits, cores: frozenset[int] | None = None
    ) -> processes.Confinement:
        joined = () if self._groups is None else self._groups.join(self.token, member, limits)
        owner = self._account
        return processes.Confinement(
            cores=cores,
            groups=joined,
            account=None if owner is None else (owner.uid, owner.gid, owner.groups),
            reaper=self._groups is None,
        )

    def _note(self, child: Child) -> None:
        self._children[child.pid] = child
        self._leaders.append((child.member, child.leader))
        self.unled = True

    def _make_directories(self) -> None:
        self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._checkpoints:
            self._checkpoints.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._account is not None:
                own_checkpoints(self._checkpoints, self._account)
            self._checkpoints.mkdir(mode=0o700, exist_ok=True)

    def _find_account(self) -> None:
        """Finds the account that the job runs as; InputError if there is none."""
        if self.launch.account and self._account is None:
            self._account = account_of(self.launch.account)
            self._files.open_to_accounts()
            closed = [name for name in self._common if name.startswith("XDG_") or name == "TMPDIR"]
            kept = {name: value for name, value in self._common.items() if name not in closed}
            self._common = {
                **kept,
                **self._account.environment,
                **self.launch.envs,
                **environment.marks(self._common),
            }

    def _workdir(self) -> str:
        if self._account is not None:
            return self._files.account_code_directory(self.launch.code, self._account) or "/"
        return self._files.work_directory(self.job, self.launch.code)

    # -- ending --------------------------------------------------------------------------------------

    def _clear_members(self, look: Callable[[], ProcessTable], *, haunted: bool) -> list[Report]:
        """Kills helpers of members that left; reports the members without remaining processes."""
        gone = []
        for name in sorted(self._leaving):
            if self._groups is not None and self._groups.populated(self.token, name):
                self._groups.kill(self.token, name)
                continue
            leaders = [leader for member, leader in self._leaders if member == name]
            helpers = look().of_attempt(self.token, leaders, member=name)
            processes.signal_each(helpers, signal.SIGKILL)
            if not helpers and not haunted:
                gone.append(name)
        self._leaving -= set(gone)
        return [MembersGone(members=tuple(gone))] if gone else []

    def _look_for_rest(self, now: float, look: Callable[[], ProcessTable], *, haunted: bool) -> list[Report]:
        """Reports when no process of the attempt is left; kills the rest when the grace time is over."""
        assert self._clearing is not None
        number, kill_at = self._clearing
        terminate, self._terminate = self._terminate, False
        # what is in its group need not be looked for elsewhere
        left = self._groups.pids(self.token) if self._groups is not None else set()
        if not left:
            left = look().of_attempt(self.token, self.leaders)
        if left:
            if terminate:
                processes.signal_each(left, signal.SIGTERM)
            elif now >= kill_at:
                if self._groups is not None:
                    self._groups.kill(self.token)
                processes.signal_each(left, signal.SIGKILL)
            return []
        if haunted or (self._groups is not None and self._groups.populated(self.token)):
            return []
        self._clearing = None
        self._replicas.clear()
        self._leaders.clear()
        if self._groups is not None:
            self._groups.remove(self.token)
        return [AttemptGone(number=number)]

    def _release(self, members: tuple[str, ...]) -> None:
        for name in members:
            taken = self._held.pop(name, None)
            if taken is not None:
                self._devices.give_back(taken)
            self._replicas.pop(name, None)
        self._leaders = [each for each in self._leaders if each[0] not in members]

    def _show_stacks(self, now: float) -> list[Report]:
        if self._hang is None or (self._children and not self._hang.over(now)):
            return []
        hang, self._hang = self._hang, None
        return [StacksDumped(text=self._hide(hang.text(self.logs)))]

    # -- the store -----------------------------------------------------------------------------------

    def _ask(self, command: AskStore) -> None:
        if self.store is None or self.store.gone:
            self._answers.append(StoreAnswered(number=command.number, ok=False))
            return
        question: dict[str, object] = {
            "job": self.job,
            "attempt": self.attempt,
            "restarts": command.restarts,
            "secret": self._secret,
        }
        if command.notice is not None:
            question |= {"ask": "notify", "notice": command.notice}
        else:
            question |= {"ask": "there", "keys": command.keys}
        self.store.ask(question, partial(self._answered, command.number))

    def _answered(self, number: int, answer: StoreAnswer) -> None:
        self._answers.append(StoreAnswered(number=number, ok=answer.ok, there=answer.there))

    def _hide(self, text: str) -> str:
        return masked(text, self.launch.envs, self.launch.token, self.token, self._secret)


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


#: Seconds between two searches for helpers that a replica left; after the first seconds, since their ends announce
#: themselves as those of children.
_LOOK_AGAIN_S, _LOOK_SELDOM_S, _PROMPT_S = 0.05, 0.5, 2.0

Key = tuple[str, int]


class NodeAgent:
    """All attempts on this machine.

    Args:
        files: paths of code, checkpoints and output.
        nodes: nodes with hardware of this machine.
        virtual: nodes without hardware of their own.
        groups: control groups, where the machine allows them.
        reaper: whether this process has no other children than those of attempts, and inherits orphans.
        address: of this machine, where replicas meet.
    """

    def __init__(
        self,
        files: NodeFiles,
        *,
        nodes: Sequence[Node],
        virtual: Sequence[Node],
        groups: ControlGroups | None = None,
        reaper: bool = False,
        address: str = "127.0.0.1",
    ) -> None:
        self._reaper = reaper
        self._files, self._devices, self._address = files, Devices(nodes, virtual=virtual), address
        self._oom, self._stores = OomWatch(), Stores(files.keeper, address)
        self._attempts: dict[Key, NodeAttempt] = {}
        self._groups, self.orphans = groups, Orphans()

    def admit(self, key: Key, launch: Launch, token: str) -> None:
        """Commands for this attempt will follow; ``token``, which is in the journal, will mark all its processes."""
        self._attempts[key] = NodeAttempt(
            *key,
            launch,
            token,
            files=self._files,
            devices=self._devices,
            stores=self._stores,
            oom=self._oom,
            groups=self._groups,
            address=self._address,
        )

    def forget(self, key: Key) -> None:
        """Forgets an attempt that has ended."""
        self._attempts.pop(key, None)
        self.orphans.forget_claims()

    def attempt(self, key: Key) -> NodeAttempt:
        """Returns an attempt that was admitted."""
        return self._attempts[key]

    def unled(self) -> list[tuple[Key, NodeAttempt]]:
        """Attempts with leaders that are not in the journal yet."""
        return [(key, attempt) for key, attempt in self._attempts.items() if attempt.unled]

    def directories(self) -> set[Path]:
        """Directories that replicas write to."""
        return {attempt.logs for attempt in self._attempts.values()}

    def do(self, key: Key, command: Command, now: float) -> list[Report]:
        """Carries out a command; returns the reports that are known at once."""
        return self._attempts[key].do(command, now)

    def mark_asked(self) -> None:
        """Notes that all processes are being asked to stop, by whoever ends this machine's part."""
        for attempt in self._attempts.values():
            attempt.mark_asked()

    def reap(self) -> list[tuple[Key, Report]]:
        """Reaps every child that exited, orphans of replicas included."""
        found: list[tuple[Key, Report]] = []
        while True:
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return found
            if child is None:
                return found
            ended = self._exited(child.si_pid)
            if ended is not None:
                found.append(ended)
            elif not self._stores.exited(child.si_pid):
                os.waitpid(child.si_pid, 0)
                self.orphans.reaped(child.si_pid)

    def _exited(self, pid: int) -> tuple[Key, Report] | None:
        now = time.monotonic()
        for key, attempt in self._attempts.items():
            report = attempt.exited(pid, now)
            if report is not None:
                return key, report
        return None

    def poll(self, now: float) -> list[tuple[Key, Report]]:
        """Returns reports of changes that no signal announces."""
        in_use = [attempt.store for attempt in self._attempts.values() if attempt.store is not None]
        self._stores.poll(now, in_use)
        self.look_for_orphans()
        look = cache(ProcessTable)
        return [
            (key, report)
            for key, attempt in self._attempts.items()
            for report in attempt.poll(now, look, haunted=self.orphans.may_own(key))
        ]

    def look_for_orphans(self) -> None:
        """Kills children of this process that no attempt can claim."""
        if not self._reaper:
            return
        known = {pid for attempt in self._attempts.values() for pid in attempt.pids} | self._stores.pids
        tokens = {attempt.token for attempt in self._attempts.values()}
        sessions = {leader.pid for attempt in self._attempts.values() for leader in attempt.leaders}

        def claim(pid: int) -> bool:
            entry = entry_of(pid)
            if entry is None or entry.token in tokens or entry.session in sessions:
                return True
            return self._groups is not None and self._groups.token_of(pid) in tokens

        def suspects() -> list[Key]:
            return [key for key, attempt in self._attempts.items() if attempt.has_left or attempt.clearing]

        if suspects():
            # a process that was claimed by its control group may have left the group since
            self.orphans.forget_claims()
        self.orphans.look(known, claim, suspects)

    def listen(self, now: float) -> list[Measured]:
        """Returns what replicas have reported since the last call."""
        self._oom.look(now)
        return [measured for key in self._attempts for measured in self.last_measurements(key, now)]

    def last_measurements(self, key: Key, now: float) -> list[Measured]:
        """Returns what one attempt has reported since the last call."""
        job, number = key
        found = self._attempts[key].measurements(now)
        return [Measured(job=job, attempt=number, measurement=each) for each in found]

    def patience_s(self, now: float) -> float | None:
        """Returns the seconds until ``poll`` is needed; None: not before something else happens."""
        times = [at - now for each in self._attempts.values() if (at := each.next_at) is not None]
        times += [each.look_again_s(now) for each in self._attempts.values() if each.impatient]
        if self.orphans.living:
            times.append(_LOOK_AGAIN_S)
        return min(times, default=None)

    def close(self) -> None:
        """Ends the stores, after all attempts have ended."""
        self._stores.close()
