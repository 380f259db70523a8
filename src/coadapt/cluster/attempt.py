"""The life of one attempt inside the keeper: its replicas start together and end together.

A resize is a restart: all replicas stop, then those of the new size start, under the same attempt
number. Whoever is told to stop gets SIGTERM, ``grace_s``, then SIGKILL. The attempt is gone when no
process of it is left, helpers of the replicas included.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from coadapt.cluster import processes
from coadapt.cluster.exits import Exit, judge
from coadapt.cluster.protocol import Launch
from coadapt.model import (
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Placement,
    ReplicasReleased,
    StartJob,
)
from coadapt.model.events import StopCause


class Attempt:
    """Replicas of one attempt on this node. The keeper tells it the time and which processes exited."""

    def __init__(self, action: StartJob, launch: Launch, token: str, *, logs: Path, grace_s: float) -> None:
        self.job, self.attempt, self.placement = action.job, action.attempt, action.placement
        self.launch, self.token, self.logs, self.grace_s = launch, token, logs, grace_s
        #: Leaders that have not been reaped, by rank.
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.leaders: list[processes.Leader] = []
        #: When what is left is killed; set as soon as the attempt was told to stop.
        self.kill_at: float | None = None
        #: That all replicas run, until it is written down.
        self.unsaid: JobStarted | JobResized | None = None
        self._exits: list[Exit] = []
        self._cause: StopCause | None = None
        self._next: Placement | None = None
        self._broken = ""

    @property
    def stopped(self) -> bool:
        """Whether it was told to end for good."""
        return self._cause is not None

    def start(self, now: float) -> None:
        """Starts all replicas of its placement; where one cannot start, the attempt ends as failed."""
        resized, self._next = self._next is not None, None
        self._exits, self.kill_at, self.leaders, self.unsaid = [], None, [], None
        try:
            if not self.launch.command:
                raise ValueError("the job has no command")
            self.logs.mkdir(parents=True, exist_ok=True)
            for rank, envs in enumerate(self._environments()):
                out, err = (self.logs / f"{rank}.{stream}" for stream in ("out", "err"))
                process = processes.start(self.launch.command, envs, out, err)
                self.running[rank] = process
                self.leaders.append(processes.leader_of(process))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._broken = f"cannot start: {error}"
            self._tell(now)
            return
        if resized:
            self.unsaid = JobResized(job=self.job, attempt=self.attempt, placement=self.placement)
        else:
            self.unsaid = JobStarted(job=self.job, attempt=self.attempt)

    def stop(self, cause: StopCause, now: float) -> None:
        """The attempt shall end; a resize under way will not go on."""
        self._cause, self._next = self._cause or cause, None
        self._tell(now)

    def resize(self, placement: Placement, now: float) -> None:
        """The attempt shall go on at ``placement``."""
        if self._cause is None:
            self._next = placement
            self._tell(now)

    def exited(self, pid: int, now: float) -> bool:
        """Reaps the replica led by ``pid``; False if it is not one of this attempt."""
        for rank, process in self.running.items():
            if process.pid == pid:
                del self.running[rank]
                code = process.wait()
                self._exits.append(Exit(rank=rank, code=code, told=self.kill_at is not None))
                if code != 0:
                    self._tell(now)  # one rank alone cannot go on
                return True
        return False

    def empty(self, now: float) -> bool:
        """Whether the last process is gone; kills those that outstay their time."""
        overdue = self.kill_at is not None and now >= self.kill_at
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
        """What the end of the last process means; ``ReplicasReleased``: it starts again at a new size."""
        if self._broken:
            return self._failed(self._broken, None)
        if not self._exits:  # told to stop before it was started
            return JobStopped(job=self.job, attempt=self.attempt, cause=self._cause or "lost")
        end, why = judge(self._exits)
        if end == "stopped" and self._next is not None:
            return ReplicasReleased(job=self.job, attempt=self.attempt, placement=self._next)
        if end == "stopped":
            return JobStopped(job=self.job, attempt=self.attempt, cause=self._cause or "preempted")
        if end == "succeeded":
            return JobFinished(job=self.job, attempt=self.attempt, outcome="succeeded", exit_code=0)
        assert why is not None
        return self._failed(str(why), why.exit_code)

    def _failed(self, reason: str, exit_code: int | None) -> JobFinished:
        return JobFinished(
            job=self.job, attempt=self.attempt, outcome="failed", exit_code=exit_code, reason=reason
        )

    def _tell(self, now: float) -> None:
        if self.kill_at is None:
            self.kill_at = now + self.grace_s
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for process in self.running.values():
            processes.signal_group(process.pid, number)

    def _environments(self) -> Iterator[dict[str, str]]:
        """One environment per replica, in order of rank; ranks count within a role."""
        port = _free_port()
        seen: dict[str, int] = {}
        for slot in self.placement.slots:
            for local_rank in range(slot.replicas):
                rank = seen.get(slot.role, 0)
                seen[slot.role] = rank + 1
                yield {
                    **os.environ,
                    **self.launch.envs,
                    processes.TOKEN: self.token,
                    "COADAPT_JOB": self.job,
                    "COADAPT_ATTEMPT": str(self.attempt),
                    "COADAPT_ROLE": slot.role,
                    "NODE": slot.node,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(self.placement.count(slot.role)),
                    "LOCAL_RANK": str(local_rank),
                    "LOCAL_WORLD_SIZE": str(slot.replicas),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
