"""How long a job would take alone: the denominator of finish-time fairness, from the ground truth.

Alone on k GPUs, packed, without contention, as adaptive as under the policy: a job whose policy adapts batch
sizes takes in every epoch the batch size with the most progress per second, any other keeps the one its
user asked for; a policy that chooses sizes uses all k GPUs, any other at most those asked for. One start
is paid for, since the shared run pays it too: a job that nobody disturbs has rho = 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coadapt.configure.best_batch import split_batch
from coadapt.model import Batch, Cluster, JobSpec
from coadapt.predict.efficiency import gain
from coadapt.report import AloneTime, History, rigid_alone_s
from coadapt.simulate.truth import Truth, packed

#: Batch sizes tried in every epoch.
_CANDIDATES = 16


class AloneTimes:
    """Answers for all jobs of a run; each different question is computed once."""

    def __init__(
        self, truths: Mapping[str, Truth], cluster: Cluster, *, chooses_size: bool, restart_s: float
    ) -> None:
        self._truths, self._chooses, self._restart_s = truths, chooses_size, restart_s
        self._per_node = max(node.gpus for node in cluster.nodes)
        self._types = list(cluster.gpus_by_type())
        self._known: dict[tuple[str, Batch, int | None, int, str], float] = {}

    def of(self, history: History) -> AloneTime:
        """For ``report.finish_time_fairness``."""
        return lambda job, gpus: self.alone_s(history.jobs[job].spec, gpus)

    def alone_s(self, spec: JobSpec, gpus: int) -> float | None:
        """Seconds from submission to finish; None where nobody knows."""
        truth = self._truths.get(spec.profile)
        if truth is None or spec.batch is None:
            rigid_s = rigid_alone_s(spec, gpus)
            return None if rigid_s is None else rigid_s + self._restart_s
        most = spec.worker.max if self._chooses else spec.requested
        replicas = max(1, min(gpus // max(spec.gpus_per_replica, 1), most, truth.max_workers))
        gpu_type = next((name for name in self._types if not spec.gpu_types or name in spec.gpu_types), "")
        fixed = spec.requested_batch if spec.batch.mode == "fixed" else None
        key = (spec.profile, spec.batch, fixed, replicas, gpu_type)
        if key not in self._known:
            self._known[key] = self._train_s(truth, spec.batch, fixed, replicas, gpu_type)
        return self._known[key] + self._restart_s

    def _train_s(self, truth: Truth, limits: Batch, fixed: int | None, replicas: int, gpu_type: str) -> float:
        shape = packed(replicas, self._per_node)
        least = max(limits.initial, replicas * limits.per_gpu_min)
        tried = [fixed or limits.initial]
        if limits.mode == "adaptive" and least <= limits.max:
            tried = sorted({round(batch) for batch in np.geomspace(least, limits.max, _CANDIDATES)})
        updates = []
        for batch in tried:
            atomic, accumulation = split_batch(batch, replicas, truth.limits(gpu_type))
            step_s, sync_s = truth.step(shape, atomic, gpu_type)
            total = replicas * atomic * (accumulation + 1)
            updates.append((total, step_s + accumulation * (step_s - sync_s)))
        marks = (0.0, *truth.epoch_marks())
        seconds = 0.0
        for epoch in range(truth.epochs):
            fastest = max(
                gain(*truth.gradients(total, epoch), total / limits.initial) / update_s
                for total, update_s in updates
            )
            seconds += (marks[epoch + 1] - marks[epoch]) / fastest
        return seconds
