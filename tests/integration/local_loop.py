"""A controller for tests: the loop over local processes. Not the product's ``serve``.

``python tests/integration/local_loop.py DIR`` runs one until SIGTERM; tests that crash it at exact points
drive ``Controller`` in their own process and put a ``Fuse`` between the loop and its ports.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from coadapt.executors.job_source import SpecJobSource
from coadapt.executors.local import LocalExecutor
from coadapt.executors.node.processes import is_gone, this_process
from coadapt.model import Action, ControllerStarted, Node, Record
from coadapt.placement.packed import PackedPlacer
from coadapt.policies._base import Policy
from coadapt.policies.fifo import FifoPolicy
from coadapt.runtime import Cursor, Loop
from coadapt.runtime.controller import LocalFeed, SteadyClock
from coadapt.scheduler import Scheduler
from coadapt.store import SqliteInbox, SqliteLog
from coadapt.store.sqlite import Synchronous

#: Nobody waits for it: who is gone is known by its process. The machine may stand still for minutes.
LEASE_S = 300.0


class Crashed(BaseException):
    """The controller died here."""


class Fuse:
    """Crashes at the n-th point; 0: never."""

    def __init__(self, n: int = 0) -> None:
        self.n, self.passed = n, 0

    def burn(self) -> None:
        self.passed += 1
        if self.passed == self.n:
            raise Crashed


class FusedLog(SqliteLog):
    fuse = Fuse()

    def append(self, records: Sequence[Record]) -> None:
        self.fuse.burn()
        super().append(records)
        self.fuse.burn()


class FusedInbox(SqliteInbox):
    fuse = Fuse()

    def acknowledge(self, number: int) -> None:
        self.fuse.burn()
        super().acknowledge(number)


class FusedExecutor(LocalExecutor):
    fuse = Fuse()

    def apply(self, actions: Sequence[Action]) -> None:
        for action in actions:  # one by one: a crash between two actions is the interesting one
            self.fuse.burn()
            super().apply([action])
            self.fuse.burn()

    def acknowledge(self, cursor: Cursor) -> None:
        self.fuse.burn()
        super().acknowledge(cursor)


class Controller:
    """Everything between a store, a keeper and the loop."""

    def __init__(
        self,
        directory: Path,
        *,
        policy: Policy | None = None,
        fuse: Fuse | None = None,
        synchronous: Synchronous = "FULL",
    ) -> None:
        fuse = fuse or Fuse()
        self.events = FusedLog(directory / "store.db", synchronous=synchronous)
        self.inbox = FusedInbox(directory / "store.db", synchronous=synchronous)
        self.events.fuse = self.inbox.fuse = fuse
        self.clock = SteadyClock(max((r.at for r in self.events.read(self.events.last() - 1)), default=0.0))
        self.me, self.renewed = this_process(), -LEASE_S
        self.renew(self.clock())
        self.scheduler = Scheduler(policy or FifoPolicy(), PackedPlacer())
        self.executor = FusedExecutor(
            directory / "keeper",
            log=self.events.identity,
            jobs=SpecJobSource(lambda job: self.scheduler.state.jobs[job].spec),
            nodes=(Node(name="local", gpus=2, gpu_type="cpu"),),
            grace_s=2.0,
            patience_s=LEASE_S,
        )
        self.executor.fuse = fuse
        self.feed = LocalFeed(self.executor, self.inbox, self.clock, poll_s=0.02, heartbeat=self.renew)
        self.loop = Loop(self.scheduler, self.executor, self.feed, self.events, on_record=self.check)

    def start(self) -> None:
        self.loop.start(ControllerStarted(version="test", policy="fifo", options={"pid": os.getpid()}))

    def check(self, record: Record) -> None:
        self.scheduler.state.validate()

    def renew(self, now: float) -> None:
        if now - self.renewed > LEASE_S / 3:
            self.events.acquire(self.me, LEASE_S, now, gone=is_gone)
            self.renewed = now

    def close(self) -> None:
        """What the kernel does for a process that was killed."""
        self.events.close()
        self.inbox.close()
        self.executor.close()


def main() -> None:
    controller = Controller(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda number, frame: controller.feed.stop())
    controller.start()
    while not controller.feed.stopped and controller.loop.step():
        pass
    controller.events.release()
    controller.close()


if __name__ == "__main__":
    main()
