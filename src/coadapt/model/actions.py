"""Actions that the scheduler asks an executor to carry out. Every action has an id; applying it twice has the effect of
once.
"""

from __future__ import annotations

from typing import Literal

from coadapt.model._base import Fact
from coadapt.model.allocation import Placement

StopWhy = Literal["pause", "cancel", "drain", "node-lost", "hang", "time-limit"]


class StartJob(Fact, frozen=True, tag=True):
    """Start the job's replicas. ``attempt`` fences all earlier ones."""

    id: int
    job: str
    attempt: int
    placement: Placement


class ResizeJob(Fact, frozen=True, tag=True):
    """Change a running attempt's placement; in place or by restart, as the executor sees fit."""

    id: int
    job: str
    attempt: int
    before: Placement
    placement: Placement


class StopJob(Fact, frozen=True, tag=True):
    """Let the attempt save its state and end it."""

    id: int
    job: str
    attempt: int
    why: StopWhy


Action = StartJob | ResizeJob | StopJob
