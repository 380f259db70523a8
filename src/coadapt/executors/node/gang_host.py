"""The keeper's host of gangs: turns actions into commands for this machine, and their results into events in the journal.

An action is in the journal before it is carried out, and an event before it is sent. So an attempt continues and ends
properly while no controller runs. If the journal cannot be written (a full disk) nothing is lost: commands that
follow from an event wait for it, and the next turn tries again.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from coadapt.executors.gang.gang import GangEvent, Record
from coadapt.executors.gang.gang_table import Addressed, GangTable, Key
from coadapt.executors.gang.messages import Report
from coadapt.executors.node import control_groups, processes
from coadapt.executors.node.control_groups import ControlGroups
from coadapt.executors.node.journal import Journal
from coadapt.executors.node.node_agent import NodeAgent
from coadapt.executors.node.node_files import NodeFiles
from coadapt.executors.node.protocol import Apply
from coadapt.executors.node.replica_logs import RETENTION_S, Housekeeping
from coadapt.model import (
    JobFinished,
    JobResized,
    JobStopped,
    Measured,
    Node,
    ReplicasReleased,
    StartJob,
)
from coadapt.wire.node_messages import Launch

#: The one machine of this host.
_HERE = "here"
#: Seconds between two readings of the replicas' output; least seconds between two turns.
_LISTEN_S, _LEAST_S = 0.5, 0.01
#: Measurements kept while the journal cannot be written.
_MOST_UNWRITTEN = 1000


class GangHost:
    """Single-threaded; the keeper calls it when something may have happened.

    Args:
        directory: the keeper's own.
        nodes: of this machine.
        virtual: nodes without hardware of their own.
        home: holds code, checkpoints and paces; None: there are none.
        grace_s: what a replica gets from SIGTERM to SIGKILL.
        groups: control groups, where the machine allows them.
        reaper: whether this process has no other children than those of attempts, and inherits orphans.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: Sequence[Node],
        virtual: Sequence[Node],
        home: Path | None,
        grace_s: float,
        groups: ControlGroups | None = None,
        reaper: bool = False,
    ) -> None:
        self.directory = directory
        self.node = NodeAgent(
            NodeFiles(directory, home), nodes=nodes, virtual=virtual, groups=groups, reaper=reaper
        )
        self._orphans, self._groups = 0, groups
        self.gangs = GangTable(machine_of=lambda key, node: _HERE, grace_s=grace_s)
        self.journal = Journal(directory / "keeper.db")
        self.closing = False
        #: Whether no controller listens: ends are then recorded with their time.
        self.unattended = False
        # made here, because parent directories that mkdir creates are readable by all
        (directory / "logs").mkdir(mode=0o700, exist_ok=True)
        # in a home 'coadapt gc' removes old output, by the policy of the cluster
        retention_s = RETENTION_S if home is None else float("inf")
        self._housekeeping = Housekeeping(
            directory / "logs", retention_s=retention_s, also=self.journal.prune
        )
        #: Events that are not in the journal yet, in order.
        self._unrecorded: deque[tuple[Key, tuple[GangEvent, ...]]] = deque()
        self._unwritten: list[Measured] = []
        self._listen_at = 0.0
        self._bury_predecessor()
        self.journal.joined((*nodes, *virtual))

    @property
    def empty(self) -> bool:
        """Whether no attempt is left, nor a process that has left its attempt."""
        return not self.gangs and not self.node.orphans.living

    def apply(self, request: Apply) -> None:
        """Writes the actions to the journal, then begins to carry them out; the next turn does the rest."""
        now = time.monotonic()
        for action, token in self.journal.accept(request.actions):
            if isinstance(action, StartJob):
                launch = request.launches.get(action.job, Launch(command=()))
                self.node.admit((action.job, action.attempt), launch, token)
            self._carry_out(self.gangs.act(action, request.launches, now))

    def close_down(self) -> None:
        """Stops everything; the keeper ends when nothing is left."""
        self.closing = True
        # a machine that shuts down signals replicas and keeper alike: who has exited by now may not have finished
        self.node.mark_asked()
        self._carry_out(self.gangs.stop_all("shutdown", time.monotonic()))

    def reap(self) -> None:
        """Reaps every child that exited."""
        self._hear(self.node.reap())

    def turn(self) -> None:
        """Advances all attempts as far as possible now."""
        now = time.monotonic()
        # before anything is written: a full disk must not prevent a stop
        self._hear(self.node.poll(now))
        self._carry_out(self.gangs.tick(now))
        self._listen(now)
        self._write_down()

    def patience_s(self) -> float | None:
        """Returns the seconds until the next timed step; None: none before a child exits or the controller sends a
        request.
        """
        now = time.monotonic()
        next_at = self.gangs.next_at
        times = [self.node.patience_s(now), None if next_at is None else next_at - now]
        if self.gangs:
            times.append(_LISTEN_S)
        known = [each for each in times if each is not None]
        return max(min(known), _LEAST_S) if known else None

    def close(self) -> None:
        """Closes the host when the keeper ends."""
        self.node.close()
        self.journal.close()

    # -- gangs and the machine -----------------------------------------------------------------------

    def _hear(self, reports: Iterable[tuple[Key, Report]]) -> None:
        for key, report in reports:
            self._carry_out(self.gangs.report(key, _HERE, report, time.monotonic()))

    def _carry_out(self, outputs: Iterable[Addressed]) -> None:
        """Carries out commands and what follows from them at once; events are queued for the journal."""
        waiting = deque(outputs)
        while waiting:
            key, output = waiting.popleft()
            if isinstance(output, Record):
                self._unrecorded.append((key, output.events))
                continue
            now = time.monotonic()
            for report in self.node.do(key, output.command, now):
                waiting.extend(self.gangs.report(key, output.machine, report, now))

    def _write_down(self) -> None:
        """Writes all events and leaders of this turn in one transaction, then carries out what follows from the events."""
        while self._unrecorded or self.node.unled() or self._orphans != self.node.orphans.count:
            events, leaders = list(self._unrecorded), self.node.unled()
            for key, found in events:
                if isinstance(found[-1], JobFinished | JobStopped) or isinstance(found[0], ReplicasReleased):
                    # its last measurements are recorded before its end
                    self._unwritten += self.node.last_measurements(key, time.monotonic())
            orphans = self.node.orphans.count
            with self.journal.together():
                self.journal.measured(self._unwritten)
                for key, found in events:
                    self._write_events(key, found)
                for key, attempt in leaders:
                    self.journal.leads(key, attempt.leaders)
                if orphans != self._orphans:
                    self.journal.orphaned(orphans - self._orphans, self.node.orphans.last)
            self._orphans = orphans
            self._unwritten.clear()
            for _, attempt in leaders:
                attempt.unled = False
            for key, found in events:
                self._unrecorded.popleft()
                if isinstance(found[-1], JobFinished | JobStopped):
                    self.node.forget(key)
                self._carry_out(self.gangs.recorded(key, found, time.monotonic()))

    def _write_events(self, key: Key, events: tuple[GangEvent, ...]) -> None:
        attempt, event = self.node.attempt(key), events[0]
        if isinstance(event, JobFinished | JobStopped):
            self.journal.ended(
                msgspec.structs.replace(event, ended_at=time.time()) if self.unattended else event
            )
        elif isinstance(event, ReplicasReleased) and len(events) == 1:
            self.journal.released(event)
        elif isinstance(event, ReplicasReleased):
            resized = events[1]
            assert isinstance(resized, JobResized)
            self.journal.moved(attempt.leaders, event, resized)
        else:
            self.journal.leads(key, attempt.leaders, event)

    # -- measurements -------------------------------------------------------------------------------

    def _listen(self, now: float) -> None:
        """Records the measurements of replicas, at intervals."""
        if now < self._listen_at:
            return
        self._listen_at = now + _LISTEN_S
        del self._unwritten[:-_MOST_UNWRITTEN]  # what could not be written
        self._unwritten += self.node.listen(now)
        if self._unwritten:
            self.journal.measured(self._unwritten)
            self._unwritten.clear()
        self._housekeeping.look(now, self.node.directories())

    def _bury_predecessor(self) -> None:
        """Kills the processes that a dead keeper left, and records its attempts as lost."""
        unfinished = self.journal.unfinished()
        keep = "" if self._groups is None else self._groups.base.path
        while True:
            control_groups.kill_all(self.directory, keep=keep)
            table = processes.ProcessTable()
            left = {pid for each in unfinished for pid in table.of_attempt(each.token, each.leaders)}
            left |= set(control_groups.grouped(self.directory))
            if not left:
                break
            processes.signal_each(left, signal.SIGKILL)
            time.sleep(0.005)
        with self.journal.together():
            for attempt in unfinished:
                self.journal.ended(JobStopped(job=attempt.job, attempt=attempt.attempt, cause="lost"))
