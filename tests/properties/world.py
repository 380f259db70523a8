"""Random workloads on random clusters with random faults, and the very loop that runs a real cluster.

The executor is the simulated one, which here can also lose a job's processes: by themselves (``Crash``) or by
somebody else's hand (``Snatch``); or they go on and do nothing (``Hang``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from hypothesis import settings
from hypothesis import strategies as st

from coadapt.model import (
    AnyEvent,
    CancelRequested,
    Cluster,
    ControllerStarted,
    JobFinished,
    JobHung,
    JobSpec,
    JobStopped,
    JobSubmitted,
    Node,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    PauseRequested,
    QuotaSet,
    Record,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
)
from coadapt.placement.most_free import MostFreePlacer
from coadapt.placement.packed import PackedPlacer
from coadapt.policies._base import Policy, as_requested, gpus_needed
from coadapt.runtime import Loop
from coadapt.scheduler import Scheduler, SchedulerState
from coadapt.simulation.engine.interference import FlatInterference
from coadapt.simulation.engine.simulated_executor import OUTSIDE, SimulatedExecutor, Timeline, constant
from coadapt.simulation.engine.training_model import (
    ProfiledTraining,
    TimedTraining,
    Training,
    TrainingOptions,
)
from coadapt.store import MemoryLog
from tests.builders import PLACERS, SteadyTruth, a_job, a_trained_job, records_of

#: $COADAPT_EXAMPLES random worlds per policy and property: more of them, and other ones each time.
EXAMPLES = int(os.environ.get("COADAPT_EXAMPLES", "0"))
#: When everything that was broken works again.
REPAIRED_S = 400.0
USERS = ("ann", "bob")


def budget(examples: int) -> settings:
    """How many examples a property gets."""
    return settings(max_examples=EXAMPLES or examples, deadline=None, derandomize=not EXAMPLES)


@dataclass(frozen=True)
class Crash:
    """The job's processes fail."""

    job: str


@dataclass(frozen=True)
class Snatch:
    """The job's processes are taken away by somebody else."""

    job: str


@dataclass(frozen=True)
class Hang:
    """Somebody notices that the job's processes do nothing."""

    job: str


Fault = Crash | Snatch | Hang
Happening = AnyEvent | Fault


@dataclass(frozen=True)
class World:
    """Everything that happens from outside."""

    cluster: Cluster
    submissions: tuple[tuple[float, str, JobSpec], ...]
    happenings: tuple[tuple[float, Happening], ...] = ()
    interval_s: float | None = None
    min_interval_s: float = 0.0
    change_s: float = 5.0
    stop_s: float = 0.0
    interference: float = 0.0
    seed: int = 0

    def scheduler(self, policy: Policy, state: SchedulerState | None = None) -> Scheduler:
        return Scheduler(
            policy,
            PLACERS[policy.placer](),
            interval_s=self.interval_s,
            min_interval_s=self.min_interval_s,
            seed=self.seed,
            state=state,
        )


class FaultyExecutor(SimulatedExecutor):
    """A simulated executor that can be made to fail."""

    def happen(self, what: Fault) -> None:
        attempt = self._attempts.get(what.job)
        if attempt is None:
            return
        key = {"job": attempt.job, "attempt": attempt.attempt}
        if isinstance(what, Hang):
            self.timeline.deliver(JobHung(**key, silent_s=60.0, expected_s=1.5))
            return
        self._halt(attempt, lost=True)
        self._release(attempt)
        if isinstance(what, Crash):
            self.timeline.deliver(JobFinished(**key, outcome="failed", exit_code=1))
        else:
            self.timeline.deliver(JobStopped(**key, cause="preempted"))


def live(
    world: World, policy: Policy, *, on_record: Callable[[Record], None] | None = None
) -> tuple[list[Record], SchedulerState]:
    """Runs the world to its end."""
    scheduler, log = world.scheduler(policy), MemoryLog()
    state, timeline = scheduler.state, Timeline()

    def train(job: str, spec: JobSpec) -> Training:
        if spec.profile:
            return ProfiledTraining(spec, SteadyTruth(), TrainingOptions())
        return TimedTraining(spec.duration_s or 0.0)

    executor = FaultyExecutor(
        timeline=timeline,
        spec_of=lambda job: state.jobs[job].spec,
        train=train,
        change_cost=constant(world.change_s),
        stop_s=world.stop_s,
        interference=FlatInterference(world.interference),
    )
    for at, job, spec in world.submissions:
        timeline.at(at, JobSubmitted(job=job, spec=spec), OUTSIDE)
    for at, what in world.happenings:
        if isinstance(what, Fault):
            timeline.at(at, lambda what=what: executor.happen(what), OUTSIDE)  # type: ignore[misc]
        else:
            timeline.at(at, what, OUTSIDE)
    loop = Loop(scheduler, executor, timeline, log, on_record=on_record)
    loop.take(0.0, ControllerStarted(version="test", seed=world.seed))
    for node in world.cluster.nodes:
        loop.take(0.0, NodeJoined(node=node))
    for _ in range(20_000):
        if not loop.step() or (timeline.empty() and not state.active and not len(state.retries)):
            break
    else:
        raise AssertionError("the workload does not come to an end")
    return list(log.read()), state


# -- strategies --------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn, *, gpus_only: bool) -> Cluster:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    limited = not gpus_only and draw(st.booleans())
    types = ("gpu",) if gpus_only else ("gpu", "gpu", "gpu", "a100")
    return Cluster(
        nodes=tuple(
            Node(
                name=f"n{i}",
                gpus=gpus,
                gpu_type=draw(st.sampled_from(types)),
                cpus=float(draw(st.integers(2, 12))) if limited else None,
                memory_bytes=float(draw(st.integers(4, 16))) if limited else None,
            )
            for i, gpus in enumerate(sizes)
        )
    )


@st.composite
def specs(draw: st.DrawFn, earlier: Sequence[str], *, gpus_only: bool) -> JobSpec:
    fields = {
        "priority": draw(st.integers(0, 2)),
        "user": draw(st.sampled_from(USERS)),
        "preemptible": draw(st.integers(0, 3)) > 0,
        "retries": draw(st.integers(0, 4)),
        "time_limit_s": draw(st.sampled_from([None, None, None, 0.0, 20.0, 70.0])),
        "after": tuple(draw(st.lists(st.sampled_from(earlier), unique=True, max_size=2))) if earlier else (),
    }
    kind = draw(st.sampled_from(["rigid", "rigid", "elastic", "servers"]))
    if kind == "elastic":
        return a_trained_job(draw(st.integers(1, 2)), at_most=draw(st.integers(2, 6)), **fields)
    if not gpus_only:
        fields["cpus"] = draw(st.sampled_from([0.0, 0.0, 1.0, 2.5]))
        fields["memory_bytes"] = draw(st.sampled_from([0.0, 0.0, 3.0]))
        fields["servers"] = draw(st.integers(1, 2)) if kind == "servers" else 0
    duration_s = float(draw(st.integers(1, 90)))
    return a_job(
        draw(st.integers(1, 5)), duration_s=duration_s, per_replica=draw(st.integers(1, 2)), **fields
    )


def fits_when_empty(cluster: Cluster, spec: JobSpec) -> bool:
    """Whether the job could ever run: a job that no cluster bears is refused at the door, not here.

    Policies that choose sizes and types count GPUs; where the placer finds no place for what they counted (CPU, memory,
    GPUs in pieces) they do not try another type. So the job must fit every type that has GPUs enough.
    """
    state = SchedulerState()
    job = JobSubmitted(job="j", spec=msgspec.structs.replace(spec, after=()))
    for record in records_of(*((0.0, NodeJoined(node=node)) for node in cluster.nodes), (0.0, job)):
        state.apply(record)
    types = [kind for kind, gpus in cluster.gpus_by_type().items() if gpus >= gpus_needed(spec)]
    placers = (PackedPlacer(), MostFreePlacer())
    return bool(types) and all(
        placer.place(state, {"j": as_requested(spec, kind)}) for kind in types for placer in placers
    )


@st.composite
def worlds(draw: st.DrawFn, *, gpus_only: bool = False, faults: bool = True) -> World:
    cluster = draw(clusters(gpus_only=gpus_only))
    submissions: list[tuple[float, str, JobSpec]] = []
    for i in range(draw(st.integers(2, 9))):
        spec = draw(specs([name for _, name, _ in submissions], gpus_only=gpus_only))
        if fits_when_empty(cluster, spec):
            submissions.append((float(draw(st.integers(0, 60))), f"j{i}", spec))
    happenings = draw(st.lists(happening(cluster, submissions), min_size=2, max_size=10)) if faults else []
    return World(
        cluster=cluster,
        submissions=tuple(submissions),
        happenings=(
            *happenings,
            *((REPAIRED_S, NodeJoined(node=node)) for node in cluster.nodes),
            *((REPAIRED_S, NodeOpened(node=node.name)) for node in cluster.nodes),
            *((REPAIRED_S, QuotaSet(group=user)) for user in USERS),
            *((REPAIRED_S, ResumeRequested(job=job)) for _, job, _ in submissions),
        ),
        interval_s=draw(st.sampled_from([None, None, 20.0])),
        min_interval_s=draw(st.sampled_from([0.0, 0.0, 10.0])),
        change_s=draw(st.sampled_from([0.0, 5.0, 30.0])),
        stop_s=draw(st.sampled_from([0.0, 5.0])),
        interference=draw(st.sampled_from([0.0, 0.5])),
        seed=draw(st.integers(0, 3)),
    )


@st.composite
def happening(
    draw: st.DrawFn, cluster: Cluster, submissions: Sequence[tuple[float, str, JobSpec]]
) -> tuple[float, Happening]:
    at = float(draw(st.integers(0, 200)))
    node = draw(st.sampled_from(cluster.nodes))
    kinds = ["lost", "joined", "drained", "opened", "controller", "quota"]
    if submissions:
        kinds += ["cancel", "spec", "crash", "snatch", "hang", "pause", "resume", "retry", "crash", "pause"]
    kind = draw(st.sampled_from(kinds))
    if kind == "lost":
        return at, NodeLost(node=node.name)
    if kind == "joined":
        return at, NodeJoined(node=node)
    if kind == "drained":
        return at, NodeDrained(node=node.name)
    if kind == "opened":
        return at, NodeOpened(node=node.name)
    if kind == "quota":
        limit = draw(st.sampled_from([None, 0, 1, 2, 4]))
        return at, QuotaSet(group=draw(st.sampled_from(USERS)), gpus=limit)
    if kind == "controller":
        return at, ControllerStarted(version="test")
    _, job, spec = draw(st.sampled_from(submissions))
    asked = {"cancel": CancelRequested, "pause": PauseRequested, "resume": ResumeRequested}
    asked |= {"retry": RetryRequested}
    if kind in asked:
        return at, asked[kind](job=job)
    if kind == "spec":
        changed = msgspec.structs.replace(
            spec,
            priority=draw(st.integers(0, 5)),
            retries=draw(st.integers(0, 3)),
            time_limit_s=draw(st.sampled_from([None, 15.0, 60.0])),
        )
        return at, SpecChanged(job=job, spec=changed)
    faults: dict[str, Fault] = {"crash": Crash(job), "snatch": Snatch(job), "hang": Hang(job)}
    return at, faults[kind]
