"""``python -m benchmarks.server_controller HOME``: the controller as it is, over an executor that only says yes.

500 real replicas do not fit this machine; what loads the store and the API is the controller, and that one is real.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from collections.abc import Sequence

from coadapt.executors.node.processes import is_gone, this_process
from coadapt.model import (
    Action,
    AnyEvent,
    ControllerStarted,
    JobResized,
    JobStarted,
    JobStopped,
    ReplicasReleased,
    ResizeJob,
    StartJob,
)
from coadapt.model.snapshot import HOLDING
from coadapt.runtime import Cursor, Running
from coadapt.runtime.controller import Controller, scheduler_of
from coadapt.scheduler import Scheduler
from coadapt.scheduler.state import saved_state
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.wire.node_messages import LogSlice, SavedCheckpoint, Stream


class Willing:
    """Everything asked for has happened a moment later; jobs never end by themselves."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._events: deque[AnyEvent] = deque()
        self._number = 0

    def apply(self, actions: Sequence[Action]) -> None:
        """See ``Executor``."""
        for action in actions:
            job, attempt = action.job, action.attempt
            if isinstance(action, StartJob):
                self._events.append(JobStarted(job=job, attempt=attempt))
            elif isinstance(action, ResizeJob):
                self._events.append(ReplicasReleased(job=job, attempt=attempt, placement=action.placement))
                self._events.append(JobResized(job=job, attempt=attempt, placement=action.placement))
            else:
                self._events.append(JobStopped(job=job, attempt=attempt, cause="paused"))

    def inventory(self) -> Sequence[Running]:
        """See ``Executor``: what the log says."""
        jobs = self._scheduler.state.jobs.values()
        return [Running(job=j.id, attempt=j.attempt, placement=j.held) for j in jobs if j.phase in HOLDING]

    def take(self, timeout_s: float) -> list[tuple[Cursor, AnyEvent]]:
        """See ``Executor``."""
        if not self._events:
            time.sleep(timeout_s)
        found = []
        while self._events:
            self._number += 1
            found.append((Cursor(source="willing", number=self._number), self._events.popleft()))
        return found

    def acknowledge(self, cursor: Cursor) -> None:
        """Nothing is kept."""

    def read_log(
        self, job: str, attempt: int, rank: int, stream: Stream, offset: int, limit: int
    ) -> LogSlice | None:
        """Nothing is written."""
        return None

    def checkpoints(self, job: str) -> Sequence[SavedCheckpoint]:
        """Nothing is saved."""
        return ()

    def close(self) -> None:
        """Nothing is held."""

    def shutdown(self) -> None:
        """Nothing runs."""


def main() -> None:
    """Until SIGTERM."""
    home = Home(sys.argv[1])
    options = home.read_options()
    scheduler, store = scheduler_of(options), open_store(home.store(options))
    controller = Controller(
        store.log(),
        store.inbox(),
        scheduler,
        lambda spec_of: Willing(scheduler),
        home=home.identity,
        owner=this_process(),
        is_gone=is_gone,
        saver=saved_state,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: controller.stop())
    controller.run(ControllerStarted(version="0", policy=type(scheduler.policy).__name__))
    controller.close(release=True)


if __name__ == "__main__":
    main()
