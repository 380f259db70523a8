"""Curves and offers made up for tests: speeds that are powers of the GPUs, lengths that are known or spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from coadapt.configure import BatchChoice
from coadapt.model import Batch, JobSpec, Resources, Role
from coadapt.model.snapshot import JobView
from coadapt.policies.coadapt.offers import LEVELS, Offers
from coadapt.prediction.remaining.work import LEVELS as KEPT
from coadapt.prediction.remaining.work import RemainingWork

Floats = npt.NDArray[np.float64]


class PowerCurve:
    """Goodput = rate x replicas^power x the type's factor; ``measured``: most replicas seen, 0 for nothing."""

    def __init__(
        self,
        work: float,
        *,
        power: float = 0.7,
        rate: float = 1.0,
        measured: int = 64,
        spread: float = 0.0,
        by_type: Mapping[str, float] | None = None,
    ) -> None:
        self.work, self.power, self.rate, self.spread = work, power, rate, spread
        self.max_profiled_replicas, self.fitted = measured, measured > 0
        self.by_type = by_type or {}

    def goodput(self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, gpu_type: str = "gpu") -> Floats:
        count = np.asarray(replicas, dtype=np.float64)
        speed = self.rate * self.by_type.get(gpu_type, 1.0) * count**self.power
        return np.where((np.asarray(nodes) >= 1) & (np.asarray(nodes) <= count), speed, 0.0)

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        return BatchChoice(atomic_batch=1, accumulation=0, goodput=float(self.goodput(nodes, replicas)))

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        return 1.0

    def remaining_steps(self, batch: int) -> float:
        return self.work

    def remaining_work(self) -> float:
        return self.work

    def remaining(self) -> RemainingWork:
        """Lognormal around the work, by ``spread``."""
        if not np.isfinite(self.work):
            return RemainingWork(quantiles=(1.0,) * len(KEPT), never=1.0)
        quantiles = self.work * np.exp(self.spread * ndtri(np.array(KEPT)))
        return RemainingWork(quantiles=tuple(quantiles.tolist()), weights={"declared": 1.0})


def elastic(most: int = 64, least: int = 1, per: int = 1, **fields: Any) -> JobSpec:
    """A job of ``least`` to ``most`` replicas that adapts its batch size."""
    role = Role(min=least, max=most, demand=Resources(gpus=per))
    batch = Batch(initial=32, max=4096, per_gpu_min=4, per_gpu_max=64)
    return JobSpec(**{"name": "job", "roles": (role,), "batch": batch, "requested": least, **fields})


def rigid(gpus: int = 1, duration_s: float | None = 100.0, **fields: Any) -> JobSpec:
    """A job that runs on so many GPUs for so long, or not at all."""
    return JobSpec(
        **{
            "name": "job",
            "roles": (Role(min=gpus, max=gpus),),
            "requested": gpus,
            "duration_s": duration_s,
            **fields,
        }
    )


class ADummy:
    """As much of a job as worth and reasons look at."""

    def __init__(self, name: str, work: float | None, spec: JobSpec) -> None:
        self.id, self.work, self.spec = name, work, spec


def some_offers(
    goodput: Sequence[Sequence[float]],
    *,
    size: Sequence[int] = (0, 1, 2, 4),
    kind: Sequence[int] | None = None,
    capacity: Sequence[int] = (8,),
    work: Sequence[float] | None = None,
    levels: Sequence[Sequence[float]] | None = None,
    current: Sequence[int] | None = None,
    unknown: Sequence[bool] | None = None,
    done: Sequence[float] | None = None,
) -> Offers:
    """One row per job: goodput by option (0 for none); ``work``: left, in the jobs' unit; ``levels``: at ``LEVELS``."""
    speed = np.array(goodput, dtype=np.float64)
    count = len(speed)
    least = np.where(speed > 0, speed, np.inf).min(axis=1)
    least = np.where(np.isfinite(least), least, 1.0)
    left = np.array(work if work is not None else [100.0] * count, dtype=np.float64) / least
    spread = np.repeat(left[:, None], len(LEVELS), axis=1) if levels is None else np.array(levels)
    jobs: list[JobView] = [
        ADummy(f"j{row}", done[row] if done is not None else None, JobSpec(name="job"))  # type: ignore[misc]
        for row in range(count)
    ]
    return Offers(
        jobs=jobs,
        curves=[PowerCurve(100.0)] * count,
        types=tuple(f"t{k}" for k in range(len(capacity))),
        capacity=tuple(capacity),
        kind=np.array(kind if kind is not None else [0] * len(size)),
        size=np.array(size),
        nodes=-(-np.array(size) // 4),
        goodput=speed,
        expected=speed,
        least=least,
        current=np.array(current if current is not None else [0] * count),
        left_s=spread[:, LEVELS.index(0.5)],
        left_levels_s=spread,
        unknown=np.array(unknown if unknown is not None else [False] * count),
    )
