"""What replicas wrote about their own lives (``heartbeat.py``): when each attempt of a job lived, and who lives now."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from coadapt.executors.node.processes import started_ticks
from coadapt.model import JobSpec

HEARTBEAT = Path(__file__).with_name("heartbeat.py")


class Life(NamedTuple):
    """One process: its attempt, and its first and last moment."""

    attempt: int
    first: float
    last: float
    pid: int

    @property
    def alive(self) -> bool:
        return started_ticks(self.pid) is not None


def a_beating_job(name: str, directory: Path, **envs: str) -> JobSpec:
    directory.mkdir(exist_ok=True)
    return JobSpec(name=name, command=(sys.executable, str(HEARTBEAT), str(directory)), envs=envs)


def lives(directory: Path, job: str) -> list[Life]:
    """All processes of a job that have written something, by their beginning."""
    found = []
    for path in directory.glob(f"{job}.*"):
        moments = [float(line) for line in path.read_text().split("\n")[:-1]]
        if moments:
            parts = path.name.split(".")
            found.append(Life(int(parts[1]), moments[0], moments[-1], int(parts[-1])))
    return sorted(found, key=lambda life: life.first)


def overlaps(directory: Path, job: str) -> list[tuple[Life, Life]]:
    """Pairs of processes of different attempts that lived at the same time."""
    found = lives(directory, job)
    return [
        (one, other)
        for one in found
        for other in found
        if one.attempt < other.attempt and one.last >= other.first
    ]
