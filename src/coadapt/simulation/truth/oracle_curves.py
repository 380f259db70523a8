"""Curves from the simulator's ground truth, for policies that are meant to know everything (Optimus+Oracle).

A ``CurveSource`` like the fitted one, but its answers come from each job's ``Truth``, on full nodes of the cluster's
largest size and then the rest. As in the simulator published with Pollux (Qiao et al., OSDI 2021):

- on one GPU there is always at least one accumulation step (the agent itself accumulates only above M0);
- remaining steps are counted in whole epochs, from the row of the epoch the job is in to the last row, both
  at the given batch size, and are 1 from then on.

The progress of a job is that of its last report. Rigid jobs have the same curve they have without an oracle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from coadapt.configure import BatchChoice, Curve, RateCurve, RigidCurve
from coadapt.model import Batch
from coadapt.prediction.gradient_noise import gain
from coadapt.prediction.remaining.work import RemainingEvidence, RemainingWork, evidence_for, remaining
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState
from coadapt.simulation.truth._base import Truth, packed
from coadapt.simulation.truth.rate_table import RateTruth

_CANDIDATES = 50
_EPS = 1e-8


class TruthCurves:
    """Implements ``scheduler.CurveSource``; ``truths`` by profile."""

    def __init__(self, truths: Mapping[str, Truth]) -> None:
        self._truths = truths
        self._known: dict[tuple[str, int], TruthTable] = {}
        self._curves: dict[str, TruthCurve] = {}

    def of(self, state: SchedulerState) -> Mapping[str, Curve]:
        """Returns the curves of the active jobs of ``state``, from their ground truth."""
        if len(self._curves) > 2 * len(state.active) + 16:
            self._curves = {name: curve for name, curve in self._curves.items() if name in state.active}
        per_node = max((view.node.gpus for view in state.nodes.values()), default=1)
        return _Curves(self, state, per_node)

    def curve(self, job: JobState, per_node: int) -> Curve:
        """The job's true curve; what was computed for its profile is shared by all jobs that have it."""
        truth = self._truths.get(job.spec.profile)
        if truth is None or job.spec.batch is None:
            return RigidCurve(spec=job.spec, evidence=evidence_for(job.spec, done=job.work or 0.0))
        if isinstance(truth, RateTruth):
            return RateCurve(spec=job.spec, rate=truth.rate, done_steps=job.epoch or 0.0)
        known = self._curves.get(job.id)
        if known is not None and known.job is job and known.table.per_node == per_node:
            return known
        table = self._known.get((job.spec.profile, per_node))
        if table is None:
            table = self._known[job.spec.profile, per_node] = TruthTable(truth, per_node)
        curve = self._curves[job.id] = TruthCurve(job, table)
        return curve


class _Curves(Mapping[str, Curve]):
    def __init__(self, source: TruthCurves, state: SchedulerState, per_node: int) -> None:
        self._source, self._state, self._per_node = source, state, per_node

    def __getitem__(self, job: str) -> Curve:
        return self._source.curve(self._state.active[job], self._per_node)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.active)

    def __len__(self) -> int:
        return len(self._state.active)


class TruthTable:
    """Answers about one profile, each computed once."""

    def __init__(self, truth: Truth, per_node: int) -> None:
        self.truth, self.per_node = truth, per_node
        self._times: dict[tuple[int, int, int, str], float] = {}
        self._left: dict[tuple[int, int], float] = {}
        self._best: dict[tuple[Batch, int, int, int, int, str], BatchChoice] = {}

    def step_s(self, batch: int, nodes: int, replicas: int, gpu_type: str) -> float:
        """Returns the seconds of one optimizer step at total batch size ``batch``.

        The job has ``replicas`` workers on ``nodes`` nodes with GPUs of type ``gpu_type``.
        """
        key = (batch, nodes, replicas, gpu_type)
        found = self._times.get(key)
        if found is None:
            atomic, accumulation = self._split(batch, replicas, self.truth.limits(gpu_type))
            found = self._times[key] = self._update_s(nodes, replicas, atomic, accumulation, gpu_type)
        return found

    def remaining_steps(self, batch: int, epoch: int) -> float:
        """Returns the optimizer steps from the row of ``epoch`` to the last one."""
        key = (batch, epoch)
        found = self._left.get(key)
        if found is None:
            last, until = self.truth.epochs - 1, self.truth.steps_until
            found = self._left[key] = until(batch, last) - until(batch, epoch) if epoch < last else 1.0
        return found

    def best(
        self, limits: Batch, fixed: int, epoch: int, nodes: int, replicas: int, gpu_type: str
    ) -> BatchChoice:
        """Returns the batch size with the highest goodput.

        Args:
            limits: Limits of the batch size.
            fixed: The only batch size to consider; 0: all within the limits.
            epoch: Epoch of work the job is in.
            nodes: Number of nodes.
            replicas: Number of workers on them.
            gpu_type: Type of the GPUs.
        """
        key = (limits, fixed, epoch, nodes, replicas, gpu_type)
        found = self._best.get(key)
        if found is None:
            found = self._best[key] = self._search(limits, fixed, epoch, nodes, replicas, gpu_type)
        return found

    def _search(
        self, limits: Batch, fixed: int, epoch: int, nodes: int, replicas: int, gpu_type: str
    ) -> BatchChoice:
        best = BatchChoice(atomic_batch=0, accumulation=0, goodput=0.0)
        least = max(limits.initial, limits.per_gpu_min * replicas)
        if not 1 <= nodes <= replicas <= self.truth.max_workers or least > limits.max:
            return best
        for batch in (fixed,) if fixed else np.geomspace(least, limits.max, _CANDIDATES).tolist():
            atomic, accumulation = self._split(batch, replicas, limits)
            if not limits.per_gpu_min <= atomic <= limits.per_gpu_max:
                continue
            total = replicas * atomic * (accumulation + 1)
            update_s = self._update_s(nodes, replicas, atomic, accumulation, gpu_type)
            steps_at_m0 = gain(*self.truth.gradients(total, epoch), total / limits.initial)
            goodput = steps_at_m0 * limits.initial / update_s
            if goodput > best.goodput:
                best = BatchChoice(atomic_batch=atomic, accumulation=accumulation, goodput=goodput)
        return best

    @staticmethod
    def _split(batch: float, replicas: int, limits: Batch) -> tuple[int, int]:
        local = math.ceil(batch / replicas - _EPS)
        accumulation = math.ceil(local / limits.per_gpu_max - _EPS) - 1
        if replicas == 1:
            accumulation = max(accumulation, 1)
        atomic = math.ceil(local / (accumulation + 1) - _EPS)
        return max(min(atomic, limits.max // (replicas * (accumulation + 1))), 1), accumulation

    def _update_s(self, nodes: int, replicas: int, atomic: int, accumulation: int, gpu_type: str) -> float:
        full = self.per_node if nodes == -(-replicas // self.per_node) else -(-replicas // nodes)
        step_s, sync_s = self.truth.step(packed(replicas, full), atomic, gpu_type)
        return step_s + accumulation * (step_s - sync_s)


class TruthCurve:
    """Implements ``configure.Curve`` for one job."""

    fitted = True

    def __init__(self, job: JobState, table: TruthTable) -> None:
        self.job, self.table = job, table

    @property
    def max_profiled_replicas(self) -> int:
        """The most replicas that the ground truth covers."""
        return self.table.truth.max_workers

    def goodput(
        self, nodes: npt.ArrayLike, replicas: npt.ArrayLike, gpu_type: str = "gpu"
    ) -> npt.NDArray[np.float64]:
        """Work per second at the best batch size (the requested one if it is fixed)."""
        wide = np.broadcast_arrays(np.asarray(nodes), np.asarray(replicas))
        found = [
            self.config(int(n), int(r), gpu_type).goodput
            for n, r in zip(*(a.flat for a in wide), strict=True)
        ]
        return np.array(found, dtype=np.float64).reshape(wide[0].shape)

    def config(self, nodes: int, replicas: int, gpu_type: str = "gpu") -> BatchChoice:
        """Returns the batch size that reaches this goodput."""
        spec, limits = self.job.spec, self.table.truth.limits(gpu_type)
        fixed = 0
        if spec.batch is not None and spec.batch.mode == "fixed":
            fixed = spec.requested_batch or limits.initial
        return self.table.best(limits, fixed, self._epoch, nodes, replicas, gpu_type)

    def step_time_at(self, batch: int, nodes: int, replicas: int, gpu_type: str = "gpu") -> float:
        """Returns the seconds of one optimizer step at total batch size ``batch``.

        The job has ``replicas`` workers on ``nodes`` nodes with GPUs of type ``gpu_type``.
        """
        return self.table.step_s(batch, nodes, replicas, gpu_type)

    def remaining_steps(self, batch: int, work: float | None = None) -> float:
        """Optimizer steps to the end, in whole epochs; ``work`` is ignored, because the true end is known."""
        return self.table.remaining_steps(batch, self._epoch)

    def remaining_work(self) -> float:
        """Work to the end, by the work last reported."""
        truth = self.table.truth
        return max(truth.epoch_marks()[-1] * truth.limits("").initial - (self.job.work or 0.0), 0.0)

    def remaining(self) -> RemainingWork:
        """Returns the remaining work as a distribution with next to no spread."""
        done = self.job.work or 0.0
        return remaining(RemainingEvidence(done=done, declared=done + self.remaining_work()))

    @property
    def _epoch(self) -> int:
        return int(self.job.epoch or 0)
