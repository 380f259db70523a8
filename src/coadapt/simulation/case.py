"""One simulation case: builds the policy, the placer and the simulated world from names and options, and runs them.

Before a run, ``prepare`` checks whether every job can run on the cluster, so that a mistake is reported at once and not
at the end of a long run. ``run_case`` is the composition root of a simulation.

``AloneTimes`` computes how long a job would take alone, from the ground truth: the denominator of finish-time fairness.
Alone means on k GPUs, packed, without contention, as adaptive as under the policy: a job whose policy adapts batch
sizes takes in every epoch the batch size with the most progress per second, any other keeps the one its user asked for.
The job runs on as many of the k GPUs as make it fastest; under a policy that does not choose sizes, on no more than
were asked for. So more GPUs never make a job slower alone. One start is included, because the shared run pays it too.
The other costs of a shared run (rounds, further starts, the growth from one GPU) put rho above 1 even where no other
job is in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import msgspec
import numpy as np

from coadapt.configure.best_batch import split_batch
from coadapt.errors import InputError
from coadapt.model import Batch, Cluster, JobFinished, JobSpec, Record, format_cluster
from coadapt.placement import Placer
from coadapt.plugins import PLACERS, make_policy
from coadapt.policies import Policy, traits_of
from coadapt.prediction.gradient_noise import gain
from coadapt.prediction.remaining.past_jobs import Pool
from coadapt.report import AloneTime, History, finish_time_fairness, rigid_alone_s, summarise
from coadapt.simulation.result import Result
from coadapt.simulation.run import simulate
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.traces._base import Submission, Workload
from coadapt.simulation.truth._base import ANY_GPU, Truth, packed
from coadapt.simulation.truth.oracle_curves import TruthCurves
from coadapt.simulation.truth.rate_table import RateTruth
from coadapt.store import MemoryLog

#: Batch sizes tried in every epoch.
_CANDIDATES = 16
#: Profile, limits, fixed batch size, epochs, replicas, GPU type.
_Question = tuple[str, Batch, int | None, int, int, str]


class AloneTimes:
    """Computes how long the jobs of a run would take alone; each distinct question is computed once.

    Args:
        truths: Ground truth by profile.
        cluster: The cluster of the run: its GPU types and the size of its nodes.
        chooses_size: True if the policy chooses the number of replicas.
        restart_s: Cost of one start, in seconds.
    """

    def __init__(
        self, truths: Mapping[str, Truth], cluster: Cluster, *, chooses_size: bool, restart_s: float
    ) -> None:
        self._truths, self._chooses, self._restart_s = truths, chooses_size, restart_s
        self._per_node = max(node.gpus for node in cluster.nodes)
        self._types = list(cluster.gpus_by_type())
        self._known: dict[_Question, float] = {}

    def of(self, history: History) -> AloneTime:
        """Returns the function of (job, GPUs) that ``report.finish_time_fairness`` takes."""
        return lambda job, gpus: self.alone_s(history.jobs[job].spec, gpus)

    def alone_s(self, spec: JobSpec, gpus: int) -> float | None:
        """Returns the seconds from submission to finish on ``gpus`` GPUs; None if the duration is not known."""
        truth = self._truths.get(spec.profile)
        if truth is None or spec.batch is None:
            rigid_s = rigid_alone_s(spec, gpus)
            return None if rigid_s is None else rigid_s + self._restart_s
        if isinstance(truth, RateTruth):
            return self._restart_s + self._stepped_s(truth, spec, gpus)
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

    def _stepped_s(self, truth: RateTruth, spec: JobSpec, gpus: int) -> float:
        """Seconds of a job with measured rates, on the fastest type; on fewer GPUs than it has, in proportion longer."""
        types = [name for name in self._types if not spec.gpu_types or name in spec.gpu_types]
        rate = max(truth.rate(name, spec.requested) for name in types)
        return (spec.epochs or 0.0) / rate * max(spec.requested_gpus / max(gpus, 1), 1.0)

    def _train_s(self, question: _Question) -> float:
        """Seconds of training on exactly this number of replicas."""
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


def fitting(
    workload: Workload, cluster: Cluster, *, chooses_size: bool, skip_bad: bool = False
) -> tuple[Workload, list[str]]:
    """Returns the jobs that can run on the cluster, and notes about those that were dropped.

    Args:
        workload: Jobs to check.
        cluster: Cluster they should run on.
        chooses_size: True if the policy chooses the number of replicas.
        skip_bad: Drop jobs that do not fit and note them, instead of raising InputError.
    """
    why = _reasons(cluster, chooses_size)
    faults = {job.job: reason for job in workload.jobs if (reason := why(job.spec)) is not None}
    if not faults:
        return workload, []
    if len(faults) == len(workload.jobs):
        least = min(job.spec.requested_gpus for job in workload.jobs)
        raise InputError(
            f"no job of {workload.source} fits the cluster {format_cluster(cluster)}; "
            f"{next(iter(faults.values()))}; the smallest job requests {_gpus(least)}"
        )
    first, reason = next(iter(faults.items()))
    if not skip_bad:
        others = len(faults) - 1
        more = (
            f" ({others:,} other jobs do not fit either)"
            if others > 1
            else " (1 other job does not fit either)"
            if others
            else ""
        )
        raise InputError(
            f"job {first!r} does not fit: {reason}{more}; use a larger cluster, or drop such jobs with --skip-bad"
        )
    kept, waiting = _without(workload.jobs, set(faults))
    notes = [f"dropped {_jobs(len(faults))} for which the cluster has no place; first: {first!r}: {reason}"]
    if waiting:
        notes.append(f"dropped {_jobs(waiting)} that depend on a dropped job")
    return msgspec.structs.replace(workload, jobs=kept), notes


def check_profiles(workload: Workload, cluster: Cluster, truths: Mapping[str, Truth]) -> None:
    """Raises InputError unless every profile in use knows every GPU type it may run on."""
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
            has = "has no GPU type" if set(room) <= set(ANY_GPU) else f"has {', '.join(room)}"
            wanted = " or ".join(spec.gpu_types)
            return f"it requests {wanted} GPUs, but the cluster {format_cluster(cluster)} {has} (or use --any-gpu-type)"
        room = usable
    if (sum(room.values()) if spec.mixed else max(room.values())) >= replicas:
        return None
    one_type = " of one type" if len(room) > 1 and not spec.mixed else ""
    most = sum(room.values()) if spec.mixed else max(room.values())
    return (
        f"it requests {_gpus(replicas * spec.gpus_per_replica)}, but the cluster {format_cluster(cluster)} "
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


#: Above this, a run keeps sums of its jobs, not every stay and report of each.
DETAILED_JOBS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run to be made: may cross into another process. ``name`` is what users see."""

    name: str
    policy: str | Policy
    cluster: Cluster
    scenario: Scenario
    #: Options of a policy given by name: texts from a command line, or values from Python.
    texts: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"seed {self.seed} is invalid; it must be 0 or more")

    def make_policy(self) -> Policy:
        """Returns the policy, made from its name and options if it is not an instance."""
        if not isinstance(self.policy, str):
            return self.policy
        made: Policy = make_policy(self.policy, self.texts, self.values)
        return made

    def make_placer(self, policy: Policy) -> Placer:
        """The placer the user chose; else, in the published setting, the one used there; else the policy's."""
        name = self.scenario.placement
        if name is None and self.scenario.published:
            name = traits_of(policy).published_placer
        placer: Placer = PLACERS.load(name or policy.placer)()
        return placer


def prepare(case: Case, workload: Workload, truths: Mapping[str, Truth]) -> tuple[Workload, list[str]]:
    """Checks a case and drops what cannot run, before anything is computed or written."""
    policy = case.make_policy()
    case.make_placer(policy)
    fit, notes = fitting(
        workload, case.cluster, chooses_size=policy.chooses_size, skip_bad=case.scenario.skip_bad
    )
    check_profiles(fit, case.cluster, truths)
    return fit, notes


def nothing_to_choose(workload: Workload, cases: Sequence[Case]) -> list[str]:
    """A note if policies that choose GPUs or batch sizes meet jobs that leave nothing to choose."""
    if any(job.spec.profile or job.spec.elastic or job.spec.batch for job in workload.jobs):
        return []
    names: dict[str, None] = {}
    for case in cases:
        policy = case.make_policy()
        if policy.chooses_size or policy.adapts_batch:
            names[case.policy if isinstance(case.policy, str) else case.name] = None
    if not names:
        return []
    *rest, last = names
    who = f"{', '.join(rest)} and {last}" if rest else last
    return [
        f"no job has a profile, so {who} cannot change GPUs or batch sizes; see --unknown-models profiles"
    ]


def run_case(
    case: Case,
    workload: Workload,
    truths: Mapping[str, Truth],
    *,
    pool: Pool | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_finished: Callable[[], None] | None = None,
    keep_events: bool = False,
    keep_pool: bool = False,
    notes: list[str] | None = None,
) -> Result:
    """Runs a prepared case to its end.

    Args:
        case: Policy, cluster, scenario and seed.
        workload: Jobs, all of which fit the cluster (``prepare``).
        truths: Ground truth by profile.
        pool: Past jobs that are known from the start.
        on_record: Called with every record of the event log.
        on_finished: Called whenever a job has finished.
        keep_events: Keep the event log in the result.
        keep_pool: Keep the past jobs that are known at the end in the result.
        notes: Notes for the user, passed on in the result.
    """
    policy = case.make_policy()
    history = History(detail=len(workload.jobs) <= DETAILED_JOBS)
    log = MemoryLog(keep=keep_events)
    simulation = simulate(
        ((job.at, job.job, job.spec) for job in workload.jobs),
        case.cluster,
        policy,
        log,
        placer=case.make_placer(policy),
        truths=truths,
        curves=TruthCurves(truths) if traits_of(policy).wants_truth else None,
        setting=case.scenario.setting(case.seed),
        pool=pool,
        on_record=_listener(history, on_record, on_finished),
    )
    alone = AloneTimes(
        truths, case.cluster, chooses_size=policy.chooses_size, restart_s=case.scenario.restart_s
    )
    rho = finish_time_fairness(history, alone.of(history))
    return Result(
        name=case.name,
        source=workload.source,
        cluster=case.cluster,
        seed=case.seed,
        summary=summarise(history, rho=rho, decision_cpu_s=simulation.decision_cpu_s, cpu_s=simulation.cpu_s),
        history=history,
        rho=rho,
        notes=tuple(notes or ()),
        records=list(log.read()) if keep_events else None,
        pool=simulation.state.pool if keep_pool else None,
    )


def _listener(
    history: History, on_record: Callable[[Record], None] | None, on_finished: Callable[[], None] | None
) -> Callable[[Record], None]:
    """One function that calls all listeners; the history's own where there are no others."""
    if on_record is None and on_finished is None:
        return history.add

    def listen(record: Record) -> None:
        history.add(record)
        if on_record is not None:
            on_record(record)
        if on_finished is not None and type(record.event) is JobFinished:
            on_finished()

    return listen
