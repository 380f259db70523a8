"""The attempts on this machine: actions become processes, and their ends become events in the journal.

What was accepted stands in the journal before it is done, and an end before anybody hears of it. An
attempt starts only when no process of an older attempt of its job is left.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from coadapt.cluster import processes
from coadapt.cluster.attempt import Attempt
from coadapt.cluster.journal import Journal
from coadapt.cluster.protocol import Apply, Launch
from coadapt.model import Action, JobStopped, Node, NodeJoined, ReplicasReleased, ResizeJob, StartJob
from coadapt.model.events import StopCause

NODE = "local"
#: How often remaining helpers of a replica are looked for, once it is gone.
_LOOK_AGAIN_S = 0.05
_CAUSES: dict[str, StopCause] = {
    "pause": "paused",
    "cancel": "cancelled",
    "drain": "drained",
    "node-lost": "node-lost",
}


class Replicas:
    """All attempts on this machine. Single-threaded; the keeper calls it when something may have happened."""

    def __init__(self, directory: Path, *, slots: int, grace_s: float) -> None:
        self.directory, self.grace_s = directory, grace_s
        self.journal = Journal(directory / "keeper.db")
        self.attempts: dict[tuple[str, int], Attempt] = {}
        #: Attempts that may not start before an older one of their job is gone.
        self.waiting: dict[tuple[str, int], Attempt] = {}
        self.closing = False
        self._bury_predecessor()
        self.journal.joined(NodeJoined(node=Node(name=NODE, gpus=slots, gpu_type="cpu")))

    # -- actions -----------------------------------------------------------------------------------

    def apply(self, request: Apply) -> None:
        """Writes the actions down, then does them."""
        for action, token in self.journal.accept(request.actions):
            self._carry_out(action, request.launches, token)
        self.turn()

    def close_down(self) -> None:
        """Stops everything; the keeper ends when nothing is left."""
        self.closing = True
        for attempt in (*self.attempts.values(), *self.waiting.values()):
            attempt.stop("preempted", time.monotonic())

    def _carry_out(self, action: Action, launches: Mapping[str, Launch], token: str) -> None:
        now, key = time.monotonic(), (action.job, action.attempt)
        if isinstance(action, StartJob):
            for (job, _), older in self.attempts.items():
                if job == action.job:
                    older.stop("lost", now)
            launch = launches.get(action.job, Launch(command=()))
            logs = self.directory / "logs" / _file_name(action.job, action.attempt)
            self.waiting[key] = Attempt(action, launch, token, logs=logs, grace_s=self.grace_s)
            return
        attempt = self.attempts.get(key) or self.waiting.get(key)
        if attempt is None:
            return  # it has ended
        if isinstance(action, ResizeJob):
            attempt.resize(action.placement, now)
        else:
            attempt.stop(_CAUSES[action.why], now)

    # -- what happens ------------------------------------------------------------------------------

    def reap(self) -> None:
        """Takes note of every child that exited, orphans of replicas included."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            now = time.monotonic()
            if not any(attempt.exited(found.si_pid, now) for attempt in self.attempts.values()):
                os.waitpid(found.si_pid, 0)

    def turn(self) -> None:
        """Ends attempts whose last process is gone, and starts those that waited for it.

        Where the journal cannot be written (a full disk), nothing is forgotten: the next turn tries again.
        """
        now = time.monotonic()
        for key, attempt in list(self.attempts.items()):
            self._say_started(attempt)
            if attempt.empty(now):
                self._conclude(key, attempt)
        for key, attempt in list(self.waiting.items()):
            if all(job != key[0] for job, _ in self.attempts):
                self._begin(key, attempt)

    def _begin(self, key: tuple[str, int], attempt: Attempt) -> None:
        del self.waiting[key]
        self.attempts[key] = attempt
        if not attempt.stopped:
            attempt.start(time.monotonic())
            self._say_started(attempt)
        if not attempt.running:
            self._conclude(key, attempt)

    def _say_started(self, attempt: Attempt) -> None:
        if attempt.unsaid is not None:
            self.journal.started(attempt.leaders, attempt.unsaid)
            attempt.unsaid = None

    def _conclude(self, key: tuple[str, int], attempt: Attempt) -> None:
        event = attempt.conclude()
        if isinstance(event, ReplicasReleased):
            self.journal.released(event)
            attempt.placement = event.placement
            attempt.start(time.monotonic())
            self._say_started(attempt)
        else:
            self.journal.ended(event)
            del self.attempts[key]

    def patience_s(self) -> float | None:
        """How long nothing can happen by itself; None: not before a child or the controller moves."""
        now = time.monotonic()
        times = [a.kill_at - now for a in self.attempts.values() if a.kill_at is not None and a.running]
        if any(not attempt.running for attempt in self.attempts.values()):
            times.append(_LOOK_AGAIN_S)
        return max(min(times), _LOOK_AGAIN_S / 5) if times else None

    def _bury_predecessor(self) -> None:
        """Kills what a dead keeper left, and says that its attempts are lost."""
        for attempt in self.journal.unfinished():
            while left := processes.remaining(attempt.token, attempt.leaders):
                processes.signal_each(left, signal.SIGKILL)
                time.sleep(0.005)
            self.journal.ended(JobStopped(job=attempt.job, attempt=attempt.attempt, cause="lost"))


def _file_name(job: str, attempt: int) -> str:
    """A name for a job's files, whatever characters the job's name has."""
    name = quote(job, safe="")
    if len(name) > 150:
        name = f"{name[:150]}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
    return f"{name}.{attempt}"
