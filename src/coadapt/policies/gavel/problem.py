"""What Gavel's programs know: jobs with their step rates by GPU type, alone and in pairs, and the GPUs of each type.

A row of the matrix of time fractions is a job, or a pair of jobs that share GPUs; a column is a GPU type. With x the
fractions, flattened row by row, the programs need three matrices, which are the same with and without pairs:

    speeds @ x   steps per second of each job, over all rows that it is in
    member @ x   fraction of time in which each job runs        <= 1
    usage  @ x   GPUs in use of each type, a pair's once        <= capacity
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """A job that wants time on GPUs. ``rates`` are steps per second by GPU type, 0 where it cannot run."""

    id: str
    gpus: int
    rates: tuple[float, ...]
    steps_left: float
    age_s: float = 0.0
    weight: float = 1.0
    #: Seconds that the steps done so far would have taken on its own part of the cluster (finish-time fairness).
    isolated_s: float = 0.0
    #: Seconds left until its deadline; None: it has none.
    due_s: float | None = None
    #: Group between whose members shares are divided first; empty: it is its own.
    entity: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A job, or a pair of jobs on the same GPUs, by their places in ``Problem.jobs``, with the rates of each member."""

    members: tuple[int, ...]
    rates: tuple[tuple[float, ...], ...]

    def runs_on(self, column: int) -> bool:
        """True if every member can run on the GPU type of this column."""
        return all(rates[column] > 0 for rates in self.rates)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Jobs in order of arrival, and GPU types with their capacities. Rows: first the jobs, then the pairs."""

    jobs: Sequence[Applicant]
    types: tuple[str, ...]
    capacity: tuple[int, ...]
    pairs: Sequence[Row] = ()

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the matrix of time fractions."""
        return [*(Row((i,), (job.rates,)) for i, job in enumerate(self.jobs)), *self.pairs]

    @cached_property
    def rates(self) -> FloatArray:
        """Rates alone, by job and GPU type."""
        return np.array([job.rates for job in self.jobs], dtype=np.float64).reshape(
            len(self.jobs), len(self.types)
        )

    @cached_property
    def gpus(self) -> FloatArray:
        """GPUs of each job."""
        return np.array([job.gpus for job in self.jobs], dtype=np.float64)

    @cached_property
    def weights(self) -> FloatArray:
        """Weight of each job."""
        return np.array([job.weight for job in self.jobs], dtype=np.float64)

    @cached_property
    def steps_left(self) -> FloatArray:
        """Steps left of each job."""
        return np.array([job.steps_left for job in self.jobs], dtype=np.float64)

    @cached_property
    def room(self) -> FloatArray:
        """GPUs of each type."""
        return np.array(self.capacity, dtype=np.float64)

    @cached_property
    def proportional(self) -> FloatArray:
        """Rate of each job that has its part of every GPU type: the mean over all GPUs."""
        return np.asarray(self.rates @ self.room / self.room.sum())

    def even(self) -> FloatArray:
        """Time fractions by job and type if every job has an equal part of every type (policy "isolated")."""
        fractions = self.room[None, :] / (len(self.jobs) * self.gpus[:, None])
        return np.asarray(fractions / np.maximum(fractions.sum(axis=1, keepdims=True), 1.0))

    @cached_property
    def speeds(self) -> FloatArray:
        """Steps per second of each job (rows) for each time fraction (columns)."""
        width = len(self.types)
        matrix = np.zeros((len(self.jobs), len(self.rows) * width))
        for r, row in enumerate(self.rows):
            for job, rates in zip(row.members, row.rates, strict=True):
                matrix[job, r * width : (r + 1) * width] = rates
        return matrix

    @cached_property
    def member(self) -> FloatArray:
        """1 where a time fraction is time of a job."""
        width = len(self.types)
        matrix = np.zeros((len(self.jobs), len(self.rows) * width))
        for r, row in enumerate(self.rows):
            matrix[list(row.members), r * width : (r + 1) * width] = 1.0
        return matrix

    @cached_property
    def usage(self) -> FloatArray:
        """GPUs of each type that a time fraction takes."""
        width = len(self.types)
        matrix = np.zeros((width, len(self.rows) * width))
        for r, row in enumerate(self.rows):
            for column in range(width):
                matrix[column, r * width + column] = self.jobs[row.members[0]].gpus
        return matrix
