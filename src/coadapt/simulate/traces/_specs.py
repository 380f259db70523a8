"""A trace's entry as a job: rigid, known by its recorded duration, or with a profile.

A trace of a production cluster says how long a job ran on how many GPUs, not how it would have run
on others. The mapping by GPU time is that of the Pollux workloads (Qiao et al., OSDI '21, section
5.1); where two profiles share a class, a digest of the job's id decides instead of a random draw, so
that a job is the same in every run and in every part of a trace.
"""

from __future__ import annotations

import hashlib
import math

import msgspec

from coadapt.errors import InputError, UnknownNameError
from coadapt.model import JobSpec, Recorded, Role
from coadapt.simulate.traces._base import BadValue, Entry, SpecFor

_CLASSES: tuple[tuple[float, tuple[str, ...]], ...] = (  # below so many GPU-hours
    (1, ("cifar10", "ncf")),
    (10, ("deepspeech2", "bert")),
    (100, ("yolov3",)),
    (math.inf, ("imagenet",)),
)


def profile_for(job: str, gpu_s: float) -> str:
    """The profile that stands for a job of so much GPU time; the same job always gets the same."""
    names = next(names for hours, names in _CLASSES if gpu_s < hours * 3600)
    return names[hashlib.blake2b(job.encode(), digest_size=1).digest()[0] % len(names)]


class SpecBuilder:
    """Makes the specs of one trace. ``by_gpu_time`` gives a profile to the jobs that have none."""

    def __init__(
        self, profiles: SpecFor | None, *, by_gpu_time: bool, any_gpu_type: bool, column: str | None
    ) -> None:
        self._profiles, self._by_gpu_time, self._any_type = profiles, by_gpu_time, any_gpu_type
        self._column = column
        self._roles: dict[int, tuple[Role, ...]] = {}
        #: By job: the recorded GPU-seconds that gave it its profile.
        self.mapped_gpu_s: dict[str, float] = {}

    def spec(self, entry: Entry, origin: float) -> JobSpec:
        """The entry's spec without its dependencies; times become seconds after ``origin``."""
        recorded = None
        if entry.start_s is not None or entry.end_s is not None:
            start_s = None if entry.start_s is None else entry.start_s - origin
            recorded = Recorded(start_s=start_s, end_s=None if entry.end_s is None else entry.end_s - origin)
        if not entry.profile and self._by_gpu_time and entry.duration_s is not None:
            gpu_s = entry.gpus * entry.duration_s
            self.mapped_gpu_s[entry.job] = gpu_s
            return self._profiled(entry, profile_for(entry.job, gpu_s), recorded)
        return (
            self._profiled(entry, entry.profile, recorded) if entry.profile else self._rigid(entry, recorded)
        )

    def _rigid(self, entry: Entry, recorded: Recorded | None) -> JobSpec:
        if not {entry.min_gpus, entry.max_gpus} <= {None, entry.gpus}:
            raise BadValue(
                "min_gpus and max_gpus need a profile: without one nobody knows how the job scales",
                "min_gpus" if entry.min_gpus not in (None, entry.gpus) else "max_gpus",
            )
        return JobSpec(
            name=entry.job,
            user=entry.user,
            team=entry.team,
            roles=self._of(entry.gpus),
            gpu_types=() if self._any_type else entry.gpu_types,
            requested=entry.gpus,
            requested_batch=entry.batch,
            epochs=entry.epochs,
            duration_s=entry.duration_s,
            recorded=recorded,
            priority=entry.priority,
            deadline_s=entry.deadline_s,
            time_limit_s=entry.time_limit_s,
            preemptible=entry.preemptible,
        )

    def _of(self, gpus: int) -> tuple[Role, ...]:
        """One object per size: a trace of a million jobs has a dozen sizes."""
        roles = self._roles.get(gpus)
        if roles is None:
            roles = self._roles[gpus] = (Role(min=gpus, max=gpus),)
        return roles

    def _profiled(self, entry: Entry, profile: str, recorded: Recorded | None) -> JobSpec:
        if self._profiles is None:
            raise InputError(f"job {entry.job!r} has the profile {profile!r}, but no profiles were given")
        try:
            spec = self._profiles(entry.job, profile, entry.gpus, entry.batch)
        except UnknownNameError as error:
            known = ", ".join(error.known)
            raise BadValue(f"unknown {error.kind} {error.name!r}; known: {known}", self._column) from None
        except InputError as error:
            raise BadValue(str(error), self._column) from None
        # epochs of a job that is mapped by its GPU time are those of its own model, not of the profile
        epochs = entry.epochs if entry.profile else None
        if epochs is not None and not 1 <= epochs <= (spec.epochs or epochs):
            raise BadValue(
                f"{epochs:g} epochs are not possible; {profile} has 1 to {spec.epochs:g}", "epochs"
            )
        changes: dict[str, object] = {"user": entry.user, "team": entry.team, "recorded": recorded}
        changes |= {"priority": entry.priority, "preemptible": entry.preemptible}
        if entry.gpu_types and not self._any_type:
            changes["gpu_types"] = entry.gpu_types
        if epochs is not None:
            changes["epochs"] = epochs
        for name in ("deadline_s", "time_limit_s"):
            if getattr(entry, name) is not None:
                changes[name] = getattr(entry, name)
        if entry.min_gpus is not None or entry.max_gpus is not None:
            worker = spec.worker
            least, most = entry.min_gpus or worker.min, entry.max_gpus or worker.max
            changes["roles"] = (msgspec.structs.replace(worker, min=least, max=most), *spec.roles[1:])
        return msgspec.structs.replace(spec, **changes)
