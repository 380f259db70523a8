"""An executor with a real keeper for tests: starts jobs, stops them, and waits for what happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from coadapt.executors.job_source import Agent, SpecJobSource, prints_reports
from coadapt.executors.local import LocalExecutor
from coadapt.executors.node.replica_logs import directory_of
from coadapt.model import (
    AnyEvent,
    JobFinished,
    JobSpec,
    JobStopped,
    Measured,
    Node,
    Placement,
    ResizeJob,
    Slot,
    StartJob,
    StopJob,
)
from coadapt.model.actions import StopWhy
from tests.waiting import DEADLINE_S, until

NODES = (
    Node(name="local", gpus=2, gpu_type="cpu"),
    Node(name="n0", gpus=4, gpu_type="t4"),
    Node(name="n1", gpus=4, gpu_type="t4"),
)
E = TypeVar("E", bound=AnyEvent)


def on(node: str, replicas: int = 1, *others: tuple[str, int]) -> Placement:
    """So many workers on a node, and on others."""
    return Placement(
        slots=tuple(
            Slot(node=name, replicas=count, gpu_type="cpu" if name == "local" else "t4")
            for name, count in ((node, replicas), *others)
        )
    )


class Desk:
    """``keeper`` may be another program than the keeper's own."""

    def __init__(
        self,
        directory: Path,
        *,
        grace_s: float = 0.5,
        home: Path | None = None,
        agent_of: Callable[[str], Agent] = prints_reports,
        nodes: tuple[Node, ...] = NODES,
        keeper: tuple[str, ...] = LocalExecutor.keeper,
        run_as: str = "",
    ) -> None:
        self.directory, self.specs, self.actions = directory, dict[str, JobSpec](), 0
        kind = type("Executor", (LocalExecutor,), {"keeper": keeper})
        self.executor: LocalExecutor = kind(
            directory,
            log="test",
            jobs=SpecJobSource(self.specs.__getitem__, agent_of, run_as=run_as),
            nodes=tuple(node for node in nodes if node.name == "local"),
            virtual=tuple(node for node in nodes if node.name != "local"),
            home=home,
            grace_s=grace_s,
            patience_s=DEADLINE_S,
        )
        self.events: list[AnyEvent] = []

    def start(self, spec: JobSpec, placement: Placement | None = None, *, attempt: int = 1) -> None:
        self.specs[spec.name] = spec
        where = placement or on("n0")
        self.executor.apply([StartJob(id=self._id(), job=spec.name, attempt=attempt, placement=where)])

    def stop(self, job: str, why: StopWhy = "cancel", *, attempt: int = 1) -> None:
        self.executor.apply([StopJob(id=self._id(), job=job, attempt=attempt, why=why)])

    def resize(self, job: str, before: Placement, placement: Placement) -> None:
        self.executor.apply(
            [ResizeJob(id=self._id(), job=job, attempt=1, before=before, placement=placement)]
        )

    def take(self) -> None:
        for cursor, event in self.executor.take(0.05):
            self.executor.acknowledge(cursor)
            self.events.append(event)

    def wait(self, kind: type[E], job: str, *, nth: int = 1) -> E:
        """The first (or ``nth``) event of a kind about a job."""
        found: list[E] = []

        def there() -> bool:
            self.take()
            found[:] = [e for e in self.events if isinstance(e, kind) and getattr(e, "job", "") == job]
            return len(found) >= nth

        until(there, f"no {kind} of {job}: {self.events[-3:]}")
        return found[nth - 1]

    def end(self, job: str) -> JobFinished | JobStopped:
        return self.wait(JobFinished | JobStopped, job)  # type: ignore[arg-type]

    def measured(self, job: str) -> list[Measured]:
        return [e for e in self.events if isinstance(e, Measured) and e.job == job]

    def path(self, job: str, name: str, *, attempt: int = 1) -> Path:
        return directory_of(self.directory, job, attempt) / name

    def output(self, job: str, name: str = "0.out", *, lines: int = 1) -> list[str]:
        path = self.path(job, name)
        until(lambda: path.exists() and len(path.read_text().splitlines()) >= lines, f"no output in {name}")
        return path.read_text().splitlines()

    def _id(self) -> int:
        self.actions += 1
        return self.actions
