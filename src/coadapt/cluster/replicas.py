"""The attempts on this machine: actions become processes, and their ends become events in the journal.

What was accepted stands in the journal before it is done, and an end before anybody hears of it. An
attempt starts only when no process of an older attempt of its job is left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from coadapt.cluster import processes
from coadapt.cluster.attempt import Attempt
from coadapt.cluster.devices import Devices
from coadapt.cluster.housekeeping import Housekeeping
from coadapt.cluster.journal import Journal
from coadapt.cluster.logs import directory_of
from coadapt.cluster.oom import OomWatch
from coadapt.cluster.protocol import Apply, Launch
from coadapt.cluster.stores import Stores
from coadapt.cluster.verdict import Why
from coadapt.model import (
    Action,
    JobResized,
    JobStopped,
    Measured,
    Node,
    ReplicasReleased,
    ResizeJob,
    StartJob,
)

#: How often remaining helpers of a replica are looked for, once it is gone; and what replicas say is read.
_LOOK_AGAIN_S, _LISTEN_S = 0.05, 0.5
#: Measurements kept while the journal cannot be written.
_MOST_UNWRITTEN = 1000
_CAUSES: dict[str, Why] = {
    "pause": "paused",
    "cancel": "cancelled",
    "drain": "drained",
    "node-lost": "node-lost",
    "hang": "hang",
    "time-limit": "time-limit",
}


class Replicas:
    """All attempts on this machine. Single-threaded; the keeper calls it when something may have happened."""

    def __init__(self, directory: Path, *, nodes: Sequence[Node], grace_s: float) -> None:
        self.directory, self.grace_s = directory, grace_s
        self.devices, self.oom = Devices(nodes), OomWatch()
        self.journal = Journal(directory / "keeper.db")
        self.attempts: dict[tuple[str, int], Attempt] = {}
        #: Attempts that may not start before an older one of their job is gone.
        self.waiting: dict[tuple[str, int], Attempt] = {}
        self.closing = False
        self.stores = Stores(directory)
        # here, for directories that are made on the way to another are open to all
        (directory / "logs").mkdir(mode=0o700, exist_ok=True)
        self._housekeeping = Housekeeping(directory / "logs", also=self.journal.prune)
        self._unwritten: list[Measured] = []
        self._listen_at = 0.0
        self._bury_predecessor()
        self.journal.joined(nodes)

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
            self.waiting[key] = Attempt(
                action,
                launch,
                token,
                logs=directory_of(self.directory, action.job, action.attempt),
                devices=self.devices,
                stores=self.stores,
                oom=self.oom,
                grace_s=self.grace_s,
            )
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
            if any(attempt.exited(found.si_pid, now) for attempt in self.attempts.values()):
                continue
            if not self.stores.exited(found.si_pid):
                os.waitpid(found.si_pid, 0)

    def turn(self) -> None:
        """Ends attempts whose last process is gone, and starts those that waited for it.

        Where the journal cannot be written (a full disk), nothing is forgotten: the next turn tries again.
        """
        now = time.monotonic()
        in_use = [a.crew.store for a in self.attempts.values() if a.crew.store is not None]
        self.stores.poll(now, in_use)
        self._listen(now)
        for key, attempt in list(self.attempts.items()):
            self._say_started(attempt)
            if attempt.empty(now):
                self._conclude(key, attempt)
            else:
                self._say_started(attempt)
        for key, attempt in list(self.waiting.items()):
            if all(job != key[0] for job, _ in self.attempts):
                self._begin(key, attempt)

    def _begin(self, key: tuple[str, int], attempt: Attempt) -> None:
        del self.waiting[key]
        self.attempts[key] = attempt
        if not attempt.stopped:
            attempt.start(time.monotonic())
            self._say_started(attempt)
        if attempt.empty(time.monotonic()):
            self._conclude(key, attempt)

    def _say_started(self, attempt: Attempt) -> None:
        if attempt.released is not None:
            assert isinstance(attempt.unsaid, JobResized)
            self.journal.moved(attempt.leaders, attempt.released, attempt.unsaid)
            attempt.released = attempt.unsaid = None
            attempt.unled = False
        elif attempt.unled or attempt.unsaid is not None:
            self.journal.leads((attempt.job, attempt.attempt), attempt.leaders, attempt.unsaid)
            attempt.unled, attempt.unsaid = False, None

    def _listen(self, now: float) -> None:
        """Writes down what replicas have told, now and then."""
        if now < self._listen_at:
            return
        self._listen_at = now + _LISTEN_S
        self.oom.look(now)
        for attempt in self.attempts.values():
            self._hear(attempt, now)
        self._write()
        self._housekeeping.look(now, {attempt.logs for attempt in self.attempts.values()})

    def _hear(self, attempt: Attempt, now: float) -> None:
        for found in attempt.told.more(attempt.placement, now):
            self._unwritten.append(Measured(job=attempt.job, attempt=attempt.attempt, measurement=found))

    def _write(self) -> None:
        del self._unwritten[:-_MOST_UNWRITTEN]
        if self._unwritten:
            self.journal.measured(self._unwritten)
            self._unwritten.clear()

    def _conclude(self, key: tuple[str, int], attempt: Attempt) -> None:
        # its last words come before its end
        self._hear(attempt, time.monotonic())
        self._write()
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
        times = [at - now for a in self.attempts.values() if (at := a.next_at) is not None]
        if self.attempts:
            times.append(_LISTEN_S)
        if any(attempt.impatient for attempt in self.attempts.values()):
            times.append(_LOOK_AGAIN_S)
        return max(min(times), _LOOK_AGAIN_S / 5) if times else None

    def _bury_predecessor(self) -> None:
        """Kills what a dead keeper left, and says that its attempts are lost."""
        for attempt in self.journal.unfinished():
            while left := processes.remaining(attempt.token, attempt.leaders):
                processes.signal_each(left, signal.SIGKILL)
                time.sleep(0.005)
            self.journal.ended(JobStopped(job=attempt.job, attempt=attempt.attempt, cause="lost"))
