"""Rounds: while the user works, processes are killed and the world is made worse, at random instants."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import chaos_restore
from benchmarks.chaos_check import check
from benchmarks.chaos_postgres import Postgres
from benchmarks.chaos_user import Maker, User, light_job, lives_of
from benchmarks.chaos_world import LIVENESS_S, World, until

#: How often each is chosen. Ones that leave less standing are rarer: else nothing would ever be under way.
DISASTERS = {
    "controller": 5,
    "api": 4,
    "keeper": 3,
    "supervisor": 3,
    "replica": 5,
    "full disk": 2,
    "slow store": 2,
    "slow journal": 1,
    "clock": 2,
    "hung controller": 2,
    "second controller": 2,
    "endless job": 1,
    "postgres frozen": 3,
    "postgres killed": 3,
    "restore": 2,
}
#: Further disasters by name, which others may add: how often each is chosen, and what is done; False: not possible now.
MORE: dict[str, tuple[int, Callable[[World], bool]]] = {}
#: Seconds by which the clock may be wrong.
CLOCKS = (0.0, -3600.0, 3600.0, -86400.0, 30.0)


class Rounds:
    """Several rounds on one home, then the proof."""

    def __init__(
        self,
        path: Path,
        seed: int,
        policy: str,
        options: tuple[str, ...] = (),
        make: Maker = light_job,
        *,
        groups: bool = True,
        postgres: Postgres | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.world = World(path, policy, options, groups=groups, postgres=postgres)
        self.user = User(self.world, random.Random(f"{seed} user"), make)
        self.done: Counter[str] = Counter()
        self.offset_s = 0.0
        #: Held while the user asks for something: a restore takes answers back that nobody may hear meanwhile.
        self._asking = threading.Lock()
        #: Why a disaster could not be carried out as it should.
        self._failure: Exception | None = None

    def run(self, rounds: int, *, round_s: float = 2.5, longest_s: float = 2.0) -> dict[str, Any]:
        """What was found; nothing is left running, whatever it is."""
        try:
            for _ in range(rounds):
                self._round(round_s, longest_s)
            self.world.end_rivals()
            until(self._begun, "no controller has begun")  # short rounds on a busy machine may have seen none
            self.world.kill("supervisor")  # with it go the pauses that its children had earned
            self.world.serve()
            self.user.settle()
            found = check(self.world, self.user)
        except BaseException:
            # the evidence: what it stood on goes with the disk
            shutil.copytree(
                self.world.home.path,
                Path(tempfile.mkdtemp(prefix="coadapt-failed-")) / "home",
                ignore=_no_sockets,
            )
            raise
        finally:
            self.world.close()
        return {**found, "disasters": dict(self.done), "answers": self.user.answers}

    def _begun(self) -> bool:
        """Whether a controller has written its first record."""
        cluster = self.user.ask(lambda client: client.cluster())
        return cluster is not None and cluster.seq >= 0

    def _round(self, round_s: float, longest_s: float) -> None:
        self.world.serve()
        if self.rng.random() < 0.7:
            until(
                lambda: self.user.ask(lambda client: client.cluster()) is not None,
                "the controller does not answer",
            )
        disasters = threading.Thread(target=self._try_disasters, args=(round_s,))
        disasters.start()
        moments = sorted(self.user.rng.uniform(0, round_s) for _ in range(6))
        began = time.monotonic()
        for moment in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            with self._asking:
                self.user.do_something(longest_s)
        disasters.join()
        if self._failure is not None:
            raise self._failure

    def _try_disasters(self, round_s: float) -> None:
        try:
            self._disasters(round_s)
        except Exception as error:
            self._failure = error

    def _disasters(self, round_s: float) -> None:
        moments = sorted(self.rng.uniform(0, round_s) for _ in range(self.rng.randint(1, 3)))
        began = time.monotonic()
        for moment in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            weights = {**DISASTERS, **{name: weight for name, (weight, _) in MORE.items()}}
            (what,) = self.rng.choices(list(weights), weights=list(weights.values()))
            if self._disaster(what):
                self.done[what] += 1
            self.world.serve()

    def _disaster(self, what: str) -> bool:
        if what == "full disk":
            self.world.fill_disk(self.rng.uniform(0.5, 2.0))
        elif what in ("slow store", "slow journal"):
            return self.world.hold_store(what.removeprefix("slow "), self.rng.uniform(1.0, 4.0))
        elif what == "clock":
            self.offset_s = self.rng.choice([each for each in CLOCKS if each != self.offset_s])
            self.world.move_clock(self.offset_s)
        elif what == "replica":
            return self._kill_replica()
        elif what == "hung controller":
            # some go on before they are replaced, as one that was only slow
            return self.world.hang(self.rng.choice((2.0, LIVENESS_S + 4.0)))
        elif what == "second controller":
            self.world.second_controller()
        elif what == "endless job":
            return self._submit_endless()
        elif what.startswith("postgres "):
            if self.world.postgres is None:
                return False
            do = self.world.postgres.freeze if what.endswith("frozen") else self.world.postgres.kill
            return do(self.rng.uniform(0.5, 5.0))
        elif what == "restore":
            return self._restore()
        elif what in MORE:
            return MORE[what][1](self.world)
        else:
            return self.world.kill(what)
        return True

    def _restore(self) -> bool:
        """A backup, some more work, the death of everything, and a new home from the backup."""
        # a store on a server would need another schema: the archive is the same
        if self.world.postgres is not None or not self.world.home.options_file.exists():
            return False
        file = chaos_restore.back_up(self.world)
        if not file:
            return False
        time.sleep(self.rng.uniform(0.0, 1.0))
        with self._asking:
            chaos_restore.restore(self.world, self.user, file)
        return True

    def _submit_endless(self) -> bool:
        """Once in a home, where the policy is the one that hangs (``chaos_clock``)."""
        if self.world.policy != "fifo" or any(asked.endless for asked in self.user.asked):
            return False
        self.user.submit_endless()
        return True

    def _kill_replica(self) -> bool:
        files = {int(path.name.rpartition(".")[2]): path for path in lives_of(self.world)}
        living = [pid for pid, line in self.world.processes() if pid in files and "chaos_" in line]
        if not living:
            return False
        pid = self.rng.choice(sorted(living))
        job = files[pid].name.split(".")[0]
        for asked in self.user.asked:
            if job.startswith(f"{asked.spec.name}-"):
                asked.killed = True
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def _no_sockets(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if not (path := Path(directory) / name).is_dir() and not path.is_file()]
