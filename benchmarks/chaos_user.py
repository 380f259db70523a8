"""A restless user of a cluster that keeps dying: submits, cancels, pauses, resumes, retries, and remembers what was promised."""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import coadapt
from benchmarks.chaos_world import GPUS, HERE, World, until
from coadapt.client import Client, RefusedError, UnreachableError
from coadapt.model import JobSpec
from coadapt.model.job_spec import Role
from coadapt.wire.api import Update

Answer = TypeVar("Answer")

#: Name of a job on which decisions hang (``chaos_clock/sitecustomize.py``).
ENDLESS = "endless"
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(slots=True)
class Asked:
    """One submission: its job once it was promised, and what else we did or may have done to it."""

    spec: JobSpec
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    job: str = ""
    #: Other names that the same key was answered with: there must be none.
    others: set[str] = field(default_factory=set)
    fails: bool = False
    cancelled: bool = False
    #: A replica of it was killed by us.
    killed: bool = False
    #: Decisions hang on it: it ends only because we cancel it.
    endless: bool = False


def light_job(world: World, rng: random.Random, number: int, longest_s: float) -> tuple[JobSpec, bool]:
    """Most succeed; some fail, some do not listen to SIGTERM, some leave a helper or a daemon behind."""
    fails = rng.random() < 0.15
    kind = rng.choice(("", "", "", "stubborn", "helper", "daemon"))
    seconds = f"{rng.uniform(0.1, longest_s):.2f}"
    script = str(HERE / "chaos_replica.py")
    command = [sys.executable, "-I", "-S", script, str(world.path), str(GPUS), seconds, "3" if fails else "0"]
    size = rng.choice((1, 1, 2, 3))
    least = 1 if rng.random() < 0.5 else size
    spec = JobSpec(
        name=f"c{number}",
        roles=(Role(min=least, max=size),),
        requested=size,
        command=(*command, kind) if kind else tuple(command),
        retries=rng.randint(0, 1),
    )
    return spec, fails


def torch_job(world: World, rng: random.Random, number: int, longest_s: float) -> tuple[JobSpec, bool]:
    """A small network, elastic and adaptive."""
    from coadapt.model import Batch

    script = str(HERE / "chaos_torch.py")
    command = (sys.executable, script, str(world.path), str(GPUS), str(rng.randint(2, 5)))
    return JobSpec(
        name=f"t{number}",
        roles=(Role(min=1, max=3),),
        command=command,
        batch=Batch(initial=32, max=128, per_gpu_min=8, per_gpu_max=64),
        requested_batch=32,
        epochs=4.0,
        data_size=256,
        retries=2,
    ), False


Maker = Callable[[World, random.Random, int, float], tuple[JobSpec, bool]]


class User:
    """Works through the client only; what is unreachable is tried again later, under the same key."""

    def __init__(self, world: World, rng: random.Random, make: Maker = light_job) -> None:
        self.world, self.rng, self.make = world, rng, make
        self.asked: list[Asked] = []
        #: Answers of each kind.
        self.answers: dict[str, int] = {}

    def submit(self, longest_s: float) -> None:
        """One new job."""
        spec, fails = self.make(self.world, self.rng, len(self.asked), longest_s)
        self.asked.append(Asked(spec=spec, fails=fails))
        self._promise(self.asked[-1])

    def submit_endless(self) -> None:
        """A job on which no decision comes to its end."""
        self.asked.append(Asked(spec=JobSpec(name=ENDLESS, command=("true",)), endless=True, cancelled=True))
        self._promise(self.asked[-1])

    def do_something(self, longest_s: float) -> None:
        """One thing at random."""
        known = [asked for asked in self.asked if asked.job]
        if not known or self.rng.random() < 0.4:
            self.submit(longest_s)
            return
        asked = self.rng.choice(known[-12:])
        what = self.rng.choice(("cancel", "pause", "resume", "retry", "update", "again", "look"))
        if what == "again":
            self._promise(asked)  # a client that did not hear the answer
        elif what == "look":
            self.ask(lambda client: client.jobs(limit=20))
        elif what == "update":
            self.ask(lambda client: client.update(asked.job, Update(priority=self.rng.randint(-2, 2))))
        else:
            # whether or not an answer comes: it may have been carried out
            asked.cancelled = asked.cancelled or what == "cancel"
            self.ask(lambda client: getattr(client, what)(asked.job))

    def forget(self, known: Collection[str]) -> int:
        """A backup was restored that has the jobs ``known``: others are asked for again; returns how many."""
        lost = [asked for asked in self.asked if asked.job and asked.job not in known]
        for asked in lost:
            asked.job = ""
            asked.others.clear()
        return len(lost)

    def settle(self) -> None:
        """Everything that was asked is promised, nothing is on hold, all jobs end."""
        until(
            lambda: all(asked.job or self._promise(asked) for asked in self.asked),
            "no answer to a submission",
        )
        # however long it takes on a busy machine: as long as jobs end, others will
        left = len(self.asked)
        while left:
            before = left

            def fewer(before: int = before) -> bool:
                nonlocal left
                left = self._left()
                return left < before

            until(fewer, f"{left} jobs do not end")

    def _left(self) -> int:
        lines = self.ask(lambda client: list(client.all_jobs()))
        if lines is None:
            self.world.serve()
            return len(self.asked)
        for line in lines:
            if line.state == "QUARANTINED":
                self.ask(partial(_cancel, job=line.job))
            if line.on_hold and line.state not in _ENDED:
                self.ask(partial(_resume, job=line.job))
        return len({asked.job for asked in self.asked} - {line.job for line in lines if line.state in _ENDED})

    def _promise(self, asked: Asked) -> bool:
        job = self.ask(lambda client: client.submit(asked.spec, key=asked.key))
        if job and asked.job and job != asked.job:
            asked.others.add(job)
        asked.job = asked.job or job or ""
        return bool(job)

    def ask(self, question: Callable[[Client], Answer]) -> Answer | None:
        """The answer; None where there is none, or it is no."""
        try:
            with coadapt.connect(home=str(self.world.home.path)) as client:
                answer: Answer | None = question(client)
            kind = "answered"
        except UnreachableError:
            answer, kind = None, "unreachable"
        except RefusedError as error:
            answer, kind = None, f"refused {error.status}"
        self.answers[kind] = self.answers.get(kind, 0) + 1
        return answer


def _resume(client: Client, *, job: str) -> None:
    client.resume(job)


def _cancel(client: Client, *, job: str) -> None:
    client.cancel(job)


def lives_of(world: World, former: int | None = None) -> list[Path]:
    """Files of all replicas that ever were in the present home, or in a former one, by its number."""
    directory = world.path / ("lives" if former is None else f"lives-{former}")
    return sorted(directory.iterdir()) if directory.exists() else []
