"""The life of one attempt inside the keeper: set-up, then its replicas, which start together and end together.

A resize happens in place where the job's agent can (``move``); else it is a restart: all replicas stop, then those of the
new size start, under the same attempt number. Whoever is told to stop gets SIGTERM, ``grace_s``, then SIGKILL; one that hangs shows its stacks first. The attempt is
gone when no process of it is left, helpers of the replicas included.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from coadapt.cluster import processes
from coadapt.cluster.agents import interpreter_of
from coadapt.cluster.crew import Crew
from coadapt.cluster.devices import Devices
from coadapt.cluster.failures import masked
from coadapt.cluster.hang import Hang
from coadapt.cluster.membership import possible
from coadapt.cluster.move import Move
from coadapt.cluster.oom import OomWatch
from coadapt.cluster.protocol import Launch
from coadapt.cluster.replica import Child, Replica
from coadapt.cluster.stores import Stores
from coadapt.cluster.told import Told
from coadapt.cluster.verdict import Verdict, Why
from coadapt.errors import InputError
from coadapt.model import (
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Placement,
    ReplicasReleased,
    StartJob,
)

CANNOT = (OSError, ValueError, InputError, subprocess.SubprocessError)
#: How long a store may take to listen: it imports PyTorch. After that the job runs without.
_STORE_S = 120.0


class Attempt:
    """Replicas of one attempt on this node. The keeper tells it the time and which processes exited."""

    def __init__(
        self,
        action: StartJob,
        launch: Launch,
        token: str,
        *,
        logs: Path,
        devices: Devices,
        stores: Stores,
        oom: OomWatch,
        grace_s: float,
    ) -> None:
        self.job, self.attempt, self.placement = action.job, action.attempt, action.placement
        self.launch, self.token, self.logs, self.grace_s = launch, token, logs, grace_s
        self.crew = Crew(self.job, self.attempt, launch, token, logs=logs, devices=devices)
        self.told = Told(launch)
        self._oom, self._stores = oom, stores
        #: Processes that have not been reaped, by pid.
        self.running: dict[int, Child] = {}
        self.leaders: list[processes.Leader] = []
        #: When what is left is killed; set as soon as the attempt was told to stop.
        self.kill_at: float | None = None
        #: That all replicas run, until it is written down, and that what they left is free; and whether leaders are not written down yet.
        self.unsaid: JobStarted | JobResized | None = None
        self.released: ReplicasReleased | None = None
        self.unled = False
        self._verdict = Verdict(self.job, self.attempt, self._hide)
        self._next: Placement | None = None
        self._resized = self._prepared = False
        self._setup_until: float | None = None
        self._hang: Hang | None = None
        #: Until when it waits for the store its replicas meet at.
        self._store_until: float | None = None
        self._move: Move | None = None

    @property
    def stopped(self) -> bool:
        """Whether it was told to end for good."""
        return self._verdict.cause is not None

    @property
    def impatient(self) -> bool:
        """Whether it waits for something that does not announce itself."""
        return not self.running or self._store_until is not None or self._move is not None

    @property
    def next_at(self) -> float | None:
        """When it must be looked at even if nothing happens."""
        if not self.running:
            return None
        times = [self.kill_at, self._setup_until, self._hang.until if self._hang else None]
        return min((each for each in times if each is not None), default=None)

    # -- what it is told -----------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Starts all replicas of its placement; where one cannot start, the attempt ends as failed."""
        self._resized, self._next = self._resized or self._next is not None, None
        self.kill_at, self.leaders, self.unsaid = None, [], None
        self._verdict.begin()
        try:
            if not self.launch.command:
                raise ValueError("the job has no command")
            self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.launch.setup and not self._prepared:
                self._setup_until = now + self.launch.setup_limit_s
                self._note(self.crew.prepare())
            else:
                self._meet(now)
        except CANNOT as error:
            self._cannot(f"cannot start: {error}", now)

    def stop(self, why: Why, now: float) -> None:
        """The attempt shall end; a resize under way will not go on."""
        self._next = None
        self._end_move()
        if why == "hang" and not self.stopped and self.running and self.kill_at is None:
            self._hang = Hang(self.token, self.leaders, self.running.values(), now)
        self._verdict.stop(why)
        if self._hang is None:
            self._tell(now)

    def resize(self, placement: Placement, now: float) -> None:
        """The attempt shall go on at ``placement``."""
        if self.stopped:
            return
        self._next = placement
        busy = self._move is not None or self.kill_at is not None or self._store_until is not None
        if not busy and (store := self.crew.store) is not None and possible(self.placement, placement):
            self._move = Move(
                self.job,
                self.attempt,
                self.token,
                self.crew,
                store,
                placement,
                now,
                self.running,
                self._note,
            )
        else:
            self._end_move()
            self._tell(now)

    # -- what happens --------------------------------------------------------------------------------

    def exited(self, pid: int, now: float) -> bool:
        """Reaps the process ``pid``; False if it is not one of this attempt's."""
        child = self.running.pop(pid, None)
        if child is None:
            return False
        code = child.wait()
        if isinstance(child, Replica):
            self._replica_ended(child, code, now)
        else:
            self._setup_ended(child, code, now)
        return True

    def empty(self, now: float) -> bool:
        """Whether the last process is gone; kills those that outstay their time."""
        if self._hang is not None and (not self.running or self._hang.over(now)):
            hang, self._hang = self._hang, None
            self._verdict.show(hang.text(self.logs))
            self._tell(now)
        if self._setup_until is not None and now >= self._setup_until and self.running:
            self._cannot(f"the set-up took longer than {self.launch.setup_limit_s:g} s", now)
        if self._store_until is not None:
            self._meet_again(now)
        if self._move is not None:
            self._pursue_move(self._move, now)
        if self.running and self.crew.store is not None and self.crew.store.gone and not self.stopped:
            self.stop("preempted", now)  # its replicas can no longer agree on anything
        overdue = self.kill_at is not None and now >= self.kill_at
        if self._store_until is not None:
            return False
        if self.running:
            if overdue:
                self._signal(signal.SIGKILL)
            return False
        left = processes.remaining(self.token, self.leaders)
        if left and self.kill_at is None:
            # the replicas are done and left something behind
            self.kill_at = now + self.grace_s
            processes.signal_each(left, signal.SIGTERM)
        elif left and overdue:
            processes.signal_each(left, signal.SIGKILL)
        return not left

    def conclude(self) -> JobFinished | JobStopped | ReplicasReleased:
        """What the end of the last process means; ``ReplicasReleased``: it starts again at a new size.

        Nothing uses its devices any more.
        """
        self.crew.give_back()
        return self._verdict.told(self._next)

    # -- its processes -------------------------------------------------------------------------------

    def _meet(self, now: float) -> None:
        """Starts the replicas, once there is the store that their agent needs."""
        self.crew.store = None
        if interpreter := interpreter_of(self.launch, self.crew.common):
            self.crew.store = self._stores.of(interpreter, self.crew.common, now)
        if self.crew.store is None or self.crew.store.address:
            self._start_replicas()
        else:
            self._store_until = now + _STORE_S

    def _meet_again(self, now: float) -> None:
        store = self.crew.store
        assert store is not None
        assert self._store_until is not None
        if self.kill_at is not None:
            self._store_until = None
        elif store.address or store.gone or now >= self._store_until:
            self._store_until = None
            self.crew.store = store if store.address else None
            try:
                self._start_replicas()
            except CANNOT as error:
                self._cannot(f"cannot start: {error}", now)

    def _pursue_move(self, move: Move, now: float) -> None:
        move.pursue(now, self.grace_s)
        if move.failed:
            self._restart_instead(move, now)
        elif move.done:
            assert self._next is not None
            self.placement, self._next, self._move = self._next, None, None
            self.leaders = [replica.leader for replica in self.crew.replicas]
            self.told.listen_to(self.crew.first, move.offsets)
            self.released = ReplicasReleased(job=self.job, attempt=self.attempt, placement=self.placement)
            self.unsaid = JobResized(job=self.job, attempt=self.attempt, placement=self.placement)

    def _ended_in_move(self, move: Move, replica: Replica, code: int, now: float) -> bool:
        """Whether the end of a replica belongs to the resize; ends the resize where it cannot go on."""
        if move.expects(replica, code):
            return True
        if code != 0 and (move.told or not replica.counts):
            self._restart_instead(move, now)
        elif code == 0 and move.told:
            move.overtaken()  # the job has come to its end in the new generation
            self._move = self._next = None
        else:
            self._end_move()  # the job has come to its end before, or failed by itself
        return False

    def _restart_instead(self, move: Move, now: float) -> None:
        self._verdict.excused = move.told
        self._end_move()
        self._tell(now)

    def _end_move(self) -> None:
        if self._move is not None:
            self._move.abandon()
            self._move = None

    def _start_replicas(self) -> None:
        for replica in self.crew.start(self.placement):
            self._note(replica)
        self.told.listen_to(self.crew.first)
        if self._resized:
            self.unsaid = JobResized(job=self.job, attempt=self.attempt, placement=self.placement)
        else:
            self.unsaid = JobStarted(job=self.job, attempt=self.attempt)

    def _note(self, child: Child) -> None:
        self.running[child.pid] = child
        self.leaders.append(child.leader)
        self.unled = True

    def _replica_ended(self, replica: Replica, code: int, now: float) -> None:
        if self._move is not None and self._ended_in_move(self._move, replica, code, now):
            return
        if not replica.counts:
            return
        told = self.kill_at is not None
        oom_killed = code in (-signal.SIGKILL, 137) and not told and self._oom.grew(now)
        lines = "" if code == 0 else replica.last_lines()
        self._verdict.exited(replica.number, code, lines, told=told, oom_killed=oom_killed)
        if code != 0:
            self._tell(now)  # one rank alone cannot go on

    def _setup_ended(self, child: Child, code: int, now: float) -> None:
        self._setup_until = None
        if self.kill_at is not None:
            return
        if code != 0:
            how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
            self._verdict.show(child.last_lines())
            self._cannot(f"the set-up {how}", now)
            return
        self._prepared = True
        try:
            self._meet(now)
        except CANNOT as error:
            self._cannot(f"cannot start: {error}", now)

    def _cannot(self, reason: str, now: float) -> None:
        self._setup_until = None
        self._verdict.cannot(reason)
        self._tell(now)

    def _tell(self, now: float) -> None:
        if self.kill_at is None:
            self.kill_at = now + self.grace_s
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for child in self.running.values():
            child.signal(number)

    def _hide(self, text: str) -> str:
        return masked(text, self.launch.envs, self.launch.token, self.token)
