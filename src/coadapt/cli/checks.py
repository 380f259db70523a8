"""Before a run: can every job ever run on this cluster? Better said now than found out at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from coadapt.errors import InputError
from coadapt.model import Cluster, JobSpec, format_cluster
from coadapt.simulate.traces import Submission, Workload
from coadapt.simulate.truth import ANY_GPU, Truth


def fitting(
    workload: Workload, cluster: Cluster, *, chooses_size: bool, skip_bad: bool = False
) -> tuple[Workload, list[str]]:
    """The jobs that can run on the cluster. Others are an InputError, or dropped and said (``skip_bad``)."""
    why = _reasons(cluster, chooses_size)
    faults = {job.job: reason for job in workload.jobs if (reason := why(job.spec)) is not None}
    if not faults:
        return workload, []
    if len(faults) == len(workload.jobs):
        least = min(job.spec.requested_gpus for job in workload.jobs)
        raise InputError(
            f"no job of {workload.source} fits the cluster {format_cluster(cluster)}; "
            f"{next(iter(faults.values()))}; the smallest asks for {_gpus(least)}"
        )
    first, reason = next(iter(faults.items()))
    if not skip_bad:
        others = len(faults) - 1
        more = (
            f", and so do {others:,} other jobs"
            if others > 1
            else ", and so does 1 other job"
            if others
            else ""
        )
        raise InputError(
            f"job {first!r} does not fit: {reason}{more}; change the cluster, or drop what does not fit by --skip-bad"
        )
    kept, waiting = _without(workload.jobs, set(faults))
    notes = [f"dropped {_jobs(len(faults))} without a place on the cluster; the first: {first!r}: {reason}"]
    if waiting:
        notes.append(f"dropped {_jobs(waiting)} waiting for a dropped one")
    return msgspec.structs.replace(workload, jobs=kept), notes


def check_profiles(workload: Workload, cluster: Cluster, truths: Mapping[str, Truth]) -> None:
    """Every profile in use knows every GPU type it may meet."""
    for profile in dict.fromkeys(job.spec.profile for job in workload.jobs if job.spec.profile):
        if profile not in truths:
            raise InputError(
                f"the workload has the profile {profile!r}, which is not among: {', '.join(truths)}"
            )
        for gpu_type in cluster.gpus_by_type():
            truths[profile].limits(gpu_type)


def _reasons(cluster: Cluster, chooses_size: bool) -> Callable[[JobSpec], str | None]:
    """Why a job can never run; None if it can. Jobs that ask for the same share the answer."""
    known: dict[tuple[object, ...], str | None] = {}

    def why(spec: JobSpec) -> str | None:
        replicas = spec.worker.min if chooses_size and spec.elastic else spec.requested
        key = (spec.gpu_types, spec.gpus_per_replica, replicas, spec.mixed)
        if key not in known:
            known[key] = _reason(spec, replicas, cluster)
        return known[key]

    return why


def _reason(spec: JobSpec, replicas: int, cluster: Cluster) -> str | None:
    room: dict[str, int] = {}
    for node in cluster.nodes:
        fit = node.gpus // spec.gpus_per_replica if spec.gpus_per_replica else replicas
        room[node.gpu_type] = room.get(node.gpu_type, 0) + fit
    if spec.gpu_types:
        usable = {name: count for name, count in room.items() if name in spec.gpu_types}
        if not usable:
            has = "names no GPU type" if set(room) <= set(ANY_GPU) else f"has {', '.join(room)}"
            wanted = " or ".join(spec.gpu_types)
            return f"it asks for {wanted} GPUs and the cluster {format_cluster(cluster)} {has} (or use --any-gpu-type)"
        room = usable
    if (sum(room.values()) if spec.mixed else max(room.values())) >= replicas:
        return None
    one_type = " of one type" if len(room) > 1 and not spec.mixed else ""
    most = sum(room.values()) if spec.mixed else max(room.values())
    return (
        f"it asks for {_gpus(replicas * spec.gpus_per_replica)} and the cluster {format_cluster(cluster)} "
        f"has {most * spec.gpus_per_replica}{one_type}"
    )


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count:,} GPUs"


def _without(jobs: tuple[Submission, ...], gone: set[str]) -> tuple[tuple[Submission, ...], int]:
    """The jobs less those in ``gone`` and all that wait for them; and how many of the latter there were."""
    faults = len(gone)
    while True:
        more = {job.job for job in jobs if job.job not in gone and not gone.isdisjoint(job.spec.after)}
        if not more:
            return tuple(job for job in jobs if job.job not in gone), len(gone) - faults
        gone |= more
