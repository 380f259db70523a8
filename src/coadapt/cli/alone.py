"""How long a job would take alone: the denominator of finish-time fairness, from the ground truth.

Alone on k GPUs, packed, without contention, as adaptive as under the policy: a job whose policy adapts batch
sizes takes in every epoch the batch size with the most progress per second, any other keeps the one its
user asked for. The job runs on as many of the k GPUs as make it fastest, under a policy that does not choose
sizes on no more than were asked for: more GPUs never make a job slower alone. One start is paid for, since the
shared run pays it too. What else a shared run pays (rounds, further starts, the growth from one GPU) puts
rho above 1 even where nobody disturbs the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np

from coadapt.configure.best_batch import split_batch
from coadapt.model import Batch, Cluster, JobSpec
from coadapt.predict.efficiency import gain
from coadapt.report import AloneTime, History, rigid_alone_s
from coadapt.simulate.truth import Truth, packed

#: Batch sizes tried in every epoch.
_CANDIDATES = 16
#: Profile, limits, fixed batch size, epochs, replicas, GPU type.
_Question = tuple[str, Batch, int | None, int, int, str]


class AloneTimes:
    """Answers for all jobs of a run; each different question is computed once."""

    def __init__(
        self, truths: Mapping[str, Truth], cluster: Cluster, *, chooses_size: bool, restart_s: float
    ) -> None:
        self._truths, self._chooses, self._restart_s = truths, chooses_size, restart_s
        self._per_node = max(node.gpus for node in cluster.nodes)
        self._types = list(cluster.gpus_by_type())
        self._known: dict[_Question, float] = {}

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
        if fixed is not None:
            replicas = max(1, min(replicas, fixed // spec.batch.per_gpu_min))
        epochs = truth.epochs if spec.epochs is None else min(ceil(spec.epochs), truth.epochs)
        least = min(max(spec.worker.min, 1), replicas)
        return self._restart_s + min(
            self._train_s((spec.profile, spec.batch, fixed, epochs, count, gpu_type))
            for count in range(least, replicas + 1)
        )

    def _train_s(self, question: _Question) -> float:
        """Seconds of training on exactly so many replicas."""
        known_s = self._known.get(question)
        if known_s is None:
            known_s = self._known[question] = self._trained_s(self._truths[question[0]], *question[1:])
        return known_s

    def _trained_s(
        self, truth: Truth, limits: Batch, fixed: int | None, epochs: int, replicas: int, gpu_type: str
    ) -> float:
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
        for epoch in range(epochs):
            fastest = max(
                gain(*truth.gradients(total, epoch), total / limits.initial) / update_s
                for total, update_s in updates
            )
            seconds += (marks[epoch + 1] - marks[epoch]) / fastest
        return seconds
