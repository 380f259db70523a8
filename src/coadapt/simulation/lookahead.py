"""Lookahead: the live state simulated forward with the live policy, to predict when each job starts and ends.

The prediction assumes that nothing else is submitted. The same scheduler and loop that run the cluster run over a copy
of its state, and jobs train as predicted (``engine.predicted_training``). The first run takes the median of every
quantity; further runs draw each job's remaining work and speed, and the spread of their answers is the interval. The
result is deterministic: the same state gives the same answer. A run is bounded by steps, never by seconds.

The cost grows with the number of jobs times that of decisions. Beyond ``DRAWN`` jobs there are fewer draws, and beyond
``SIMULATED`` jobs the queue is forecast without the policy (``simulation.queue_forecast``), which each answer says.

The log of such a run discards its records, because only the outcome is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from coadapt.model import (
    ActionsIssued,
    ControllerStarted,
    JobSpec,
    JobSubmitted,
    Record,
    SpecChanged,
    StartJob,
)
from coadapt.model.interval import Outlook
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.runtime import Loop
from coadapt.scheduler import FittedCurves, Scheduler, SchedulerState
from coadapt.scheduler.state import saved_state
from coadapt.scheduler.state.job_state import JobState
from coadapt.simulation.engine.predicted_training import EVEN, PredictedTraining, draw_luck, work_left
from coadapt.simulation.engine.simulated_executor import ChangeCost, SimulatedExecutor, Timeline
from coadapt.simulation.engine.training_model import Training
from coadapt.simulation.queue_forecast import QueueForecast, QueueRun
from coadapt.units import format_duration

#: Runs with drawn amounts of work, besides the one with medians.
DRAWS = 8
#: Jobs that have not ended up to which all runs are made, and up to which there are simulations at all.
DRAWN, SIMULATED = 100, 150
#: Draws of the forecast of a longer queue.
_QUEUE_DRAWS = 4
#: Steps of the loop in one run: beyond, what has not ended is not foretold.
STEPS = 20_000
#: What a change of placement costs where none was measured, in seconds.
_CHANGE_S = 30.0
#: The interval's ends, and the share of draws without an end from which on there is no upper one.
_LOW, _HIGH = 0.1, 0.9


#: Makes the scheduler of the live cluster (policy, placer, rhythm) over a state.
MakeScheduler = Callable[[SchedulerState], Scheduler]


def forward(
    state: SchedulerState,
    make_scheduler: MakeScheduler,
    *,
    now: float | None = None,
    add: Iterable[tuple[str, JobSpec]] = (),
    change: Iterable[tuple[str, JobSpec]] = (),
    draws: int = DRAWS,
    steps: int = STEPS,
    seed: int = 0,
) -> dict[str, Outlook]:
    """Predicts start and end of every job that has not ended, and of those to add.

    Args:
        state: State of the live cluster; it is not changed.
        make_scheduler: Makes the scheduler of the live cluster over a state.
        now: Time to begin at, if later than that of ``state``.
        add: (name, specification) of jobs that are submitted at the beginning.
        change: (name, specification) of jobs that are changed at the beginning.
        draws: Runs with drawn work and speed, besides the one with medians.
        steps: Most steps of the loop in one run.
        seed: Seed of the draws.
    """
    added, changed = tuple(add), tuple(change)
    begin = max(state.now, now if now is not None else state.now)
    count = len(state.jobs) - state.ended + len(added)
    coarse = count > SIMULATED
    if coarse:
        queue = QueueForecast(state, begin, added)
        runs = [queue.draw(number, seed) for number in range(min(draws, _QUEUE_DRAWS) + 1)]
    else:
        data = saved_state.save(state)
        runs = [
            _run(
                saved_state.load(data),
                make_scheduler,
                begin,
                added,
                changed,
                draw=draw,
                steps=steps,
                seed=seed,
            )
            for draw in range(min(draws, DRAWS * DRAWN**2 // max(count, 1) ** 2) + 1)
        ]
    names = [job.id for job in state.jobs.values() if job.phase not in ENDED] + [name for name, _ in added]
    specs = {job.id: job.spec for job in state.jobs.values()} | dict(added)
    return {name: _outlook(name, specs[name], state, runs, coarse=coarse) for name in names}


def sized(spec: JobSpec, replicas: int) -> JobSpec:
    """Returns the same job with a fixed number of replicas."""
    worker = msgspec.structs.replace(spec.worker, min=replicas, max=replicas)
    return msgspec.structs.replace(spec, roles=(worker, *spec.roles[1:]), requested=replicas)


def preview(
    state: SchedulerState,
    make_scheduler: MakeScheduler,
    spec: JobSpec,
    sizes: Sequence[int],
    *,
    now: float | None = None,
    draws: int = DRAWS,
    steps: int = STEPS,
) -> tuple[Outlook, dict[int, Outlook]]:
    """Predicts what would happen if a job were submitted now: as specified, and at each fixed size.

    Args:
        state: State of the live cluster; it is not changed.
        make_scheduler: Makes the scheduler of the live cluster over a state.
        spec: Specification of the job.
        sizes: Numbers of replicas to try, each as the only size.
        now: Time of the submission, if later than that of ``state``.
        draws: Runs with drawn work and speed, besides the one with medians.
        steps: Most steps of the loop in one run.
    """
    name = _unused_name(state)

    def of(candidate: JobSpec) -> Outlook:
        return forward(state, make_scheduler, now=now, add=[(name, candidate)], draws=draws, steps=steps)[
            name
        ]

    at, in_the_way = _latest_start(state, make_scheduler, name, spec, now)
    chosen = msgspec.structs.replace(of(spec), latest_start_at=at, in_the_way=in_the_way)
    return chosen, {size: of(sized(spec, size)) for size in sizes}


def _latest_start(
    state: SchedulerState, make_scheduler: MakeScheduler, name: str, spec: JobSpec, now: float | None
) -> tuple[float | None, tuple[str, ...]]:
    """The latest start of a job that is submitted now, where the policy reserves GPUs for jobs that wait too long."""
    copy = saved_state.load(saved_state.save(state))
    ask = getattr(make_scheduler(copy).policy, "latest_start", None)
    if ask is None:
        return None, ()
    begin = max(state.now, now if now is not None else state.now)
    copy.apply(Record(seq=copy.seq + 1, at=begin, event=JobSubmitted(job=name, spec=spec)))
    found = ask(copy, FittedCurves().of(copy), copy.memory, name)
    return (None, ()) if found is None else (found.at, tuple(found.in_the_way))


class DeadlinePromise(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a deadline can be met, and the earliest that can be, in seconds after submission; None: none can be."""

    kept: bool
    earliest_s: float | None = None
    note: str = ""
    #: It is stopped at its time limit before its predicted end.
    at_limit: bool = False


#: Deadlines that are tried to find the earliest one, and runs with drawn work for each of them.
_TRIED, _TRIED_DRAWS = 3, 4


def deadline_promise(
    state: SchedulerState,
    make_scheduler: MakeScheduler,
    spec: JobSpec,
    *,
    job: str | None = None,
    now: float | None = None,
    draws: int = DRAWS,
    steps: int = STEPS,
) -> DeadlinePromise:
    """Answers whether the deadline of a job can be promised, under the live policy and with its shares between users.

    It can be if the upper end of the interval of its end lies before it; of a job whose length is not known, if its time limit
    ends it before. If not, later ones are tried: a job comes first
    only if its deadline can be met.

    Args:
        state: State of the live cluster; it is not changed.
        make_scheduler: Makes the scheduler of the live cluster over a state.
        spec: Specification of the job, with a deadline.
        job: Name of the job, where it was submitted before and is changed; None: it is submitted now.
        now: Time of the request, if later than that of ``state``.
        draws: Runs with drawn work and speed, besides the one with medians.
        steps: Most steps of the loop in one run.
    """
    begin = max(state.now, now if now is not None else state.now)
    submitted_at = begin if job is None else state.jobs[job].submitted_at
    name = job or _unused_name(state)

    def latest_s(deadline_s: float, draws: int) -> tuple[float, Outlook]:
        asked = [(name, msgspec.structs.replace(spec, deadline_s=deadline_s))]
        add, change = (asked, []) if job is None else ([], asked)
        found = forward(state, make_scheduler, now=now, add=add, change=change, draws=draws, steps=steps)[
            name
        ]
        # of a job whose length is not known, its time limit says when it is over
        high = found.over_by if found.over_by is not None else found.high
        return (math.inf if high is None else high - submitted_at), found

    assert spec.deadline_s is not None
    low = spec.deadline_s
    earliest, outlook = latest_s(low, draws)
    if earliest <= low:
        return DeadlinePromise(kept=True, earliest_s=earliest)
    if math.isinf(earliest):
        return DeadlinePromise(kept=False, note=outlook.note, at_limit=outlook.at_limit)
    for _ in range(_TRIED):
        tried = (low + earliest) / 2
        found, _ = latest_s(tried, min(draws, _TRIED_DRAWS))
        if found <= tried:
            earliest = tried
        else:
            low = tried
    return DeadlinePromise(kept=False, earliest_s=earliest)


def _unused_name(state: SchedulerState) -> str:
    name = "preview"
    while name in state.jobs:
        name += "-"
    return name


def _run(
    state: SchedulerState,
    make_scheduler: MakeScheduler,
    begin: float,
    added: Sequence[tuple[str, JobSpec]],
    changed: Sequence[tuple[str, JobSpec]],
    *,
    draw: int,
    steps: int,
    seed: int,
) -> QueueRun:
    found = QueueRun()
    scheduler, timeline = make_scheduler(state), Timeline(begin)
    curves = FittedCurves()
    curves.of(state)

    def train(name: str, spec: JobSpec) -> Training:
        job = scheduler.state.jobs[name]
        curve = curves.curve(job)
        level, luck = 0.5, EVEN
        if draw > 0:
            rng = np.random.default_rng((seed, draw, job.order))
            level, luck = float(rng.uniform(0.01, 0.99)), draw_luck(job, curve, rng)
        left = work_left(job, curve, timeline.now(), level)
        if not left.ends:
            found.endless.add(name)
        return PredictedTraining(curve, left.work, job.work or 0.0, luck)

    executor = SimulatedExecutor(
        timeline=timeline,
        spec_of=lambda name: scheduler.state.jobs[name].spec,
        train=train,
        change_cost=_change_cost(state),
    )
    executor.adopt(state)
    loop = Loop(scheduler, executor, timeline, Unwritten(), on_record=lambda record: _hear(found, record))
    loop.take(begin, ControllerStarted(version="forward"))
    for name, spec in added:
        loop.take(begin, JobSubmitted(job=name, spec=spec))
    for name, spec in changed:
        loop.take(begin, SpecChanged(job=name, spec=spec))
    _go(loop, timeline, steps)
    for job in scheduler.state.jobs.values():
        if job.finished_at is not None and job.phase is Phase.SUCCEEDED:
            found.ends[job.id] = math.inf if job.id in found.endless else job.finished_at
            found.gpu_s[job.id] = job.attained_gpu_s(job.finished_at)
        if job.finished_at is not None and job.failure is not None and job.failure.kind == "time-limit":
            found.limits[job.id] = job.finished_at
        if job.config is not None and job.spec.batch is not None:
            found.batch[job.id] = job.config.batch
    return found


def _go(loop: Loop, timeline: Timeline, steps: int) -> None:
    """To the end, or until nothing is left that could happen but decisions."""
    state, idle = loop.scheduler.state, 0
    for _ in range(steps):
        if state.ended == len(state.jobs) or not loop.step():
            return
        waits = state.policy_wake_at is not None and state.policy_wake_at > state.now
        idle = idle + 1 if timeline.empty() else 0
        if idle > (1000 if waits else 20):
            return


def _hear(found: QueueRun, record: Record) -> None:
    if isinstance(record.event, ActionsIssued):
        for action in record.event.actions:
            if isinstance(action, StartJob):
                found.starts.setdefault(action.job, record.at)


def _change_cost(state: SchedulerState) -> ChangeCost:
    """As measured with the job itself; else the mean of all; else a guess."""
    known = {id(job.spec): job.change_cost_s for job in state.jobs.values() if job.change_cost_s is not None}
    mean_s = sum(known.values()) / len(known) if known else _CHANGE_S
    return lambda spec, before, after: known.get(id(spec), mean_s)


def _outlook(
    name: str, spec: JobSpec, state: SchedulerState, runs: Sequence[QueueRun], *, coarse: bool
) -> Outlook:
    median, job = runs[0], state.jobs.get(name)
    starts_at = median.starts.get(name)
    if job is not None and job.phase in HOLDING:
        starts_at = job.started_at
    ends = sorted(run.ends.get(name, math.inf) for run in runs[1:]) or [median.ends.get(name, math.inf)]
    middle = median.ends.get(name)
    return Outlook(
        starts_at=starts_at,
        finishes_at=None if middle is None or math.isinf(middle) else middle,
        low=_quantile(ends, _LOW),
        high=_quantile(ends, _HIGH),
        gpu_s=median.gpu_s.get(name),
        batch=median.batch.get(name),
        note=_note(name, spec, state, median),
        coarse=coarse,
        over_by=_over_by(name, spec, state, runs),
        at_limit=name in median.limits,
    )


def _over_by(name: str, spec: JobSpec, state: SchedulerState, runs: Sequence[QueueRun]) -> float | None:
    """Upper end of the interval in which a job of unknown length is over, at the latest by its time limit."""
    if spec.time_limit_s is None or not _is_guess(spec, state, state.jobs.get(name)):
        return None
    ends = [min(run.ends.get(name, math.inf), run.limits.get(name, math.inf)) for run in runs]
    return _quantile(sorted(ends), _HIGH)


def _is_guess(spec: JobSpec, state: SchedulerState, job: JobState | None) -> bool:
    """Whether nothing is known of a job's length."""
    return spec.duration_s is None and not state.pool.jobs and not (job is not None and job.table.rows)


def _quantile(ends: Sequence[float], level: float) -> float | None:
    """Of a few draws, those without an end last."""
    place = level * (len(ends) - 1)
    low, high = ends[math.floor(place)], ends[math.ceil(place)]
    if math.isinf(high):
        return None if math.isinf(low) or place > math.floor(place) else low
    return low + (high - low) * (place - math.floor(place))


def _note(name: str, spec: JobSpec, state: SchedulerState, run: QueueRun) -> str:
    job = state.jobs.get(name)
    if job is not None and job.quarantine is not None:
        return "quarantined"
    if job is not None and job.missing_code:
        return "Its code is missing."
    if job is not None and job.on_hold:
        return "Paused on request."
    if name in run.endless:
        return "At its present rate of progress it never ends."
    if name not in run.ends:
        if name in run.limits and spec.time_limit_s is not None:
            limit = format_duration(spec.time_limit_s)
            if _is_guess(spec, state, job):
                return f"Its duration is not known; its time limit ends it after {limit} at the latest."
            return f"It is stopped at its time limit of {limit}, before its predicted end."
        runs = name in run.starts or (job is not None and job.phase in HOLDING)
        return f"This job does not {'end' if runs else 'start'} within the forecast."
    if _is_guess(spec, state, job):
        return "No similar job was measured yet: its duration is a guess."
    return ""


class Unwritten:
    """Implements ``runtime.EventLog``; remembers the last number and nothing else."""

    def __init__(self) -> None:
        self._last = -1

    def append(self, records: Sequence[Record]) -> None:
        """Remembers the last sequence number and discards the records."""
        if records:
            self._last = records[-1].seq

    def read(self, after: int = -1) -> Iterable[Record]:
        """Returns no records."""
        return ()

    def last(self) -> int:
        """Returns the sequence number of the newest record."""
        return self._last

    def first(self) -> int:
        """Returns the number after the newest record: no record is kept."""
        return self._last + 1

    def save_snapshot(self, seq: int, data: bytes) -> None:
        """Discards the snapshot."""

    def newest_snapshot(self, before: int | None = None) -> tuple[int, bytes] | None:
        """Returns None: no snapshot is kept."""
        return None

    def forget(self, before_seq: int) -> None:
        """Does nothing: no record is kept."""
