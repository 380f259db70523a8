"""Every executor, by the published suite."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

from coadapt.executors.job_source import SpecJobSource
from coadapt.executors.local import LocalExecutor
from coadapt.model import AnyEvent, JobSpec, Node, NodeJoined, Placement, Slot
from coadapt.runtime import Cursor
from coadapt.simulation.engine.simulated_executor import SimulatedExecutor, Timeline, constant
from coadapt.simulation.engine.training_model import TimedTraining
from coadapt.testing import Bench, ExecutorConformance, LiveBench, LiveExecutorConformance
from coadapt.testing.executors import Behaviour
from tests.waiting import DEADLINE_S, until

_HORIZON_S = 1e6


class SimulatedBench:
    def __init__(self) -> None:
        self.specs: dict[str, JobSpec] = {}
        self.timeline = Timeline()
        self.executor = SimulatedExecutor(
            timeline=self.timeline,
            spec_of=self.specs.__getitem__,
            train=lambda job, spec: TimedTraining(spec.duration_s or 0.0),
            change_cost=constant(5.0),
            stop_s=2.0,
        )

    def add(self, job: str, behaviour: Behaviour) -> None:
        self.specs[job] = JobSpec(name=job, duration_s=60.0 if behaviour == "ends" else 10 * _HORIZON_S)

    def placement(self, replicas: int) -> Placement:
        return Placement(slots=(Slot(node="n0", replicas=replicas),))

    def next(self) -> AnyEvent:
        found = self.timeline.next(_HORIZON_S)
        assert found is not None
        return found[1]

    def rest(self) -> list[AnyEvent]:
        found = []
        while (event := self.timeline.next(_HORIZON_S)) is not None:
            found.append(event[1])
        return found

    def another_controller(self) -> bool:
        return False

    def close(self) -> None:
        pass


class LocalBench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.specs: dict[str, JobSpec] = {}
        self.executor = self._connected()
        self._waiting: deque[AnyEvent] = deque()
        self._taken: deque[tuple[Cursor, AnyEvent]] = deque()

    def _connected(self) -> LocalExecutor:
        return LocalExecutor(
            self.directory / "keeper",
            home=self.directory,
            log="test",
            jobs=SpecJobSource(self.specs.__getitem__),
            nodes=(Node(name="local", gpus=2, gpu_type="cpu"),),
            grace_s=5.0,
            patience_s=DEADLINE_S,
        )

    def add(self, job: str, behaviour: Behaviour) -> None:
        command = ("true",) if behaviour == "ends" else ("sleep", "600")
        self.specs[job] = JobSpec(name=job, command=command)

    def placement(self, replicas: int) -> Placement:
        return Placement(slots=(Slot(node="local", replicas=replicas, gpu_type="cpu"),))

    def next(self) -> AnyEvent:
        def arrived() -> bool:
            if not self._waiting:
                self._take(0.1)
            return bool(self._waiting)

        until(arrived, "an event about a job")
        return self._waiting.popleft()

    def rest(self) -> list[AnyEvent]:
        # jobs that end by themselves are waited for by ``next``; what an action causes at once has been
        # sent before the answer to a later request
        self.executor.inventory()
        self._take(0.0)
        found = list(self._waiting)
        self._waiting.clear()
        return found

    def _take(self, timeout_s: float) -> None:
        for cursor, event in (*self._taken, *self.executor.take(timeout_s)):
            self.executor.acknowledge(cursor)
            if not isinstance(event, NodeJoined):
                self._waiting.append(event)
        self._taken.clear()

    def add_writer(self, job: str, text: str, checkpoint: str) -> None:
        script = f"echo {text}; echo x > $COADAPT_CHECKPOINTS/{checkpoint}"
        self.specs[job] = JobSpec(name=job, command=("sh", "-c", script))

    def take(self) -> tuple[Cursor, AnyEvent]:
        def arrived() -> bool:
            if not self._taken:
                self._taken += self.executor.take(0.1)
            return bool(self._taken)

        until(arrived, "an event")
        return self._taken.popleft()

    def another_controller(self) -> bool:
        self._taken.clear()
        self.executor.close()
        self.executor = self._connected()
        return True

    def close(self) -> None:
        self.executor.shutdown()


class TestSimulatedExecutor(ExecutorConformance):
    def bench(self, directory: Path) -> Bench:
        return SimulatedBench()


class TestLocalExecutor(LiveExecutorConformance):
    def bench(self, directory: Path) -> LiveBench:
        assert sys.platform == "linux", "the keeper needs /proc and prctl"
        return LocalBench(directory)
