"""A resize in place as the attempt sees it: which replicas stay, leave and join, and what becomes of their processes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Container

from coadapt.cluster import processes
from coadapt.cluster.crew import Crew
from coadapt.cluster.exits import SAVED_AND_LEFT
from coadapt.cluster.in_place import InPlace
from coadapt.cluster.membership import change
from coadapt.cluster.replica import Child, Replica
from coadapt.cluster.stores import Store
from coadapt.errors import InputError
from coadapt.model import Placement


class Move:
    """Of one attempt to ``placement``; ``running`` are pids that have not been reaped, ``note`` is told of every start."""

    def __init__(
        self,
        job: str,
        attempt: int,
        token: str,
        crew: Crew,
        store: Store,
        placement: Placement,
        now: float,
        running: Container[int],
        note: Callable[[Child], None],
    ) -> None:
        self._crew, self._token, self._running, self._note = crew, token, running, note
        found = change([replica.seat.node for replica in crew.replicas], placement)
        self._nodes = found.joining
        staying = [crew.replicas[position] for position in found.staying]
        leaving = [crew.replicas[position] for position in found.leaving]
        #: Where output of those that may become the first begins to count.
        self.offsets = {replica.member: replica.out_size() for replica in staying}
        self._newcomers: list[Replica] = []
        self._first_generation = crew.generation
        self._leave_until: float | None = None
        self.failed = self.done = False
        meeting: dict[str, str | int] = {"job": job, "attempt": attempt, "restarts": crew.restarts}
        self._way = InPlace(
            store, meeting, crew.generation, staying=staying, leaving=leaving, start=self._start, now=now
        )

    @property
    def told(self) -> bool:
        """Whether replicas have been told: from there on there is no way back."""
        return self._way.generation > self._first_generation

    def pursue(self, now: float, grace_s: float) -> None:
        """Goes on as far as it can."""
        try:
            self._way.pursue(now)
        except (OSError, ValueError, InputError, subprocess.SubprocessError):
            self.failed = True
            return
        self.failed = self._way.stage == "failed"
        if self._way.stage == "done":
            self._finish(now, grace_s)

    def expects(self, replica: Replica, code: int) -> bool:
        """Whether the replica may end so: it leaves."""
        leaves = replica in self._way.leaving and self.told
        return leaves and (code == SAVED_AND_LEFT or self._way.stage == "done")

    def abandon(self) -> None:
        """Newcomers that are not needed have nothing to save."""
        for replica in self._newcomers:
            if not replica.counts and replica.pid in self._running:
                replica.signal(signal.SIGKILL)

    def overtaken(self) -> None:
        """The job has ended before it was seen that the new generation runs: its members are who counts."""
        for replica in self._newcomers:
            replica.counts = True
        for replica in self._way.leaving:
            replica.counts = False

    def _start(self, generation: int) -> list[Replica]:
        for replica in self._crew.join(self._nodes, self._way.staying, generation):
            replica.counts = False
            self._newcomers.append(replica)
            self._note(replica)
        return self._newcomers

    def _finish(self, now: float, grace_s: float) -> None:
        """Those that left are gone with all they had started, and their devices are free."""
        if self._leave_until is None:
            self._leave_until = now + grace_s
        left = [replica for replica in self._way.leaving if replica.pid in self._running]
        for replica in left:
            if now >= self._leave_until:
                replica.signal(signal.SIGKILL)
        if left:
            return
        for replica in self._way.leaving:
            helpers = processes.remaining(self._token, [replica.leader], member=replica.member)
            processes.signal_each(helpers, signal.SIGKILL)
            if helpers:
                return
        for replica in self._way.leaving:
            self._crew.give_back(replica)
        for replica in self._newcomers:
            replica.counts = True
        self._crew.become(self._way.members, self._way.generation)
        self.done = True
