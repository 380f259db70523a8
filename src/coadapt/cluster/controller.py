"""The controller: the one loop of a live cluster, with its lease, its watchdog and its housekeeping.

It may die at any instant; the next one folds the log, asks the keeper what runs, and goes on. Whoever makes one chooses store,
policy and executor (``cli.controller_process``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from coadapt.cluster.clock import SteadyClock
from coadapt.cluster.feed import EventSource, LocalFeed
from coadapt.cluster.processes import is_gone, this_process
from coadapt.cluster.tidy import forget_old
from coadapt.cluster.watchdog import Watchdog
from coadapt.errors import InputError
from coadapt.model import AnyEvent, ControllerStarted, JobSpec
from coadapt.runtime import Executor, Inbox, LeasedLog, Loop, Make, Saver
from coadapt.scheduler import Scheduler
from coadapt.wire.status import read_status

log = logging.getLogger(__name__)

LEASE_S, RENEW_S = 10.0, 2.0
#: Seconds between two clearings of the inbox and of old records.
TIDY_S = 3600.0
#: Seconds to the next where there may be more to clear.
_GO_ON_S = 60.0


class LiveExecutor(Executor, EventSource, Protocol):
    """An executor that also tells what happened."""

    def close(self) -> None:
        """Leaves what runs alone."""


class Controller:
    """Takes the lease when it is made: InputError while another controller has it."""

    def __init__(
        self,
        events: LeasedLog,
        inbox: Inbox,
        scheduler: Scheduler,
        connect: Callable[[Callable[[str], JobSpec]], LiveExecutor],
        *,
        home: str,
        saver: Saver | None = None,
        watchdog: Watchdog | None = None,
        retain_s: float | None = None,
    ) -> None:
        self.events, self.scheduler, self.retain_s = events, scheduler, retain_s
        self._inbox, self._watchdog = inbox, watchdog or Watchdog()
        self._me, self._renewed, self._tidied = this_process(), -LEASE_S, 0.0
        events.bind(home)
        self._status, self._said = read_status(events.status()), True
        self.clock = SteadyClock(_time_of_last(events))
        self._renew(self.clock())
        self.executor = connect(lambda job: scheduler.state.jobs[job].spec)
        watched = Watched(inbox, lambda: self._watchdog.look(self.scheduler.state, self.clock()))
        self.feed = LocalFeed(self.executor, watched, self.clock, heartbeat=self._renew)
        self.loop = Loop(
            scheduler,
            self.executor,
            self.feed,
            events,
            on_record=self._watchdog.hear,
            on_decision=self._decided,
            saver=saver,
        )

    def run(self, started: ControllerStarted) -> None:
        """Until ``stop``. Jobs go on afterwards; the next controller adopts them."""
        self.loop.start(started)
        self._watchdog.adopt(self.scheduler.state, self.clock())
        log.info(
            "at work: %d jobs, %d of them active, record %d",
            len(self.scheduler.state.jobs),
            len(self.scheduler.state.active),
            self.scheduler.state.seq,
        )
        while not self.feed.stopped and self.loop.step():
            pass

    def stop(self) -> None:
        """It ends after the present step. May be called from a signal handler."""
        self.feed.stop()

    def close(self, *, release: bool) -> None:
        """Leaves jobs and keeper alone; ``release``: the next controller need not wait."""
        if release:
            self.events.release()
        self.executor.close()

    def _decided(self, seconds: float) -> None:
        self._status.decided(seconds)
        self._said = False

    def _renew(self, now: float) -> None:
        if now - self._renewed < RENEW_S:
            return
        self.events.acquire(self._me, LEASE_S, now, gone=is_gone)
        self._renewed = now
        if not self._said:
            self.events.save_status(msgspec.json.encode(self._status).decode())
            self._said = True
        if now - self._tidied >= TIDY_S:
            self._tidied = now
            self._tidy(now)

    def _tidy(self, now: float) -> None:
        try:
            self._inbox.prune()
            if self.retain_s is not None and forget_old(self.events, now - self.retain_s):
                self._tidied = now - TIDY_S + _GO_ON_S  # there may be more
        except InputError as error:  # it will be done another time
            log.warning("nothing was cleared away: %s", error)


class Watched:
    """The inbox, and what the watchdog finds: facts nobody has to keep, for it finds them again."""

    def __init__(self, inbox: Inbox, look: Callable[[], Iterator[AnyEvent]]) -> None:
        self._inbox, self._look = inbox, look

    def take(self) -> Iterator[tuple[int, AnyEvent]]:
        """See ``Inbox``; a found fact has a number below 0."""
        yield from self._inbox.take()
        for event in self._look():
            log.warning("%s", event)
            yield -1, event

    def acknowledge(self, number: int) -> None:
        """See ``Inbox``."""
        if number >= 0:
            self._inbox.acknowledge(number)

    def put(self, event: AnyEvent, key: str | None = None) -> int:
        """See ``Inbox``."""
        return self._inbox.put(event, key)

    def submit(self, make: Make, key: str | None = None) -> int:
        """See ``Inbox``."""
        return self._inbox.submit(make, key)

    def submit_all(self, entries: Sequence[tuple[Make, str | None]]) -> Sequence[int | InputError]:
        """See ``Inbox``."""
        return self._inbox.submit_all(entries)

    def prune(self, keys_kept_s: float = 86400.0) -> int:
        """See ``Inbox``."""
        return self._inbox.prune(keys_kept_s)


def _time_of_last(events: LeasedLog) -> float:
    return max((record.at for record in events.read(events.last() - 1)), default=0.0)
