"""Past jobs as samples (``coadapt plan --pool FILE``): step times of jobs like this one, their gradient noise, how long they trained.

A job is like another by name, command, data size and batch size (``predict.history``). Their steps become pass times, data size / batch x
step; their noise scale says how passes become work at larger batches; their total work how many epochs, where nobody says.
The pool knows no metric.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from coadapt.cli.plan_request import Request
from coadapt.configure.problem import Evidence
from coadapt.errors import InputError
from coadapt.model import JobSpec
from coadapt.predict.history import NOISE_SHARES, Match, Prior, prior_for
from coadapt.predict.samples import EpochSample, epoch_table
from coadapt.predict.work_epochs import ByNoise, Work
from coadapt.store.pool import load


class Learned(NamedTuple):
    """What past jobs tell."""

    evidence: Evidence
    work: Work | None
    epochs: float | None
    note: str


def from_pool(request: Request, spec: Mapping[str, Any], known: Evidence) -> Learned:
    """Past runs of the pool beside those known."""
    assert request.pool is not None
    if not spec.get("name"):
        raise InputError(
            "--pool compares jobs by name: give a specification with one (train.yaml: 'name: ...')"
        )
    batch = spec.get("batch") if isinstance(spec.get("batch"), Mapping) else {}
    assert isinstance(batch, Mapping)
    initial = int(batch["initial"]) if "initial" in batch else None
    told = spec.get("data_size")
    job = JobSpec(
        name=str(spec["name"]),
        user=str(spec.get("user") or ""),
        command=tuple(shlex.split(str(spec.get("run") or ""))),
        requested_batch=initial,
        data_size=None if told is None else int(told),
    )
    prior = prior_for(load(request.pool), job)
    if not prior.table.rows:
        raise InputError(
            f"pool {request.pool} has no past job like {job.name!r} with measured steps; see 'coadapt pool'"
        )
    best = prior.matches[0]
    size = job.data_size or best.job.data_size
    if not size:
        raise InputError("how many examples is a pass? give data_size in the specification")
    initial = initial or (None if best.job.batch is None else round(best.job.batch))
    epochs = float(np.average(prior.past, weights=prior.likeness)) / size if prior.past else None
    return Learned(
        evidence=_joined(known, prior, float(size), request.gpus_per_node),
        work=_work(prior, initial, epochs) if known.metrics is None else None,
        epochs=epochs,
        note=_note(prior, best, epochs, request),
    )


def _joined(known: Evidence, prior: Prior, size: float, gpus_per_node: int) -> Evidence:
    samples = {name: list(table.samples) for name, table in known.epochs.items()}
    for row in prior.table.rows:
        batch = row.replicas * row.atomic_batch
        sample = EpochSample(
            batch=batch, workers=row.replicas, nodes=row.nodes, epoch_s=size / batch * row.step_s
        )
        samples.setdefault(row.gpu_type, []).append(sample)
    tables = {name: epoch_table(rows, gpus_per_node=gpus_per_node) for name, rows in sorted(samples.items())}
    return Evidence(epochs=tables, metrics=known.metrics, memory=known.memory)


def _work(prior: Prior, initial: int | None, epochs: float | None) -> Work | None:
    if not prior.noise or initial is None or not epochs:
        return None
    shares = [max(share, 1e-3) * epochs for share in NOISE_SHARES]
    return ByNoise(
        initial=float(initial), epochs=tuple(shares), phi=tuple(each.value for each in prior.noise)
    )


def _note(prior: Prior, best: Match, epochs: float | None, request: Request) -> str:
    said = f"from {len(prior.matches)} past jobs like it ({best.job.name}: {best.why})"
    if epochs is None or request.epochs is not None:
        return said
    return said + f"; they trained for {epochs:.3g} epochs of work"
