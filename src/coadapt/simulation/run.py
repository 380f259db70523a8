"""One simulation: runs a workload under a policy on a cluster, through the same loop that runs a real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from coadapt.errors import InputError
from coadapt.model import (
    AnyEvent,
    Cluster,
    ControllerStarted,
    JobSpec,
    JobSubmitted,
    NodeJoined,
    PoolLoaded,
    Record,
    Woke,
)
from coadapt.placement._base import Placer
from coadapt.placement.packed import PackedPlacer
from coadapt.policies._base import Policy, traits_of
from coadapt.prediction.remaining.past_jobs import Pool
from coadapt.runtime import EventLog, Loop
from coadapt.scheduler import CurveSource, FittedCurves, Scheduler, SchedulerState
from coadapt.simulation.engine.gpu_sharing import GpuSharing
from coadapt.simulation.engine.interference import FlatInterference, Interference
from coadapt.simulation.engine.simulated_executor import (
    OUTSIDE,
    ChangeCost,
    SimulatedExecutor,
    Timeline,
    constant,
)
from coadapt.simulation.engine.stepped_training import SteppedTraining
from coadapt.simulation.engine.training_model import (
    ProfiledTraining,
    ServedTraining,
    TimedTraining,
    Training,
    TrainingOptions,
)
from coadapt.simulation.truth._base import ANY_GPU, Truth
from coadapt.simulation.truth.parameter_server_speed import ParameterServerTruth, parameter_server_truth
from coadapt.simulation.truth.rate_table import RateTruth

#: Steps with nothing else to come after which the rest is given up as stuck; more while a policy waits.
_GIVE_UP, _GIVE_UP_WAITING = 100, 100_000
#: Decisions in a row without the end of any job that no sensible simulation needs.
_NO_END = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything about the simulated world that is not workload, cluster or policy."""

    interval_s: float | None = None
    min_interval_s: float = 0.0
    change_cost: ChangeCost = field(default_factory=lambda: constant(30.0))
    interference: Interference = field(default_factory=FlatInterference)
    #: Seconds from the order to stop until the last process is gone.
    stop_s: float = 0.0
    training: TrainingOptions = field(default_factory=TrainingOptions)
    #: Jobs with measured rates train whole steps in rounds of so many seconds, and the next round begins when the last of
    #: them is through, as in the simulator published with Gavel; None: without rounds.
    round_s: float | None = None
    sharing: GpuSharing = field(default_factory=GpuSharing)
    seed: int = 0
    #: Faults and other events from outside: (time, event).
    events: Sequence[tuple[float, AnyEvent]] = ()


class TimedScheduler(Scheduler):
    """Adds up the CPU time of decisions: curves, policy, placer and checks together."""

    decision_cpu_s = 0.0

    def handle(self, record: Record) -> list[AnyEvent]:
        """Handles a record as ``Scheduler`` does, and measures the CPU time of decisions."""
        if not isinstance(record.event, Woke):
            return super().handle(record)
        began = time.process_time()
        answer = super().handle(record)
        self.decision_cpu_s += time.process_time() - began
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The final state of a simulation, and the CPU time it took."""

    state: SchedulerState
    cpu_s: float
    decision_cpu_s: float

    @property
    def decision_ms(self) -> float:
        """Mean CPU time of a decision, in milliseconds."""
        return 1000 * self.decision_cpu_s / max(self.state.decisions, 1)


def simulate(
    submissions: Iterable[tuple[float, str, JobSpec]],
    cluster: Cluster,
    policy: Policy,
    log: EventLog,
    *,
    placer: Placer | None = None,
    truths: Mapping[str, Truth] | None = None,
    curves: CurveSource | None = None,
    setting: Setting | None = None,
    start: SchedulerState | None = None,
    pool: Pool | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> Simulation:
    """Runs a workload to its end and returns the final state.

    Args:
        submissions: (submission time, job, specification) of every job.
        cluster: Nodes at the beginning.
        policy: Policy that decides.
        log: Event log that receives every record.
        placer: Chooses nodes for allocations; None: packed.
        truths: Ground truth by profile.
        curves: Source of the policy's curves; None: fitted from measurements.
        setting: The simulated world; None: the defaults of ``Setting``.
        start: Continue from this state (its cluster, jobs and time) instead of from an empty one. The state is changed:
            whoever needs it afterwards folds the log again.
        pool: Past jobs that are known from the start.
        on_record: Called with every record of the log.
    """
    setting, truths = setting or Setting(), truths or {}
    model = traits_of(policy).step_time_model
    if setting.training.step_time_model is None:
        setting = replace(setting, training=replace(setting.training, step_time_model=model))
    began = time.process_time()
    scheduler = TimedScheduler(
        policy,
        placer or PackedPlacer(),
        curves=curves if curves is not None else FittedCurves(step_time_model=model),
        interval_s=setting.interval_s,
        min_interval_s=setting.min_interval_s,
        seed=setting.seed,
        state=start,
    )
    timeline = Timeline(scheduler.state.now)
    executor = SimulatedExecutor(
        timeline=timeline,
        spec_of=lambda job: scheduler.state.jobs[job].spec,
        train=_trainer(scheduler.state, truths, setting),
        change_cost=setting.change_cost,
        interference=setting.interference,
        link_of=lambda node: scheduler.state.all_nodes[node].node.link_bytes_per_s,
        stop_s=setting.stop_s,
        sharing=setting.sharing,
    )
    if start is not None:
        executor.adopt(start)
    for at, job, spec in submissions:
        timeline.at(at, JobSubmitted(job=job, spec=_as_simulated(job, spec, policy, truths)), OUTSIDE)
    for at, event in setting.events:
        timeline.at(at, event, OUTSIDE)
    loop = Loop(scheduler, executor, timeline, log, on_record=on_record)
    loop.take(
        timeline.now(),
        ControllerStarted(version="simulation", policy=type(policy).__name__, seed=setting.seed),
    )
    if pool is not None:
        loop.take(timeline.now(), _loaded(pool, timeline.now()))
    if start is None:
        for node in cluster.nodes:
            loop.take(timeline.now(), NodeJoined(node=node))
    _run(loop, timeline)
    return Simulation(
        state=scheduler.state,
        cpu_s=time.process_time() - began,
        decision_cpu_s=scheduler.decision_cpu_s,
    )


def _loaded(pool: Pool, now: float) -> PoolLoaded:
    """The fact that past jobs are known. They ended by the clock of another log: by ours, all of it before now."""
    late_s = max((job.finished_at for job in pool.jobs), default=now) - now
    if late_s > 0:
        # else a job of this run, which ends early by its clock, would be taken for older than they are
        jobs = tuple(msgspec.structs.replace(job, finished_at=job.finished_at - late_s) for job in pool.jobs)
        pool = msgspec.structs.replace(pool, jobs=jobs)
    return PoolLoaded(pool=msgspec.json.decode(msgspec.json.encode(pool)))


def _run(loop: Loop, timeline: Timeline) -> None:
    """Steps to the end; gives up when decisions go on without anything left that could happen.

    A policy that waits for a set time (a recorded start) is given more time than one that does not.
    """
    state, idle, mark, ended = loop.scheduler.state, 0, 0, 0
    while loop.step():
        waits = state.policy_wake_at is not None and state.policy_wake_at > state.now
        idle = idle + 1 if timeline.empty() else 0
        if idle > (_GIVE_UP_WAITING if waits else _GIVE_UP):
            return
        if state.ended > ended:
            mark, ended = state.decisions, state.ended
        elif state.decisions - mark > _NO_END:
            raise InputError(
                f"no job has ended in {_NO_END:,} decisions, up to second {state.now:.0f}. Jobs may preempt each other before they train: "
                "decide less often (--interval), or change --restart-time or the options of the policy"
            )


def _as_simulated(job: str, spec: JobSpec, policy: Policy, truths: Mapping[str, Truth]) -> JobSpec:
    """Under a policy that does not adapt batch sizes every job keeps the one its user asked for; a limit that did not hold
    when the job was recorded does not hold now."""
    truth = truths.get(spec.profile)
    if truth is not None and spec.epochs is not None and not 1 <= spec.epochs <= truth.epochs:
        raise InputError(
            f"job {job!r} trains {spec.epochs:g} epochs of profile {spec.profile!r}, which has 1 to {truth.epochs}"
        )
    if isinstance(truth, RateTruth) and not traits_of(policy).wants_truth:
        # whoever does not know the rates would give it GPUs on which it cannot run
        spec = msgspec.structs.replace(spec, gpu_types=truth.able_types(spec))
    if _was_not_held_to_its_limit(spec):
        spec = msgspec.structs.replace(spec, time_limit_s=None)
    if spec.batch is None or spec.batch.mode == "fixed" or policy.adapts_batch:
        return spec
    return msgspec.structs.replace(spec, batch=msgspec.structs.replace(spec.batch, mode="fixed"))


def _was_not_held_to_its_limit(spec: JobSpec) -> bool:
    """A trace says that it ran for longer: whoever recorded it asked for a limit and did not enforce it."""
    limit_s, recorded = spec.time_limit_s, spec.recorded
    if limit_s is None or recorded is None or recorded.start_s is None or recorded.end_s is None:
        return False
    return recorded.end_s - recorded.start_s > limit_s


def _trainer(
    state: SchedulerState, truths: Mapping[str, Truth], setting: Setting
) -> Callable[[str, JobSpec], Training]:
    random = setting.training.noise > 0 or setting.training.straggler_chance > 0

    def train(job: str, spec: JobSpec) -> Training:
        known = state.jobs[job]
        if spec.sync != "allreduce":
            return ServedTraining(spec, _served(spec), setting.training, work=known.work or 0.0)
        if spec.profile:
            truth = truths.get(spec.profile)
            if truth is None:
                raise InputError(
                    f"job {job!r} has profile {spec.profile!r}, which is not one of the given profiles"
                )
            if isinstance(truth, RateTruth):
                return SteppedTraining(
                    spec, truth, setting.training, done=known.epoch or 0.0, round_s=setting.round_s
                )
            rng = np.random.default_rng((setting.seed, 1, known.order)) if random else None
            progress = (known.work or 0.0) / truth.limits(truth.gpu_types[0]).initial
            return ProfiledTraining(spec, truth, setting.training, rng, progress=progress)
        if spec.duration_s is None:
            raise InputError(f"job {job!r} has neither a profile nor a duration, so its length is unknown")
        return TimedTraining(
            spec.duration_s, done_s=known.ran_s(state.now) if known.work is None else known.work
        )

    return train


def _served(spec: JobSpec) -> Callable[[str], ParameterServerTruth]:
    """The truth of a job with parameter servers by GPU type; a cluster without types counts as T4."""

    def truth_on(gpu_type: str) -> ParameterServerTruth:
        known = "t4" if gpu_type in ANY_GPU else gpu_type
        return parameter_server_truth(spec.profile, known, asynchronous=spec.sync == "ps-async")

    return truth_on
