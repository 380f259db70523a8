"""Jobs of the real simulator, followed as a controller follows them, and what it would say about their ends.

Noise, stragglers, 30 s per change. The time of a job is its time of running: a preempted job's clock stands still. True is
what happened, resizes to come included. Ways to tell an ETA, each calibrated by the jobs that ended before (``outcomes``):

- pace: ``eta.eta``, by the times of its reports alone;
- kept: ``eta_adaptive`` with steps, gradients and past jobs, its present GPUs kept for ever;
- shared: the same, drifting towards its fair share of the GPUs;
- known: an oracle, which no controller is. As "kept", with the GPUs to come known, change by change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

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
from coadapt.model.events import decode, encode
from coadapt.policies import Policy
from coadapt.predict import adaptive_run, eta_adaptive, history, pace
from coadapt.predict.eta import eta
from coadapt.predict.outcomes import Outcome, calibrated, outcome
from coadapt.scheduler import SchedulerState
from coadapt.simulate.generate import generate
from coadapt.simulate.profiled import TrainingOptions
from coadapt.simulate.run import Setting, simulate
from coadapt.store import MemoryLog

SHARES = (0.10, 0.25, 0.50, 0.75, 0.90)
INTERVAL_S, REPORT_S = 60.0, 30.0
#: What the simulated runs depend on; how they are predicted is computed anew.
SIMULATED = (
    *(each for each in CORE if not each.startswith("predict")),
    "policies/_allocation_space.py",
    "policies/_queues.py",
    "policies/_ranked.py",
    "policies/genetic.py",
    "policies/pollux.py",
    "policies/tiresias.py",
    "predict/step_*.py",
    "predict/efficiency.py",
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
        self.state, self.clocks, self.pool = SchedulerState(), Clocks(), history.Pool()
        self.paces: dict[str, pace.Pace] = {}
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
            self.paces[event.job], self.places[event.job] = pace.START, []
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
            self.paces[event.job] = pace.observe(self.paces[event.job], ran_s, event.measurement.work, placed)
        elif isinstance(event, JobFinished) and self.remembers:
            self.pool = history.add(self.pool, self._past(event.job, at))

    def _resumed(self, job: str, ran_s: float) -> None:
        self.runs[job] = adaptive_run.resume(self.runs[job], ran_s)
        shape = self.state.jobs[job].held.shape
        self.places[job].append((ran_s, len(shape), sum(shape)))
        if self.paces[job].at is not None:
            self.paces[job] = pace.resume(self.paces[job], ran_s)

    def _past(self, job: str, at: float) -> history.PastJob:
        run, spec = self.runs[job], self.spec(job)
        total = total_of(spec)
        course = tuple(
            (min(math.exp(work) / total, 1.0), math.exp(min(phi, 40.0))) for work, phi, _ in run.noise.points
        )
        return history.past_job(spec, finished_at=at, table=run.table, total_work=total, noise=course)

    def expected(self, job: str) -> eta_adaptive.Expected | None:
        """What is expected of a job at present."""
        run, spec = self.runs[job], self.spec(job)
        assert spec.batch is not None
        return eta_adaptive.expect(
            run,
            limits=spec.batch,
            total=total_of(spec),
            prior=history.prior_for(self.pool, spec),
            gpu_type=run.table.rows[-1].gpu_type if run.table.rows else "gpu",
        )

    def chooser(self, expected: eta_adaptive.Expected, config: Configuration) -> eta_adaptive.Choose | None:
        """The agent's choice of batch size on so many GPUs; None where it has none."""
        limits = expected.limits
        if limits.mode == "fixed" or not self.policy.adapts_batch:
            return None

        def chosen(phi: float) -> tuple[int, int]:
            gradients = (1.0, phi / limits.initial)
            best = best_batch.best_batch(expected.params, gradients, limits, config.nodes, config.replicas)
            return best.atomic_batch, best.accumulation

        return chosen


@dataclass(slots=True, kw_only=True)
class Told:
    """What was told of one job at one moment: (seconds, deviation of its logarithm) by way, and what happened."""

    job: str
    share: float
    at: float
    ran_s: float
    ways: dict[str, tuple[float, float]] = field(default_factory=dict)
    real_s: float = 0.0
    ended_at: float = 0.0
    #: Its GPUs changed afterwards.
    resized: bool = False
    #: What the oracle asks: expected then, as it was, and the work done.
    then: tuple[eta_adaptive.Expected, Configuration, float] | None = None


def told(controller: Controller, log: list[str]) -> list[Told]:
    """Everything that is told while a log is followed, when a job has reported more than each of the shares."""
    found: list[Told] = []
    pending: list[Told] = []
    marks: dict[str, list[float]] = {}
    now = 0.0
    for line in log:
        record = decode(line)
        if record.at > now:
            found += _tell(controller, pending)
            pending, now = [], record.at
        controller.take(record)
        event = record.event
        if isinstance(event, JobSubmitted):
            marks[event.job] = list(SHARES)
        elif isinstance(event, Measured) and event.measurement.work is not None:
            work, total, left = event.measurement.work, total_of(controller.spec(event.job)), marks[event.job]
            while left and work >= left[0] * total:
                share = left.pop(0)
                # reports come when something is new: what is told far beyond a share is not told at it
                if work < min(share + 0.08, 0.99) * total:
                    ran_s = controller.clocks.of(event.job, now)
                    pending.append(Told(job=event.job, share=share, at=now, ran_s=ran_s))
        elif isinstance(event, JobStarted | JobResized):
            for each in found:
                each.resized |= each.job == event.job
        elif isinstance(event, JobFinished):
            for each in found:
                if each.job == event.job:
                    each.real_s, each.ended_at = controller.clocks.ended[event.job] - each.ran_s, record.at
    found = [each for each in found if each.real_s > 0]
    for each in found:
        if each.then is not None:
            each.ways["known"] = (known_s(controller, each), each.then[0].deviation)
    return found


def _tell(controller: Controller, pending: list[Told]) -> list[Told]:
    """Fills in what the controller says at the end of this instant, of jobs that go on."""
    open_ = [each for each in pending if each.job in controller.state.active]
    fair = controller.state.gpus / max(len(controller.state.active), 1)
    for each in open_:
        run, expected = controller.runs[each.job], controller.expected(each.job)
        by_pace = eta(controller.paces[each.job], total_of(controller.spec(each.job)) - run.work)
        if by_pace is None:
            continue
        each.ways["pace"] = (by_pace.value, max(math.log(by_pace.high / by_pace.low) / 2.56, 1e-3))
        if expected is None or run.config is None:
            continue
        seconds = expected.time_left(run.config, run.work, controller.chooser(expected, run.config))
        each.ways["kept"] = (seconds, expected.deviation)
        each.then = (expected, run.config, run.work)
        if controller.policy.chooses_size:
            each.ways["shared"] = eta_adaptive.sharing(
                seconds, expected.deviation, run.config.replicas, fair, every_s=INTERVAL_S
            )
            # the same width for both: what is compared is the middle
            each.ways["kept"] = (seconds, each.ways["shared"][1])
    return open_


def known_s(controller: Controller, told_: Told) -> float:
    """Seconds to the end at the speeds expected then, on the GPUs the job was given afterwards."""
    assert told_.then is not None
    expected, config, work = told_.then
    now, total = told_.ran_s, expected.total
    places = controller.places[told_.job]
    ahead = [(config.nodes, config.replicas), *(each[1:] for each in places if each[0] <= now)][-1:]
    starts = [now, *(each[0] for each in places if each[0] > now), math.inf]
    ahead += [each[1:] for each in places if each[0] > now]
    for (nodes, replicas), until in zip(ahead, starts[1:], strict=True):
        if not replicas:  # it changes: time passes, work does not
            now = until
            continue
        placed = replace(config, nodes=nodes, replicas=replicas)
        choose = controller.chooser(expected, placed)
        while now < until and work < total:
            # in small parts, for the agent adapts its batch size on the way
            if choose is not None:
                atomic, more = choose(expected.limits.initial * expected.gradients(placed.batch, work)[1])
                placed = replace(placed, atomic_batch=atomic, accumulation=more)
            speed = expected.speed(placed, work)
            spent_s = min(total / 64 / speed, (total - work) / speed, until - now)
            now, work = now + spent_s, work + spent_s * speed
        if work >= total * (1 - 1e-9):
            break
    return now - told_.ran_s


#: (share of the work done, predicted seconds, true seconds, interval holds the truth)
Score = tuple[float, float, float, bool]


def scored(tellings: list[Told], way: str) -> Iterator[tuple[Told, Score]]:
    """Errors of one way, each telling calibrated by those of jobs that had ended before it."""
    tellings = sorted((each for each in tellings if way in each.ways), key=lambda each: each.at)
    ends = sorted(tellings, key=lambda each: each.ended_at)
    past: list[Outcome] = []
    ended = 0
    for each in tellings:
        while ended < len(ends) and ends[ended].ended_at < each.at:
            became = outcome(ends[ended].share, *ends[ended].ways[way], ends[ended].real_s)
            past += [] if became is None else [became]
            ended += 1
        estimate = calibrated(*each.ways[way], each.share, past)
        held = estimate.low <= each.real_s <= estimate.high
        yield each, (each.share, estimate.value, each.real_s, held)
