"""Loads the inputs of a run from paths: profiles, past jobs, and a workload with its format and the published rules."""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from coadapt.errors import InputError, UnknownNameError
from coadapt.model import Cluster, JobSpec
from coadapt.prediction.remaining.past_jobs import Pool
from coadapt.report.output_files import fresh_file
from coadapt.simulation import traces
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.truth._base import ANY_GPU, Truth, solo_time_s
from coadapt.simulation.truth.measured_tables import read_profiles
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for
from coadapt.simulation.truth.rate_table import RateTruth, rate_file, read_rates
from coadapt.store.pool_file import read_pool

Trace = str | Path | traces.Workload
#: In the published runs this task neither grows nor adapts its batch size, whatever the policy.
PUBLISHED_FIXED = "ncf"


def load_truths(scenario: Scenario) -> Mapping[str, Truth]:
    """Loads the ground truth of every profile, by name."""
    if scenario.profiles is None:
        return shipped_profiles()
    rates = rate_file(Path(scenario.profiles))
    if rates is not None:
        return read_rates(rates)
    return read_profiles(Path(scenario.profiles), None if scenario.curves is None else Path(scenario.curves))


def load_pool(scenario: Scenario) -> Pool | None:
    """Loads the past jobs that a run knows from the start; None if the scenario names no file."""
    return None if scenario.pool is None else read_pool(scenario.pool)


def load_workload(
    trace: Trace, scenario: Scenario, truths: Mapping[str, Truth], gpu_type: str = ""
) -> tuple[traces.Workload, list[str]]:
    """Loads the workload, and notes for the user about how it was read.

    Args:
        trace: Path of a trace, or a workload.
        scenario: How to read the trace.
        truths: Ground truth by profile.
        gpu_type: GPU type whose limits of the batch size jobs get; empty: the first one of each profile.
    """
    notes: list[str] = []
    if isinstance(trace, traces.Workload):
        workload = trace
    else:
        specs = _Specs(truths, _known_type(truths, gpu_type))
        workload = traces.open_trace(
            trace,
            scenario.format,
            strict=not scenario.skip_bad,
            map_profiles=scenario.map_profiles,
            profiles=specs.spec,
            any_gpu_type=scenario.any_gpu_type,
        )
        notes = specs.notes() + _notes(workload) + specs.mapped(workload)
    if scenario.published:
        jobs = tuple(msgspec.structs.replace(job, spec=_as_published(job.spec)) for job in workload.jobs)
        workload = msgspec.structs.replace(workload, jobs=jobs)
    return workload, notes


def open_workload(trace: Trace, **scenario: Any) -> tuple[traces.Workload, list[str]]:
    """The workload of a trace, and what a user should know about how it was read; ``scenario``: see ``Scenario``."""
    world = Scenario.of(scenario)
    return load_workload(trace, world, load_truths(world))


def workload_csv(workload: traces.Workload) -> str:
    """Returns a workload as CSV in the columns of ``coadapt``'s own trace format."""
    text = io.StringIO()
    traces.write(workload, text, "csv")
    return text.getvalue()


def write_workload(workload: traces.Workload, path: str | Path, *, force: bool = False) -> None:
    """Writes a workload in our columns; the name's ending says which form: .csv or .jsonl, both also with .gz.

    ``force``: replace the file if it exists.
    """
    target = Path(path)
    name = target.name.removesuffix(".gz")
    form = name.rpartition(".")[2]
    if form not in ("csv", "jsonl"):
        raise InputError(f"{target} ends in neither .csv nor .jsonl (both also with .gz)")
    with fresh_file(target, force=force) as part, part.open("wb") as raw:
        if target.name.endswith(".gz"):
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                _encode(workload, packed, form)
        else:
            _encode(workload, raw, form)


def _encode(workload: traces.Workload, stream: Any, form: str) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    traces.write(workload, text, cast(Literal["csv", "jsonl"], form))
    text.detach()  # whoever opened the stream closes it


def only_type(cluster: Cluster) -> str:
    """The cluster's GPU type if it has one and names it, else ""."""
    types = [name for name in cluster.gpus_by_type() if name not in ANY_GPU]
    return types[0] if len(types) == 1 == len(cluster.gpus_by_type()) else ""


def _known_type(truths: Mapping[str, Truth], gpu_type: str) -> str:
    """The type if every profile knows it; a profile in use that does not is found by ``check_profiles``."""
    try:
        for truth in truths.values() if gpu_type else ():
            truth.limits(gpu_type)
    except InputError:
        return ""
    return gpu_type


class _Specs:
    """Makes the specs of jobs with profiles, and remembers what it had to change."""

    def __init__(self, truths: Mapping[str, Truth], gpu_type: str) -> None:
        self._truths, self._type = truths, gpu_type
        self._batch = cache(self._tuned_batch)
        self._cut: Counter[str] = Counter()

    def spec(self, name: str, profile: str, replicas: int, batch: int | None) -> JobSpec:
        """Returns the specification of a job with a profile (``traces.SpecFor``)."""
        truth = self._truths.get(profile)
        if truth is None:
            raise UnknownNameError("profile", profile, self._truths)
        if isinstance(truth, RateTruth):
            return truth.spec(name, replicas, truth.epochs)
        if batch is None:
            limits = truth.limits(self._type or truth.gpu_types[0])
            most = min(truth.max_workers, limits.max // limits.per_gpu_min)
            if replicas > most:
                self._cut[f"{profile} runs on at most {most} GPUs"] += 1
                replicas = most
            batch = self._batch(profile, replicas)
        return spec_for(name, truth, profile, replicas=replicas, batch=batch, gpu_type=self._type)

    def _tuned_batch(self, profile: str, replicas: int) -> int:
        """The batch size that a careful user would choose: the fastest of the doublings of M0."""
        truth = self._truths[profile]
        limits = truth.limits(self._type or truth.gpu_types[0])
        batch, sizes = limits.initial, [limits.max]
        while batch < limits.max:
            sizes.append(batch)
            batch *= 2
        fed = [size for size in sizes if size >= replicas * limits.per_gpu_min] or [limits.max]
        return min(fed, key=lambda size: (solo_time_s(truth, replicas, size, gpu_type=self._type), size))

    def mapped(self, workload: traces.Workload) -> list[str]:
        """A note that compares the work of the profiles with the recorded work of the jobs they replace."""
        if not workload.mapped_gpu_s:
            return []
        alone_s = cache(self._alone_s)
        gpu_s = sum(
            job.spec.requested_gpus
            * alone_s(job.spec.profile, job.spec.requested, job.spec.requested_batch or 0)
            for job in workload.jobs
            if job.job in workload.mapped_gpu_s
        )
        return [
            f"--unknown-models profiles changes the workload: {sum(workload.mapped_gpu_s.values()) / 3600:,.0f} GPU-hours were recorded, "
            f"the profiles take {gpu_s / 3600:,.0f} at the requested sizes"
        ]

    def _alone_s(self, profile: str, replicas: int, batch: int) -> float:
        truth = self._truths[profile]
        return solo_time_s(truth, replicas, batch, gpu_type=self._type)

    def notes(self) -> list[str]:
        return [f"{count:,} jobs requested more: {reason}" for reason, count in sorted(self._cut.items())]


def _notes(workload: traces.Workload) -> list[str]:
    notes = []
    if workload.skipped:
        first = workload.skipped[0]
        where = f"{first.file}:{first.line}" + (f", column {first.column!r}" if first.column else "")
        rows = "1 bad row" if len(workload.skipped) == 1 else f"{len(workload.skipped):,} bad rows"
        notes.append(f"skipped {rows}; first: {where}: {first.problem}")
    if workload.left_out:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in workload.left_out.items())
        notes.append(f"excluded {sum(workload.left_out.values()):,} jobs: {reasons}")
    return notes


def _as_published(spec: JobSpec) -> JobSpec:
    if spec.profile != PUBLISHED_FIXED or spec.batch is None:
        return spec
    worker = msgspec.structs.replace(spec.worker, max=spec.requested)
    batch = msgspec.structs.replace(spec.batch, mode="fixed")
    return msgspec.structs.replace(spec, roles=(worker, *spec.roles[1:]), batch=batch)
