"""A shared cluster in virtual time for ``benchmarks.trust``: users, jobs that tell the truth or lie, and a meter.

The scheduler, its policy and the simulated executor are the real ones. A job is described twice: the specification that its
user submits, and the training that it really does. The meter sits in front of the policy and notes at every decision how much
GPU time each user has had and how many GPUs he is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from coadapt.model import Cluster, ControllerStarted, JobSpec, JobSubmitted, Measurement, NodeJoined
from coadapt.model.snapshot import ENDED, Snapshot
from coadapt.placement.tidy import TidyPlacer
from coadapt.policies import Curves, Memory, Policy, Proposal, Rng
from coadapt.policies._base import gpus_needed
from coadapt.runtime import Loop
from coadapt.scheduler import FittedCurves, Scheduler, SchedulerState
from coadapt.simulation.engine.simulated_executor import OUTSIDE, SimulatedExecutor, Timeline, constant
from coadapt.simulation.engine.training_model import (
    ProfiledTraining,
    TimedTraining,
    Training,
    TrainingOptions,
)
from coadapt.simulation.truth.profiles import shipped_profiles
from coadapt.store import MemoryLog

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submission. ``truth``: the specification that it really behaves by; None: it told the truth."""

    at: float
    name: str
    spec: JobSpec
    truth: JobSpec | None = None
    reports: bool = True
    #: Seconds after which its user cancels it and submits the rest of it again under another name.
    resubmitted_s: float | None = None


@dataclass(slots=True)
class Sample:
    """What was so at one decision: GPU-seconds had so far, GPUs due from now on, and jobs that are there, by user."""

    at: float
    had: dict[str, float]
    due: dict[str, float]


class Silent:
    """A training whose reports nobody sees."""

    def __init__(self, inner: ProfiledTraining) -> None:
        self._inner = inner

    def advance(self, at: float) -> Measurement | None:
        """Advances the job; its report is thrown away."""
        self._inner.advance(at)
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


#: GPUs due to each user, at a decision.
DueOf = Callable[[Snapshot, Curves], Mapping[str, float]]


class Meter:
    """Passes everything to a policy, and takes a sample at every decision."""

    def __init__(self, policy: Policy, due_of: DueOf) -> None:
        self.policy, self.due_of, self.placer = policy, due_of, policy.placer
        self.adapts_batch, self.chooses_size = policy.adapts_batch, policy.chooses_size
        self.knows_quotas = getattr(policy, "knows_quotas", False)
        self.samples: list[Sample] = []
        self._had: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """See ``Policy``."""
        proposal = self.policy.decide(snapshot, curves, memory, rng)
        self._count(snapshot)
        self.samples.append(Sample(snapshot.now, dict(self._had), dict(self.due_of(snapshot, curves))))
        return proposal

    def _count(self, snapshot: Snapshot) -> None:
        """Adds what jobs had since they were last looked at; those that have ended are looked at once more."""
        state: Any = snapshot
        for name in {**self._last, **snapshot.active}:
            job = state.jobs[name]
            had = job.attained_gpu_s(snapshot.now)
            self._had[job.spec.user] = self._had.get(job.spec.user, 0.0) + had - self._last.get(name, 0.0)
            self._last[name] = had
            if job.phase in ENDED:
                del self._last[name]


def by_weight(weights: Mapping[str, float] | None = None) -> DueOf:
    """Shares by weight, water-filled, of all GPUs: nobody is due more than his jobs could ever take."""

    def due_of(snapshot: Snapshot, curves: Curves) -> dict[str, float]:
        asks: dict[str, float] = {}
        for job in snapshot:
            most = (
                job.spec.worker.max * job.spec.gpus_per_replica if job.spec.elastic else gpus_needed(job.spec)
            )
            asks[job.spec.user] = asks.get(job.spec.user, 0.0) + most
        due: dict[str, float] = {}
        left, open_ = float(snapshot.gpus), dict(asks)
        while open_:
            each = left / sum((weights or {}).get(user, 1.0) for user in open_)
            full = {u: ask for u, ask in open_.items() if ask <= each * (weights or {}).get(u, 1.0)}
            if not full:
                due |= {u: each * (weights or {}).get(u, 1.0) for u in open_}
                break
            due |= full
            left -= sum(full.values())
            open_ = {u: ask for u, ask in open_.items() if u not in full}
        return due

    return due_of


@dataclass(slots=True)
class Outcome:
    """A finished run."""

    state: SchedulerState
    samples: list[Sample]
    reasons: dict[str, str] = field(default_factory=dict)

    def share(self, user: str, start_s: float, end_s: float) -> float:
        """Share of the GPU time of all users between two moments."""
        had = {u: self._had(u, end_s) - self._had(u, start_s) for u in self.samples[-1].had}
        return had[user] / max(sum(had.values()), 1e-9)

    def gpu_s(self, user: str, start_s: float, end_s: float) -> float:
        """GPU-seconds between two moments."""
        return self._had(user, end_s) - self._had(user, start_s)

    def _had(self, user: str, at: float) -> float:
        times = [sample.at for sample in self.samples]
        return float(np.interp(at, times, [sample.had.get(user, 0.0) for sample in self.samples]))

    def worst_hour(self, user: str, window_s: float = HOUR) -> float | None:
        """Least GPU time over due, over all windows in which the user always had something to run; None: there is none."""
        times = np.array([sample.at for sample in self.samples])
        had = np.array([sample.had.get(user, 0.0) for sample in self.samples])
        due = np.array([sample.due.get(user, 0.0) for sample in self.samples])
        owed = np.concatenate([[0.0], np.cumsum(due[:-1] * np.diff(times))])
        idle = np.concatenate([[0.0], np.cumsum((due[:-1] <= 0) * np.diff(times))])
        starts = times[times <= times[-1] - window_s]
        if not starts.size:
            return None
        ends = starts + window_s
        got = np.interp(ends, times, had) - np.interp(starts, times, had)
        asked = np.interp(ends, times, owed) - np.interp(starts, times, owed)
        away = np.interp(ends, times, idle) - np.interp(starts, times, idle)
        whole = (away <= 1e-6) & (asked > 0)
        return float((got[whole] / asked[whole]).min()) if whole.any() else None

    def worst(self, window_s: float = HOUR) -> float:
        """The worst hour of any user; 1 if nobody was there for an hour."""
        found = [self.worst_hour(user, window_s) for user in self.samples[-1].had]
        return min((each for each in found if each is not None), default=1.0)


def play(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    until_s: float,
    due_of: DueOf | None = None,
    change_s: float = 10.0,
    interval_s: float | None = None,
    more: Callable[[float], Job | None] | None = None,
) -> Outcome:
    """Runs jobs under a policy until a moment.

    Args:
        jobs: submissions.
        cluster: the nodes.
        policy: decides.
        until_s: virtual end.
        due_of: GPUs due to each user; None: equal weights.
        change_s: seconds that a start or a resize takes.
        interval_s: round mode; None: decisions on events.
        more: called with the time of each submission it made before; returns the next job of an endless stream.
    """
    meter = Meter(policy, due_of or by_weight())
    scheduler = Scheduler(
        meter, TidyPlacer(), curves=FittedCurves(), interval_s=interval_s, min_interval_s=1.0
    )
    timeline, known = Timeline(0.0), {job.name: job for job in jobs}
    progress: dict[str, ProfiledTraining] = {}
    options = TrainingOptions(report_s=30.0)

    def train(name: str, spec: JobSpec) -> Training:
        job = known[name]
        real = job.truth or job.spec
        if not real.profile:
            return TimedTraining(
                real.duration_s or 0.0, done_s=scheduler.state.jobs[name].ran_s(timeline.now())
            )
        made = ProfiledTraining(real, shipped_profiles()[real.profile], options)
        first = name.split("+")[0]
        if first in progress:  # submitted again: it goes on from its checkpoint
            before = progress[first]
            made.progress, made.epoch = before.progress, before.epoch
        progress[first] = made
        return made if job.reports else Silent(made)

    executor = SimulatedExecutor(
        timeline=timeline,
        spec_of=lambda name: scheduler.state.jobs[name].spec,
        train=train,
        change_cost=constant(change_s),
    )
    loop = Loop(scheduler, executor, timeline, MemoryLog(keep=False))
    loop.take(0.0, ControllerStarted(version="trust", policy=type(policy).__name__, seed=0))
    for node in cluster.nodes:
        loop.take(0.0, NodeJoined(node=node))
    for job in jobs:
        _submit(timeline, known, job, until_s)
    following = more(0.0) if more is not None else None
    while following is not None and following.at < until_s:
        known[following.name] = following
        timeline.at(following.at, JobSubmitted(job=following.name, spec=following.spec), OUTSIDE)
        following = more(following.at) if more is not None else None
    while scheduler.state.now < until_s and loop.step():
        pass
    words = {job.id: job.reason.text for job in scheduler.state.jobs.values() if job.reason is not None}
    return Outcome(scheduler.state, meter.samples, words)


def _submit(timeline: Timeline, known: dict[str, Job], job: Job, until_s: float) -> None:
    """Submits a job, and again and again where its user does so."""
    from coadapt.model.events import CancelRequested

    timeline.at(job.at, JobSubmitted(job=job.name, spec=job.spec), OUTSIDE)
    at, count, name = job.at, 0, job.name
    while job.resubmitted_s is not None and at + job.resubmitted_s < until_s:
        at, count = at + job.resubmitted_s, count + 1
        timeline.at(at, CancelRequested(job=name), OUTSIDE)
        name = f"{job.name}+{count}"
        spec = msgspec.structs.replace(job.spec, name=name)
        known[name] = Job(at=at, name=name, spec=spec, truth=job.truth, reports=job.reports)
        timeline.at(at, JobSubmitted(job=name, spec=spec), OUTSIDE)
