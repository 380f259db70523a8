"""Chaos on an engine: controllers, agents and the engine's own daemons are killed while ten jobs run and start again.

The replicas' own records decide: two attempts of a job that lived at once, attempts that did not end exactly once, processes that are
left. Lease 5 s, grace 2 s. A round is one saved cell.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.engines.hub_bench import HubBench
from tests.engines.lives import a_beating_job, lives, overlaps

from benchmarks.engines_worlds import NAMES, World
from benchmarks.smoke import either
from coadapt.executors.node.keeper_shutdown import keeper_lock, pid_in
from coadapt.model import JobFinished, JobStopped, Placement, Slot, StartJob, StopJob

LEASE_S, GRACE_S = 5.0, 2.0
JOBS = tuple(f"j{number}" for number in range(10))
#: Seconds after 'down' at which orphans are counted, and until a round that does not end is given up.
_ORPHANS_S, _END_S = 90.0, 600.0


class Chaos:
    """A small controller: whatever ends is started again, on nodes chosen by chance."""

    def __init__(self, world: World, bench: HubBench, beats: Path, chance: random.Random) -> None:
        self.world, self.bench, self.beats, self.chance = world, bench, beats, chance
        self.attempts = dict.fromkeys(JOBS, 0)
        self.ends: Counter[tuple[str, int]] = Counter()
        self.causes: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self._ids, self.running = 0, True
        for job in JOBS:
            bench.specs[job] = a_beating_job(job, beats)
            self._start(job)

    def _start(self, job: str) -> None:
        self.attempts[job] += 1
        names = self.chance.sample(NAMES, self.chance.choice((1, 1, 2)))
        placement = Placement(slots=tuple(Slot(node=name, replicas=1, gpu_type="t4") for name in names))
        self._ids += 1
        action = StartJob(id=self._ids, job=job, attempt=self.attempts[job], placement=placement)
        self.bench.executor.apply([action])

    def take(self, timeout_s: float = 0.05) -> None:
        """Hears what happened; starts again what has ended."""
        self.bench._take(timeout_s)
        while self.bench._waiting:
            event = self.bench._waiting.popleft()
            if isinstance(event, JobFinished | JobStopped):
                self.ends[(event.job, event.attempt)] += 1
                self.causes[str(event.cause if isinstance(event, JobStopped) else event.reason)] += 1
                if self.running and event.attempt == self.attempts[event.job]:
                    self._start(event.job)

    def let_live(self, seconds: float) -> None:
        """Goes on until the moment of the next kill."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.take()

    def kill(self, what: str) -> None:
        """Kills one thing that is there; waits for one of the kind."""
        if what in self.world.daemons:
            self.world.kill(what)
        elif what == "controller":
            # the process that holds gangs and leases, and the controller's connection to it
            self._kill(lambda: [pid for pid in [pid_in(keeper_lock(self.bench.home.hub))] if pid])
            self.bench.another_controller()
        else:
            self._kill(lambda: self.world.agents(self.bench))
        self.kills[what] += 1

    def _kill(self, found: Any) -> None:
        until = time.monotonic() + _END_S
        while time.monotonic() < until:
            pids = found()
            if pids:
                try:
                    os.kill(self.chance.choice(pids), signal.SIGKILL)
                    return
                except ProcessLookupError:
                    pass
            self.take(0.1)
        raise TimeoutError("nothing to kill")

    def end(self) -> None:
        """Stops everything, and hears all ends."""
        self.running = False
        until = time.monotonic() + _END_S
        while sum(1 for count in self.ends.values() if count) < sum(self.attempts.values()):
            if time.monotonic() > until:
                return  # ends that are missing are counted
            for job, attempt in self.attempts.items():
                if not self.ends.get((job, attempt)):
                    self.bench.executor.apply([StopJob(id=-1, job=job, attempt=attempt, why="cancel")])
            self.take(0.3)


def a_round(world: World, number: int, kinds: list[str], *, last: bool) -> dict[str, Any]:
    """One round of kills; ``last``: orphans are counted 90 s after 'down', else at once."""
    chance = random.Random(f"{world.name} {number}")
    kinds = list(kinds)
    chance.shuffle(kinds)
    with tempfile.TemporaryDirectory(prefix="coadapt-engines-") as scratch:
        directory = Path(scratch)
        beats = directory / "beats"
        with world.started(directory / "engine"):
            bench = world.bench(directory, lease_s=LEASE_S, grace_s=GRACE_S)
            try:
                chaos = Chaos(world, bench, beats, chance)
                for what in kinds:
                    chaos.let_live(chance.uniform(0.2, 2.5))
                    chaos.kill(what)
                chaos.let_live(either(0.5, 2.0))
                chaos.end()
            finally:
                bench.close()
            if last:
                time.sleep(either(0.0, _ORPHANS_S))  # an engine may revive what was cancelled
            found = [life for job in JOBS for life in lives(beats, job)]
            attempts = {(job, n) for job, most in chaos.attempts.items() for n in range(1, most + 1)}
            return {
                "overlaps": sum(len(overlaps(beats, job)) for job in JOBS),
                "lost_ends": sum(chaos.ends.get(key, 0) != 1 for key in attempts),
                "orphans": sum(life.alive for life in found) + len(world.guards(bench)),
                "kills": dict(chaos.kills),
                "attempts": len(attempts),
                "lived": len(found),
                "causes": dict(chaos.causes),
                "load": os.getloadavg()[0],
            }
