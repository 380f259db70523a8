"""The lower bound of a workload on a cluster: prepares the input of ``report.lower_bound`` from the ground truth.

One bound is computed per cluster and set of jobs, before any policy runs. Every approximation is on the safe side, so
that the result stays a lower bound:

- Rates are the best possible ones: see ``best_rates``.
- A job may begin at the first decision after its submission, and trains one start later. Other changes, interference
  and lost nodes only slow jobs down, and are left out; a node that joins counts from the beginning.
- Where ends of epochs are rounded to whole seconds (the published setting), an epoch may be half a second shorter: see
  ``_rounded``.
- A job without a model proceeds at its recorded pace on as few GPUs as it may have; a job with parameter servers
  proceeds as if its network were infinitely fast.

The bound assumes that no GPU is given to two jobs at once: no policy that shares GPUs is compared with it.

``best_rates`` is the best rate of progress of a job on a number of replicas, over all placements, node counts and batch
sizes. No possible case may be left out. Batch sizes are all that an agent may choose for a number of replicas (the
candidates of ``configure.best_batch``, of which the first is the one it starts with), and the given ones. Placements
are all those of up to four nodes. On more nodes there is one for every number of nodes and of replicas on the fullest
node, because neither measured tables nor the shipped formulas distinguish others there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from coadapt.configure.best_batch import CANDIDATES, split_batch
from coadapt.errors import InputError
from coadapt.model import (
    NOWHERE,
    SERVER,
    Batch,
    Cluster,
    JobSpec,
    NodeJoined,
    Placement,
    Slot,
    format_cluster,
)
from coadapt.prediction.gradient_noise import gain
from coadapt.progress import Bars
from coadapt.report.lower_bound import MOST_JOBS, BoundJob, LowerBound, lower_bound
from coadapt.report.lower_bound_jobs import Course
from coadapt.simulation.case import Case, prepare
from coadapt.simulation.comparison import Entrant
from coadapt.simulation.run import Setting
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.traces._base import Workload
from coadapt.simulation.truth._base import ANY_GPU, Truth
from coadapt.simulation.truth.parameter_server_speed import parameter_server_truth
from coadapt.simulation.truth.rate_table import RateTruth
from coadapt.simulation.workload import Trace, load_truths, load_workload, only_type

#: By the cluster in shorthand and the number of jobs: of one workload, only jobs that do not fit are left out.
Bounds = Mapping[tuple[str, int], LowerBound]


def bounds_for(
    trace: Trace,
    entrants: Iterable[Entrant],
    clusters: Sequence[Cluster],
    scenario: Scenario,
    bars: Bars | None = None,
) -> Bounds:
    """Computes the lower bound for every cluster and set of jobs that the entrants will run.

    Args:
        trace: Path of a trace, or a workload.
        entrants: Policies of the comparison; each may leave out other jobs that do not fit.
        clusters: Clusters of the comparison.
        scenario: How to read the trace, and the simulated world.
        bars: Progress bars; None: no progress is shown.
    """
    truths, tried = load_truths(scenario), list(entrants)
    found: dict[tuple[str, int], LowerBound] = {}
    for cluster in clusters:
        workload, _ = load_workload(trace, scenario, truths, only_type(cluster))
        for entrant in tried:
            case = Case(
                name=entrant.name,
                policy=entrant.policy,
                cluster=cluster,
                scenario=scenario,
                texts=entrant.texts,
                values=entrant.values,
            )
            fit, _ = prepare(case, workload, truths)
            key = (format_cluster(cluster), len(fit.jobs))
            if key not in found:
                found[key] = bound_of(fit, case, truths, bars)
    return found


def bound_of(
    workload: Workload, case: Case, truths: Mapping[str, Truth], bars: Bars | None = None
) -> LowerBound:
    """Computes the lower bound of one workload.

    Args:
        workload: Jobs that all fit the cluster of ``case``.
        case: Cluster, scenario and seed.
        truths: Ground truth by profile.
        bars: Progress bars; None: no progress is shown.

    Raises:
        InputError: The workload has more than ``MOST_JOBS`` jobs.
    """
    if any(isinstance(truths.get(job.spec.profile), RateTruth) for job in workload.jobs):
        raise InputError(
            f"there is no lower bound for jobs that are known by step rates, as in {workload.source}; omit --lower-bound"
        )
    if len(workload.jobs) > MOST_JOBS:
        raise InputError(
            f"a lower bound takes at most {MOST_JOBS:,} jobs, and {workload.source} has {len(workload.jobs):,}; "
            "use a part of the trace, or omit --lower-bound"
        )
    given = bound_input(
        ((job.at, job.job, job.spec) for job in workload.jobs),
        case.cluster,
        truths,
        case.scenario.setting(case.seed),
    )
    title = f"lower bound on {format_cluster(case.cluster)}"
    return lower_bound(
        *given, on_round=None if bars is None else lambda done, total: bars.update(title, done, total)
    )


FloatArray = npt.NDArray[np.float64]
#: By GPU type and GPUs: work per second in every piece.
Rates = dict[tuple[str, int], FloatArray]
#: Work of a job, or of an epoch, that rounding might take away altogether.
_NEXT_TO_NOTHING = 1e-9


class BoundInput(NamedTuple):
    """Arguments of ``report.lower_bound``."""

    jobs: list[BoundJob]
    courses: list[Course]
    capacity: list[float]


def bound_input(
    submissions: Iterable[tuple[float, str, JobSpec]],
    cluster: Cluster,
    truths: Mapping[str, Truth],
    setting: Setting,
) -> BoundInput:
    """Builds the input of ``report.lower_bound``.

    Args:
        submissions: (submission time, job, specification) of every job.
        cluster: Nodes at the beginning; those that join later are added to them.
        truths: Ground truth by profile.
        setting: The simulated world: interval of decisions, cost of changes, events of nodes.
    """
    jobs = list(submissions)
    joined = [event.node for _, event in setting.events if isinstance(event, NodeJoined)]
    world = _World(Cluster(nodes=(*cluster.nodes, *joined)), truths, setting, [spec for *_, spec in jobs])
    found = [
        BoundJob(at, _first_decision(at, setting) + world.start_s(spec), world.course(job, spec))
        for at, job, spec in jobs
    ]
    return BoundInput(found, world.courses, [float(count) for count in world.gpus.values()])


def _first_decision(at: float, setting: Setting) -> float:
    if setting.interval_s is None:
        return at
    return max(at, math.ceil(at / setting.interval_s - 1e-9) * setting.interval_s)


class _World:
    """Makes each course once."""

    def __init__(
        self, cluster: Cluster, truths: Mapping[str, Truth], setting: Setting, specs: Sequence[JobSpec]
    ) -> None:
        self.gpus = cluster.gpus_by_type()
        self.courses: list[Course] = []
        self._cluster, self._truths, self._setting = cluster, truths, setting
        self._known: dict[tuple[object, ...], int] = {}
        #: Batch sizes asked for, by profile: what jobs keep to under a policy that does not adapt them.
        self._asked: dict[str, set[int | None]] = {}
        for spec in specs:
            self._asked.setdefault(spec.profile, set()).add(spec.requested_batch)

    def start_s(self, spec: JobSpec) -> float:
        """Lower bound of the cost of a first start, by size and type of GPU."""
        return min(
            self._setting.change_cost(
                spec,
                NOWHERE,
                Placement(slots=(Slot(node=node.name, replicas=count, gpu_type=node.gpu_type),)),
            )
            for node in {node.gpu_type: node for node in self._cluster.nodes}.values()
            for count in {spec.worker.min, spec.requested}
        )

    def course(self, job: str, spec: JobSpec) -> int:
        """The number of the job's course."""
        fixed = spec.sync != "allreduce" or (spec.batch is not None and spec.batch.mode == "fixed")
        key = (
            *(spec.profile, spec.sync, spec.batch, spec.epochs, spec.duration_s, spec.data_size),
            *(_sizes(spec), spec.gpu_types, spec.mixed, spec.requested_batch if fixed else None),
            *((role.name, role.min, role.max, role.demand.gpus) for role in spec.roles),
        )
        if key not in self._known:
            self._known[key] = len(self.courses)
            self.courses.append(self._course(job, spec))
        return self._known[key]

    def _course(self, job: str, spec: JobSpec) -> Course:
        types = [name for name in self.gpus if not spec.gpu_types or name in spec.gpu_types]
        if spec.sync != "allreduce":
            work, rates = _served(spec, types)
        elif spec.profile:
            work, rates = self._profiled(job, spec, types)
        else:
            work, rates = _timed(job, spec, types)
        if spec.mixed:
            rates = _on_any(rates)
        else:
            rates = {(name, gpus): rate for (name, gpus), rate in rates.items() if gpus <= self.gpus[name]}
        if not rates:
            raise InputError(f"job {job!r} fits no GPU type of the cluster, so there is no lower bound")
        numbers = {name: number for number, name in enumerate(self.gpus)}
        return Course(
            np.maximum(work, _NEXT_TO_NOTHING * work.max(initial=1.0)),
            np.array([gpus for _, gpus in rates], dtype=np.float64),
            np.array([numbers[name] for name, _ in rates]),
            np.column_stack(list(rates.values())),
        )

    def _profiled(self, job: str, spec: JobSpec, types: Sequence[str]) -> tuple[FloatArray, Rates]:
        truth = self._truths.get(spec.profile)
        if truth is None:
            raise InputError(
                f"job {job!r} has profile {spec.profile!r}, which is not one of the given profiles"
            )
        epochs = truth.epochs if spec.epochs is None else min(math.ceil(spec.epochs), truth.epochs)
        training = self._setting.training
        quicker = max(1.0, 1.0 / training.straggler_factor) if training.straggler_chance else 1.0
        rates: Rates = {}
        for name in types:
            limits = _limits(spec, truth, name)
            asked = self._asked[spec.profile] if limits.mode == "adaptive" else {spec.requested_batch}
            given = {total or limits.initial for total in asked}
            usable = types if spec.mixed else (name,)
            room = [
                node.gpus // spec.gpus_per_replica if spec.gpus_per_replica else _sizes(spec)[-1]
                for node in self._cluster.nodes
                if node.gpu_type in usable
            ]
            for count in _sizes(spec):
                if count <= sum(room):
                    best = best_rates(truth, limits, name, count, room, given)
                    rates[name, count * spec.gpus_per_replica] = quicker * best[:epochs]
        work = np.diff(truth.epoch_marks()[:epochs], prepend=0.0)
        if rates and training.resolution_s:
            return _rounded(work, rates, training.resolution_s, self._least_change_s(spec))
        return work, rates

    def _least_change_s(self, spec: JobSpec) -> float:
        """Lower bound of the cost of a start, a growth, a shrinkage or a move."""
        name = self._cluster.nodes[0].name
        small, large, other = (
            Placement(slots=(Slot(node=node, replicas=count),))
            for node, count in ((name, 1), (name, 2), (f"not {name}", 1))
        )
        changes = ((NOWHERE, small), (small, large), (large, small), (small, other))
        return min(self._setting.change_cost(spec, before, after) for before, after in changes)


def _sizes(spec: JobSpec) -> range:
    """Replicas that a policy may give; one that does not choose sizes gives those asked for."""
    least, most = min(spec.worker.min, spec.requested), max(spec.worker.max, spec.requested)
    return range(max(least, 1), max(most, 1) + 1)


def _limits(spec: JobSpec, truth: Truth, gpu_type: str) -> Batch:
    """As ``ProfiledTraining`` has them on GPUs of this type."""
    fits = truth.limits(gpu_type)
    if spec.batch is None:
        return fits
    if len(truth.gpu_types) == 1:
        return spec.batch
    return msgspec.structs.replace(spec.batch, per_gpu_min=fits.per_gpu_min, per_gpu_max=fits.per_gpu_max)


def _rounded(work: FloatArray, rates: Rates, unit_s: float, change_s: float) -> tuple[FloatArray, Rates]:
    """Work and rates where ends of epochs are rounded to ``unit_s``: each may come half a unit early.

    An epoch spent on one placement then takes work / rate - unit / 2 at least: a higher rate. In one with a change inside,
    the change's time without progress on the new GPUs makes up for it, if that is no shorter than a unit. An epoch
    that is rounded up and stopped before its end has got on beyond it, at the old rate, which counts for the next: the
    change makes up for that as well where it is long enough, elsewhere the better of both rates is taken. Where
    changes are shorter than a unit, the most that a unit can bring is taken off the work.
    """
    every = np.array(list(rates.values()))
    if change_s < unit_s:
        return np.maximum(work - unit_s * every.max(axis=0), 0.0), rates
    before = np.column_stack([np.zeros(len(every)), every[:, :-1]])
    short = 0.5 * unit_s * before.max(axis=0) > (change_s - unit_s) * every.min(axis=0)
    best = np.where(short, np.maximum(every, before), every)
    sooner = work / np.maximum(work / best - 0.5 * unit_s, 1e-6 * unit_s)
    return work, dict(zip(rates, sooner, strict=True))


def _timed(job: str, spec: JobSpec, types: Sequence[str]) -> tuple[FloatArray, Rates]:
    if spec.duration_s is None:
        raise InputError(f"job {job!r} has neither a profile nor a duration, so its length is unknown")
    gpus = _sizes(spec)[0] * spec.gpus_per_replica
    return np.array([max(spec.duration_s, _NEXT_TO_NOTHING)]), {(name, gpus): np.ones(1) for name in types}


def _served(spec: JobSpec, types: Sequence[str]) -> tuple[FloatArray, Rates]:
    server = next(role for role in spec.roles if role.name == SERVER)
    batch, rates = spec.requested_batch or 0, Rates()
    for name in types:
        truth = parameter_server_truth(
            spec.profile, "t4" if name in ANY_GPU else name, asynchronous=spec.sync == "ps-async"
        )
        for workers in _sizes(spec):
            for servers in range(max(server.min, 1), max(server.max, 1) + 1):
                gpus = workers * spec.gpus_per_replica + servers * server.demand.gpus
                # on one node nothing goes through the network
                rate = np.array([truth.steps_per_s([workers], [servers], batch) * batch])
                rates[name, gpus] = np.maximum(rate, rates.get((name, gpus), 0.0))
    return np.array([(spec.epochs or 0.0) * (spec.data_size or 0)]), rates


def _on_any(rates: Rates) -> Rates:
    """For a job that may mix types: the best type's rate on GPUs of each, which costs no more than any mix."""
    best: dict[int, FloatArray] = {}
    for (_, gpus), rate in rates.items():
        best[gpus] = np.maximum(rate, best.get(gpus, rate))
    names = dict.fromkeys(name for name, _ in rates)
    return {(name, gpus): rate for name in names for gpus, rate in best.items()}


#: All placements are tried up to this number of nodes.
_ALL_PLACEMENTS = 4


def best_rates(
    truth: Truth,
    limits: Batch,
    gpu_type: str,
    replicas: int,
    room: Sequence[int],
    given: Iterable[int],
) -> npt.NDArray[np.float64]:
    """Returns an upper bound on the progress per second in every epoch.

    Args:
        truth: Ground truth of the job's profile.
        limits: Limits of its batch size.
        gpu_type: Type of its GPUs.
        replicas: Number of replicas.
        room: For each node, how many replicas fit.
        given: Batch sizes to consider besides those that an agent may choose.
    """
    splits = sorted({split_batch(total, replicas, limits) for total in _totals(limits, replicas, given)})
    update_s = dict.fromkeys(splits, math.inf)
    for shape in shapes(replicas, room):
        for atomic, accumulation in splits:
            step_s, sync_s = truth.step(shape, atomic, gpu_type)
            spent_s = step_s + accumulation * (step_s - sync_s)
            if spent_s < update_s[atomic, accumulation]:
                update_s[atomic, accumulation] = spent_s
    quickest: dict[int, float] = {}
    for (atomic, accumulation), spent_s in update_s.items():
        total = replicas * atomic * (accumulation + 1)
        quickest[total] = min(spent_s, quickest.get(total, math.inf))
    return np.array(
        [
            max(
                gain(*truth.gradients(total, epoch), total / limits.initial) / spent_s
                for total, spent_s in quickest.items()
            )
            for epoch in range(truth.epochs)
        ]
    )


def _totals(limits: Batch, replicas: int, given: Iterable[int]) -> Iterator[int]:
    """Total batch sizes: the given ones, and where they are chosen all candidates, rounded either way."""
    yield from given
    if limits.mode == "fixed":
        return
    least = max(limits.initial, limits.per_gpu_min * replicas)
    for total in np.geomspace(least, max(least, limits.max), CANDIDATES).tolist():
        yield max(math.floor(total), least)
        yield max(math.ceil(total), least)


def shapes(replicas: int, room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the replicas per node of every kind of placement that fits ``room``."""
    largest = sorted(room, reverse=True)
    for nodes in range(1, min(replicas, len(largest)) + 1):
        if sum(largest[:nodes]) < replicas:
            continue
        if nodes <= _ALL_PLACEMENTS:
            yield from _all_shapes(replicas, nodes, largest[0])
            continue
        for fullest in range(-(-replicas // nodes), min(largest[0], replicas - nodes + 1) + 1):
            share, more = divmod(replicas - fullest, nodes - 1)
            yield (fullest, *(share + 1,) * more, *(share,) * (nodes - 1 - more))


def _all_shapes(replicas: int, nodes: int, most: int) -> Iterator[tuple[int, ...]]:
    """One of those that are rotations of each other: the fullest node, or one of them, first."""
    for rest in product(range(1, most + 1), repeat=nodes - 1):
        first = replicas - sum(rest)
        if max(rest, default=1) <= first <= most:
            yield (first, *rest)
