"""Jobs of the real simulator, followed as a controller follows them.

Noise, stragglers, 30 s per change. The time of a job is its time of running: a preempted job's clock stands still.
"""

from __future__ import annotations

import math

from benchmarks.cells import cell, source_hash
from benchmarks.published import CORE, truths, workload
from coadapt.configure import best_batch
from coadapt.model import (
    ActionsIssued,
    Configuration,
    JobFinished,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    Record,
    ResizeJob,
    parse_cluster,
)
from coadapt.model.events import encode
from coadapt.policies._base import Policy
from coadapt.prediction.remaining import adaptive_run, eta_estimate, past_jobs
from coadapt.scheduler import SchedulerState
from coadapt.simulation.engine.training_model import TrainingOptions
from coadapt.simulation.generate import generate
from coadapt.simulation.run import Setting, simulate
from coadapt.store import MemoryLog

SHARES = (0.10, 0.25, 0.50, 0.75, 0.90)
#: (share of the work done, predicted seconds, true seconds, interval holds the truth)
Score = tuple[float, float, float, bool]
INTERVAL_S, REPORT_S = 60.0, 30.0
#: What the simulated runs depend on; how they are predicted is computed anew.
SIMULATED = (
    *(each for each in CORE if not each.startswith("predict")),
    "policies/_ranked.py",
    "policies/pollux/genetic_search.py",
    "policies/pollux/policy.py",
    "policies/tiresias.py",
    "prediction/step_time/*.py",
    "prediction/gradient_noise.py",
)


# -- a run, and its clocks -------------------------------------------------------------------------------


def jobs_of(name: str, policy: Policy) -> list[tuple[float, str, JobSpec]]:
    """Submissions of a published workload, or of one generated from the seed in its name."""
    kind, _, seed = name.partition("-")
    if kind == "generated":
        return [(at, spec.name, spec) for at, spec in generate(int(seed), profiles=truths())]
    return workload(name, chooses_size=policy.chooses_size)


def setting() -> Setting:
    """How true the simulated world is."""
    training = TrainingOptions(report_s=REPORT_S, noise=0.05, straggler_chance=0.05)
    return Setting(interval_s=INTERVAL_S, training=training)


def recorded(policy: Policy, name: str) -> list[str]:
    """The log of a simulated workload, one line per record; saved."""

    def run() -> dict[str, list[str]]:
        lines: list[str] = []
        simulate(
            jobs_of(name, policy),
            parse_cluster("16x4"),
            policy,
            MemoryLog(keep=False),
            truths=truths(),
            setting=setting(),
            on_record=lambda record: lines.append(encode(record).decode()),
        )
        return {"log": lines}

    arguments = {"policy": type(policy).__name__.removesuffix("Policy"), "workload": name}
    log: list[str] = cell("eta-log", arguments, source_hash(SIMULATED), run)["log"]
    return log


def total_of(spec: JobSpec) -> float:
    """Work of a job from its beginning to its end: known to the controller, for it was declared."""
    truth = truths()[spec.profile]
    return truth.epoch_marks()[-1] * truth.limits("").initial


class Clocks:
    """Time of running of every job, by the events a controller sees; it stands still while a job holds nothing."""

    def __init__(self) -> None:
        self.ended: dict[str, float] = {}
        self._ran: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def of(self, job: str, at: float) -> float:
        """Seconds of running until ``at``."""
        return self._ran.get(job, 0.0) + (at - self._since[job] if job in self._since else 0.0)

    def take(self, record: Record) -> None:
        """One more record."""
        event, at = record.event, record.at
        if isinstance(event, JobStarted):
            self._since[event.job] = at
        elif isinstance(event, JobStopped):
            self._ran[event.job] = self.of(event.job, at)
            self._since.pop(event.job, None)
        elif isinstance(event, JobFinished):
            self.ended[event.job] = self.of(event.job, at)


# -- what a controller says ------------------------------------------------------------------------------


class Controller:
    """Follows a log and tells ETAs as a controller would, by what it knows at that moment."""

    def __init__(self, policy: Policy, *, remembers: bool = True) -> None:
        self.policy, self.remembers = policy, remembers
        self.state, self.clocks, self.pool = SchedulerState(), Clocks(), past_jobs.Pool()
        self.paces: dict[str, eta_estimate.Pace] = {}
        self.runs: dict[str, adaptive_run.AdaptiveRun] = {}
        #: By job: from which second of running on it had how many (nodes, replicas); (0, 0) while it changes.
        self.places: dict[str, list[tuple[float, int, int]]] = {}

    def spec(self, job: str) -> JobSpec:
        """A job's specification."""
        return self.state.jobs[job].spec

    def take(self, record: Record) -> None:
        """One more record."""
        self.state.apply(record)
        self.clocks.take(record)
        event, at = record.event, record.at
        if isinstance(event, JobSubmitted):
            assert event.spec.batch is not None
            self.paces[event.job], self.places[event.job] = eta_estimate.START, []
            self.runs[event.job] = adaptive_run.start(event.spec.batch.initial)
        elif isinstance(event, JobStarted | JobResized):
            self._resumed(event.job, self.clocks.of(event.job, at))
        elif isinstance(event, ActionsIssued):
            for action in event.actions:
                if isinstance(action, ResizeJob):
                    self.places[action.job].append((self.clocks.of(action.job, at), 0, 0))
        elif isinstance(event, Measured) and event.measurement.work is not None:
            m, ran_s = event.measurement, self.clocks.of(event.job, at)
            placed = f"{m.config.nodes} {m.config.replicas}"
            self.runs[event.job] = adaptive_run.observe(self.runs[event.job], ran_s, m)
            self.paces[event.job] = eta_estimate.observe(
                self.paces[event.job], ran_s, event.measurement.work, placed
            )
        elif isinstance(event, JobFinished) and self.remembers:
            self.pool = past_jobs.add(self.pool, self._past(event.job, at))

    def _resumed(self, job: str, ran_s: float) -> None:
        self.runs[job] = adaptive_run.resume(self.runs[job], ran_s)
        shape = self.state.jobs[job].held.shape
        self.places[job].append((ran_s, len(shape), sum(shape)))
        if self.paces[job].at is not None:
            self.paces[job] = eta_estimate.resume(self.paces[job], ran_s)

    def _past(self, job: str, at: float) -> past_jobs.PastJob:
        run, spec = self.runs[job], self.spec(job)
        total = total_of(spec)
        course = tuple(
            (min(math.exp(work) / total, 1.0), math.exp(min(phi, 40.0))) for work, phi, _ in run.noise.points
        )
        return past_jobs.past_job(spec, finished_at=at, table=run.table, total_work=total, noise=course)

    def expected(self, job: str) -> adaptive_run.Expected | None:
        """What is expected of a job at present."""
        run, spec = self.runs[job], self.spec(job)
        assert spec.batch is not None
        return adaptive_run.expect(
            run,
            limits=spec.batch,
            total=total_of(spec),
            prior=past_jobs.prior_for(self.pool, spec),
            gpu_type=run.table.rows[-1].gpu_type if run.table.rows else "gpu",
        )

    def chooser(self, expected: adaptive_run.Expected, config: Configuration) -> adaptive_run.Choose | None:
        """The agent's choice of batch size on a number of GPUs; None where it has none."""
        limits = expected.limits
        if limits.mode == "fixed" or not self.policy.adapts_batch:
            return None

        def chosen(phi: float) -> tuple[int, int]:
            gradients = (1.0, phi / limits.initial)
            best = best_batch.best_batch(expected.params, gradients, limits, config.nodes, config.replicas)
            return best.atomic_batch, best.accumulation

        return chosen
