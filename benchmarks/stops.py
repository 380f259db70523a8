"""``python -m benchmarks.stops``: 143 jobs stopped at once, and cancels while 10,000 jobs wait, on a real cluster.

Jobs are real processes on virtual GPUs under the default policy. The lease is watched while all are stopped: a controller that is
held up by its keeper would not renew it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measure import Row, show
from benchmarks.smoke import either
from coadapt.model import CancelRequested, JobSpec, JobSubmitted
from coadapt.model.snapshot import Phase
from coadapt.scheduler import SchedulerState
from coadapt.store import open_store
from coadapt.store.home import Home

_LOOK_S, _PATIENCE_S = 0.02, 600.0
#: Entries put into the inbox in one transaction.
_CHUNK = 500


class Cluster:
    """``coadapt serve`` with ``nodes`` GPUs on a new home; what happens is read from its log."""

    def __init__(self, path: Path, nodes: int) -> None:
        self.home = Home(path / "home")
        self._command("serve", "--virtual", f"{nodes}x1:t4", "--listen", "127.0.0.1:0", "--detach")
        self._store = open_store(self.home.store(self.home.read_options()))
        self._log, self._inbox, self.state = self._store.log(), self._store.inbox(), SchedulerState()

    def submit(self, count: int, name: str) -> list[str]:
        """Puts jobs into the inbox; returns their ids."""
        spec = JobSpec(name=name, user="user", command=("sleep", "3600"), preemptible=False)

        def make(number: int) -> JobSubmitted:
            return JobSubmitted(job=f"{name}-{number}", spec=spec)

        found: list[str] = []
        while len(found) < count:
            entries = [(make, None)] * min(_CHUNK, count - len(found))
            found += [f"{name}-{number}" for number in self._inbox.submit_all(entries)]
        return found

    def cancel(self, jobs: list[str]) -> None:
        """Cancels jobs, one request for each."""
        for job in jobs:
            self._inbox.put(CancelRequested(job=job))

    def until(self, condition: Callable[[SchedulerState], bool]) -> float:
        """Waits until the state in the log fulfils a condition; returns the seconds."""
        began = time.monotonic()
        while True:
            for record in self._log.read(self.state.seq):
                self.state.apply(record)
            waited_s = time.monotonic() - began
            if condition(self.state):
                return waited_s
            if waited_s > _PATIENCE_S:
                raise RuntimeError(f"not within {_PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

    def watch_lease(self, ages_s: list[float], ended: threading.Event) -> None:
        """Collects how long ago the lease was renewed, in a thread."""
        log = self._store.log()
        while not ended.wait(_LOOK_S):
            holder = log.holder()
            if holder is not None:
                ages_s.append(holder.age_s)
        log.close()

    def close(self) -> None:
        """Ends everything."""
        self._log.close()
        self._inbox.close()
        self._command("down")

    def _command(self, *words: str) -> None:
        command = [sys.executable, "-m", "coadapt.cli.main", *words, "--home", str(self.home.path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(running: int, waiting: int) -> list[Row]:
    """Rows for ``running`` jobs that are stopped, and cancels while ``waiting`` ones wait."""
    with tempfile.TemporaryDirectory(prefix="coadapt-stops-") as name:
        cluster = Cluster(Path(name), running)
        try:
            jobs = cluster.submit(running, "run")
            cluster.until(lambda state: _count(state, jobs, Phase.RUNNING) == running)
            queued = cluster.submit(waiting, "wait")
            cluster.until(lambda state: queued[-1] in state.jobs)
            cancels_s = []
            for job in (queued[waiting // 2], queued[-1], *jobs[:3]):
                cluster.cancel([job])
                cancels_s.append(cluster.until(partial(_cancelled, job)))
            ages_s, ended = [0.0], threading.Event()
            watch = threading.Thread(target=cluster.watch_lease, args=(ages_s, ended))
            watch.start()
            cluster.cancel(jobs[3:])
            stops_s = cluster.until(lambda state: _count(state, jobs, Phase.CANCELLED) == running)
            ended.set()
            watch.join()
        finally:
            cluster.close()
    return [
        Row(f"longest of {len(cancels_s)} cancels with {waiting:,} jobs waiting, s", max(cancels_s), 2.0),
        Row(f"{running} stops at once: longest time without a renewed lease (of 10), s", max(ages_s), 5.0),
        Row(f"{running} stops at once: until the last is gone, s", stops_s, 60.0),
    ]


def _cancelled(job: str, state: SchedulerState) -> bool:
    return state.jobs[job].phase is Phase.CANCELLED


def _count(state: SchedulerState, jobs: list[str], phase: Phase) -> int:
    return sum(job in state.jobs and state.jobs[job].phase is phase for job in jobs)


def main() -> int:
    """1 where a bound does not hold."""
    return 0 if show("Stops", measure(either(4, 143), either(20, 10_000))) else 1


if __name__ == "__main__":
    sys.exit(main())
