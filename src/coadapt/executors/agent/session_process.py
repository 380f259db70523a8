"""``python -m coadapt.executors.agent.session_process DIR``: the agent on a machine that joined a controller elsewhere.

It carries out commands of gangs by a ``NodeAgent``, as the keeper does on the controller's own machine, and reports over a
connection that it opens itself (``api_link``). It starts nothing before it is let in, and ends everything when its lease
runs out (``session_lease``). Its settings come as JSON on standard input: they hold a token.

A session is one life of this process. ``process_guard`` starts the next one; before it joins, it ends what its predecessor left,
by the tokens in its directory, and says so.
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import logging
import os
import secrets
import selectors
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import uuid
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.executors.agent.api_link import Api, Link, LinkError, fetch
from coadapt.executors.agent.session_lease import Lease, end_processes
from coadapt.executors.agent.session_messages import (
    PROOF,
    Admit,
    Forget,
    Join,
    Joined,
    LogRead,
    Measurements,
    ReadLog,
    Told,
)
from coadapt.executors.gang.messages import AttemptGone, ReplicaExited, Report, RunSetup, StartReplicas
from coadapt.executors.node import processes
from coadapt.executors.node.keeper_shutdown import end_leftovers
from coadapt.executors.node.node_agent import NodeAgent
from coadapt.executors.node.node_files import NodeFiles
from coadapt.executors.node.replica_logs import Housekeeping, remove_old
from coadapt.model import Node
from coadapt.spec.code_archive import unpack
from coadapt.store.home import write_private

log = logging.getLogger(__name__)

#: Exit codes: the session is over and another may follow; the controller has refused for good.
AGAIN, REFUSED = 75, 76
_LISTEN_S, _LEAST_S = 0.5, 0.01
#: Seconds for which code is tried to be fetched, and for the last reports to arrive when the agent leaves.
_FETCH_S, _FAREWELL_S = 60.0, 10.0

Key = tuple[str, int]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is started with."""

    url: str
    token: str
    nodes: tuple[Node, ...]
    #: Whether the nodes have no hardware of their own.
    virtual: bool = False
    #: Address at which replicas on other machines reach this one; empty: the one on the way to the controller.
    address: str = ""
    ca: str = ""
    unit: str = ""
    generation: str = ""
    #: Unix seconds at which the machine is taken away; None: it stays.
    until: float | None = None
    #: Seconds after which an agent that is not let in ends for good; None: it tries for ever.
    give_up_s: float | None = None


class Agent:
    """Joins the commands of a session with the processes of this machine."""

    def __init__(self, directory: Path, settings: AgentSettings) -> None:
        self.directory, self.settings = directory, settings
        self.session = uuid.uuid4().hex
        self.api = Api(settings.url, settings.token, settings.ca)
        self._tokens: dict[Key, str] = {}
        self._token_file = directory / "tokens"
        self._session_file = directory / "session"
        #: Attempts whose code is being fetched, with the commands that wait for it.
        self._fetching: dict[Key, list[Told]] = {}
        self._fetched: list[Key] = []
        self._leaving = self._shares = False
        self._listen_at = 0.0
        self._alarm, self._alarm_writer = socket.socketpair()
        for end in (self._alarm, self._alarm_writer):
            end.setblocking(False)

    def run(self) -> int:
        """Runs one session; returns the exit code."""
        signal.set_wakeup_fd(self._alarm_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_leave)
        self.link = Link(self.api, self.session, renewed=lambda at: self.lease.renewed(at), wake=self._wake)
        buried = self._bury_predecessor()
        sent_at_least = time.monotonic()
        joined = self._join(buried)
        if joined is None:
            return AGAIN if not self._leaving else 0
        if joined.refused:
            log.error("%s", joined.refused)
            return REFUSED if joined.final else AGAIN
        self.lease = Lease(
            joined.lease_s, joined.grace_s, tokens=lambda: list(self._tokens.values()), exit_code=AGAIN
        )
        self._grace_s = joined.grace_s
        self.lease.start()
        log.info("joined in %.1f s; lease %g s", time.monotonic() - sent_at_least, joined.lease_s)
        place = Path(joined.checkpoints) if self._shares else None
        self.files = NodeFiles(self.directory, self.directory, place)
        address = self.settings.address or self.api.own_address()
        _name_interface(address)
        own, virtual = ((), self.settings.nodes) if self.settings.virtual else (self.settings.nodes, ())
        # all its children are those of attempts: what a replica detached is found as an orphan
        self.node = NodeAgent(self.files, nodes=own, virtual=virtual, address=address, reaper=True)
        (self.directory / "logs").mkdir(mode=0o700, exist_ok=True)
        self._housekeeping = Housekeeping(self.directory / "logs", also=self._remove_old_work)
        self.link.start(joined.lease_s)
        return self._work()

    # -- coming and going -----------------------------------------------------------------------------

    def _bury_predecessor(self) -> tuple[str, ...]:
        """Ends what an earlier agent of this directory left; returns the sessions of which nothing is left."""
        tokens = _lines(self._token_file)
        killed = end_leftovers(self.directory, tokens)
        if killed:
            log.warning("killed %d processes that an earlier agent had left", len(killed))
        earlier = _lines(self._session_file)
        _write(self._token_file, "")
        return tuple(earlier[-100:])

    def _join(self, buried: tuple[str, ...]) -> Joined | None:
        """Asks to be let in until somebody answers; None: told to leave before."""
        remaining_s = None if self.settings.until is None else self.settings.until - time.time()
        request = Join(
            session=self.session,
            nodes=self.settings.nodes,
            machine=machine_name(),
            boot=processes.boot_id(),
            buried=buried,
            unit=self.settings.unit,
            generation=self.settings.generation,
            remaining_s=remaining_s,
            version=version("coadapt"),
            key=self._machine_key(),
        )
        # known before it is claimed: whatever happens, the next agent can say that this session is over
        _write(self._session_file, "\n".join([*buried, self.session]) + "\n")
        complaint, began = "", time.monotonic()
        while not self._leaving:
            try:
                answer = self.link.join(request)
                assert isinstance(answer, Joined)
                if not answer.refused:
                    # the first answer only says where checkpoints are
                    self._shares = _sees(answer)
                    answer = self.link.join(msgspec.structs.replace(request, shares_checkpoints=self._shares))
                    assert isinstance(answer, Joined)
                if not answer.refused or answer.final:
                    return answer
                error: object = answer.refused
            except LinkError as failed:
                error = failed
            if str(error) != complaint:
                complaint = str(error)
                log.warning("cannot join yet: %s", error)
            give_up_s = self.settings.give_up_s
            if give_up_s is not None and time.monotonic() - began > give_up_s:
                return Joined(refused=f"gave up after {give_up_s:.0f} s: {error}", final=True)
            time.sleep(1.0)
        return None

    def _machine_key(self) -> str:
        """Returns the secret of this directory's agents, which lets the next one take the place of this one at once."""
        file = self.directory / "machine_key"
        try:
            return file.read_text().strip()
        except FileNotFoundError:
            write_private(file, secrets.token_hex(32).encode())
            return file.read_text().strip()

    def _told_to_leave(self, number: int, frame: object) -> None:
        self._leaving = True

    def _leave(self) -> int:
        """Ends what runs here, each replica after it saved its state; then says that nothing is left."""
        log.info("leaving: all replicas end")
        # before they are reaped: an engine that ends this machine may have signalled them as well
        self.node.mark_asked()
        over = threading.Event()

        def end() -> None:
            end_processes(lambda: list(self._tokens.values()), self._grace_s)
            over.set()

        threading.Thread(target=end, daemon=True).start()
        until = None
        # the gangs hear of every end, and conclude, before the machine is gone
        while until is None or (time.monotonic() < until and (self._tokens or not self.link.all_said)):
            if over.is_set() and until is None:
                until = time.monotonic() + self._grace_s + _FAREWELL_S
            self._carry_out()
            self._turn(time.monotonic())
            time.sleep(0.05)
        try:
            self.link.leave()
        except LinkError as error:
            log.warning("cannot say good-bye; the controller waits until the lease has run out: %s", error)
        return 0

    # -- work -----------------------------------------------------------------------------------------

    def _work(self) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self._alarm, selectors.EVENT_READ)
            while True:
                if selector.select(self._patience_s()):
                    self._alarm.recv(4096)
                if self.lease.expired:
                    threading.Event().wait()  # the lease's thread ends this process
                if self.link.over:
                    log.error("the session is over: %s", self.link.over)
                    self.lease.end_all()
                    return AGAIN
                if self._leaving or self.link.told_to_leave:
                    self._leaving = True
                    return self._leave()
                self._carry_out()
                self._turn(time.monotonic())

    def _turn(self, now: float) -> None:
        for key, report in (*self.node.reap(), *self.node.poll(now)):
            self._say(key, report)
        if now >= self._listen_at:
            self._listen_at = now + _LISTEN_S
            for measured in self.node.listen(now):
                self.link.say(
                    measured.job, measured.attempt, Measurements(measurements=(measured.measurement,))
                )
            self._housekeeping.look(now, self.node.directories())

    def _carry_out(self) -> None:
        while self._fetched:
            for told in self._fetching.pop(self._fetched.pop(0)):
                self._do(told)
        commands, reads = self.link.take()
        for told in commands:
            key = (told.job, told.attempt)
            if key in self._fetching:
                self._fetching[key].append(told)
            else:
                self._do(told)
        for read in reads:
            self._read(read)

    def _do(self, told: Told) -> None:
        key, command = (told.job, told.attempt), told.command
        if self.lease.expired or (self._leaving and isinstance(command, Admit | RunSetup | StartReplicas)):
            return  # the gang hears that the machine is gone
        if isinstance(command, Admit):
            self._admit(key, command)
        elif isinstance(command, Forget):
            self.node.forget(key)
            self._tokens.pop(key, None)
        elif key in self._tokens:
            for report in self.node.do(key, command, time.monotonic()):
                self._say(key, report)

    def _admit(self, key: Key, command: Admit) -> None:
        # in the file before the first process: whoever buries this agent must find them all
        with self._token_file.open("a") as file:
            file.write(f"{command.token}\n")
            file.flush()
            os.fsync(file.fileno())
        self._tokens[key] = command.token
        self.node.admit(key, command.launch, command.token)
        code = command.launch.code
        if code and not (self.directory / "code" / code).is_dir():
            self._fetching[key] = []
            threading.Thread(target=self._fetch, args=(key, code), daemon=True).start()

    def _fetch(self, key: Key, sha: str) -> None:
        """Fetches code once for this machine; a job whose code cannot be had fails at its start."""
        until, root = time.monotonic() + _FETCH_S, self.directory / "code"
        part = root / f".{sha[:64]}.{uuid.uuid4().hex[:8]}.part"
        while time.monotonic() < until:
            try:
                part.mkdir(mode=0o700, parents=True)
                fetch(self.api, sha, part / "archive")
                if hashlib.sha256((part / "archive").read_bytes()).hexdigest() != sha:
                    raise LinkError("the code that was received has another hash")
                unpack(part / "archive", part / "code")
                (part / "code").rename(root / sha)
                break
            except (CoadaptError, OSError) as error:
                if (root / sha).is_dir():
                    break  # another attempt was faster
                log.warning("cannot fetch code %s: %s", sha[:12], error)
                time.sleep(1.0)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        self._fetched.append(key)
        self._wake()

    def _say(self, key: Key, report: Report) -> None:
        if isinstance(report, AttemptGone | ReplicaExited):
            # its last measurements come before its end
            found = self.node.last_measurements(key, time.monotonic())
            if found:
                self.link.say(*key, Measurements(measurements=tuple(each.measurement for each in found)))
        self.link.say(*key, report)

    def _remove_old_work(self) -> None:
        """Removes working directories of jobs that have not run here for long."""
        in_use = {quote(job, safe="") for job, _ in self._tokens}
        remove_old(self.directory / "work", in_use)

    def _read(self, read: ReadLog) -> None:
        found = self.files.read_log(read.job, read.attempt, read.rank, read.stream, read.offset, read.limit)
        self.link.answer(LogRead(number=read.number, part=found))

    def _patience_s(self) -> float:
        due = self.node.patience_s(time.monotonic())
        times = [_LISTEN_S] if due is None else [_LISTEN_S, due]
        return max(min(times), _LEAST_S)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is awake
            self._alarm_writer.send(b"\0")


def machine_name() -> str:
    """Returns a name of this machine that stays when it boots again."""
    try:
        identity = Path("/etc/machine-id").read_text().strip()
    except OSError:
        identity = ""
    return f"{socket.gethostname()}/{identity[:12]}" if identity else socket.gethostname()


def interface_of(address: str) -> str:
    """Returns the network interface that has an IPv4 address; empty if none has, or it is loopback."""
    if address.startswith("127.") or ":" in address:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack("256s", name.encode()[:15]))
            try:
                fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(request.tobytes()[20:24]) == address:
                return name
    return ""


def _name_interface(address: str) -> None:
    """Has replicas talk over the interface at which others reach them; the name of the host may lead elsewhere."""
    if name := interface_of(address):
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, name)


def _sees(joined: Joined) -> bool:
    """Whether the hub's place of checkpoints is the same here, for reading and for writing."""
    if not joined.checkpoints:
        return False
    place, own = Path(joined.checkpoints), f"{PROOF}-{uuid.uuid4().hex[:12]}"
    try:
        same = (place / PROOF).read_text() == joined.proof
        (place / own).write_text("")
        (place / own).unlink()
    except OSError as error:
        log.warning("the place of checkpoints %s cannot be used here: %s", place, error.strerror)
        return False
    if not same:
        log.warning("the directory %s is not the controller's place of checkpoints", place)
    return same


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().split("\n") if line]
    except OSError:
        return []


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def main() -> int:
    """Runs one session of an agent; ``process_guard`` starts it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    directory = Path(sys.argv[1])
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=AgentSettings)
    with (directory / "agent.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.error("another agent uses %s; give this one another --directory", directory)
            return REFUSED
        processes.adopt_orphans()
        try:
            return Agent(directory, settings).run()
        except InputError as error:
            log.error("%s", error)
            return REFUSED


if __name__ == "__main__":
    sys.exit(main())
