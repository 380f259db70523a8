"""All gangs of one host: passes actions and reports to their gang, and begins an attempt when the older one of its job
is gone. Pure.

A host keeps the table, passes its orders to machines, and writes its records to the journal before any controller
sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from coadapt.executors.gang.gang import (
    Begin,
    Gang,
    GangEvent,
    MachineGone,
    Output,
    Recorded,
    Resize,
    Stop,
    Tick,
)
from coadapt.executors.gang.messages import Report
from coadapt.executors.gang.saved_gang import SavedGang, load, save
from coadapt.executors.gang.verdict import Why
from coadapt.model import Action, JobFinished, JobStopped, Placement, ResizeJob, StartJob
from coadapt.wire.node_messages import Launch

#: An attempt: job and number.
Key = tuple[str, int]
Addressed = tuple[Key, Output]

_CAUSES: dict[str, Why] = {
    "pause": "paused",
    "cancel": "cancelled",
    "drain": "drained",
    "node-lost": "node-lost",
    "hang": "hang",
    "time-limit": "time-limit",
}


class GangTable:
    """Every method returns what is to be done, in order.

    Args:
        machine_of: the machine that a node is on, for an attempt.
        grace_s: seconds from SIGTERM to SIGKILL.
        may_begin: whether the machines of an attempt that waits are there.
    """

    def __init__(
        self,
        *,
        machine_of: Callable[[Key, str], str],
        grace_s: float,
        may_begin: Callable[[Key], bool] = lambda key: True,
    ) -> None:
        self._machine_of, self._grace_s, self._may_begin = machine_of, grace_s, may_begin
        self._gangs: dict[Key, Gang] = {}
        #: Gangs that wait for an older attempt of their job to end.
        self._waiting: dict[Key, Gang] = {}

    def __bool__(self) -> bool:
        return bool(self._gangs or self._waiting)

    def __contains__(self, key: Key) -> bool:
        return key in self._gangs or key in self._waiting

    @property
    def begun(self) -> list[Key]:
        """Attempts that may have processes."""
        return list(self._gangs)

    @property
    def waiting(self) -> dict[Key, Placement]:
        """Attempts that have not begun, and where they are to run."""
        return {key: gang.placement for key, gang in self._waiting.items()}

    @property
    def next_at(self) -> float | None:
        """When the next ``tick`` is due even if nothing happens."""
        times = [gang.next_at for gang in self._gangs.values()]
        return min((each for each in times if each is not None), default=None)

    def act(self, action: Action, launches: Mapping[str, Launch], now: float) -> list[Addressed]:
        """Handles an action; a start waits for the next ``tick``, so that a stop in the same batch prevents it."""
        key = (action.job, action.attempt)
        if isinstance(action, StartJob):
            found: list[Addressed] = []
            for older in [each for each in self._all() if each[0] == action.job]:
                found += self._tell(older, Stop("lost"), now)
            launch = launches.get(action.job, Launch(command=()))
            self._waiting[key] = Gang(
                action, launch, machine_of=partial(self._machine_of, key), grace_s=self._grace_s
            )
            return found
        if key not in self:
            return []  # it has ended
        if isinstance(action, ResizeJob):
            return self._tell(key, Resize(action.placement), now)
        return self._tell(key, Stop(_CAUSES[action.why]), now)

    def report(self, key: Key, machine: str, report: Report, now: float) -> list[Addressed]:
        """Passes a machine's report to the gang of an attempt; nothing follows if the attempt has ended.

        Args:
            key: job and attempt number.
            machine: name of the machine that reports.
            report: what it reports.
            now: the present time.
        """
        if key not in self._gangs:
            return []
        return [(key, output) for output in self._gangs[key].handle(report, now, machine)]

    def machine_gone(self, key: Key, machine: str, now: float) -> list[Addressed]:
        """Tells the gang of an attempt that a machine is gone for good, with all processes on it."""
        if key not in self._gangs:
            return []
        return [(key, output) for output in self._gangs[key].handle(MachineGone(), now, machine)]

    def recorded(self, key: Key, events: tuple[GangEvent, ...], now: float) -> list[Addressed]:
        """Notes that events of a gang are in the journal; forgets a gang that has ended, and begins the next attempt of
        its job.
        """
        found = self._tell(key, Recorded(events), now)
        if isinstance(events[-1], JobFinished | JobStopped):
            del self._gangs[key]
            found += self._begin(now)
        return found

    def tick(self, now: float) -> list[Addressed]:
        """Advances all gangs to ``now``, and begins attempts whose predecessors have ended."""
        found = self._begin(now)
        for key in list(self._gangs):
            found += self._tell(key, Tick(), now)
        return found

    def stop_all(self, why: Why, now: float) -> list[Addressed]:
        """Stops every attempt, for the cause ``why``."""
        found: list[Addressed] = []
        for key in list(self._all()):
            found += self._tell(key, Stop(why), now)
        return found

    # -- for a host that writes gangs down ------------------------------------------------------------

    def saved(self, key: Key) -> SavedGang | None:
        """Returns the state of an attempt's gang; None if the attempt has ended."""
        gang = self._gangs.get(key) or self._waiting.get(key)
        return None if gang is None else save(gang, waiting=key in self._waiting)

    def restore(self, saved: SavedGang) -> None:
        """Adds a gang that an earlier host wrote down."""
        key = (saved.job, saved.attempt)
        gang = load(saved, machine_of=partial(self._machine_of, key), grace_s=self._grace_s)
        (self._waiting if saved.waiting else self._gangs)[key] = gang

    def _begin(self, now: float) -> list[Addressed]:
        found: list[Addressed] = []
        for key in list(self._waiting):
            if all(job != key[0] for job, _ in self._gangs) and self._may_begin(key):
                self._gangs[key] = self._waiting.pop(key)
                found += self._tell(key, Begin(), now)
        return found

    def _tell(
        self, key: Key, message: Begin | Stop | Resize | Tick | Recorded, now: float
    ) -> list[Addressed]:
        gang = self._gangs.get(key) or self._waiting.get(key)
        return [(key, output) for output in gang.handle(message, now)] if gang is not None else []

    def _all(self) -> Iterator[Key]:
        yield from (*self._gangs, *self._waiting)
