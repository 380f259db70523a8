"""A controller for tests: the loop over local processes, until SIGTERM. Not the product's ``serve``.

python tests/integration/local_loop.py DIR --slots N
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from coadapt.cluster.clock import SteadyClock
from coadapt.cluster.feed import LocalFeed
from coadapt.cluster.local import LocalExecutor
from coadapt.cluster.processes import is_gone, this_process
from coadapt.model import ControllerStarted
from coadapt.placement import PackedPlacer
from coadapt.policies import FifoPolicy
from coadapt.runtime import Loop
from coadapt.scheduler import Scheduler
from coadapt.store import SqliteInbox, SqliteLog

LEASE_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--grace-s", type=float, default=2.0)
    options = parser.parse_args()
    events = SqliteLog(options.directory / "store.db")
    inbox = SqliteInbox(options.directory / "store.db")
    clock = SteadyClock(max((r.at for r in events.read(events.last() - 1)), default=0.0))
    me = this_process()
    renewed = clock()
    events.acquire(me, LEASE_S, renewed, gone=is_gone)

    def renew(now: float) -> None:
        nonlocal renewed
        if now - renewed > LEASE_S / 3:
            events.acquire(me, LEASE_S, now)
            renewed = now

    scheduler = Scheduler(FifoPolicy(), PackedPlacer())
    executor = LocalExecutor(
        options.directory / "keeper",
        log=events.identity,
        spec_of=lambda job: scheduler.state.jobs[job].spec,
        slots=options.slots,
        grace_s=options.grace_s,
    )
    feed = LocalFeed(executor, inbox, clock, heartbeat=renew)
    signal.signal(signal.SIGTERM, lambda number, frame: feed.stop())
    loop = Loop(scheduler, executor, feed, events, on_record=lambda record: scheduler.state.validate())
    loop.start(ControllerStarted(version="test", policy="fifo"))
    while not feed.stopped and loop.step():
        pass
    events.release()
    executor.close()


if __name__ == "__main__":
    main()
