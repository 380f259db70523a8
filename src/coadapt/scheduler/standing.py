"""How jobs stand at a moment: what ``ps`` shows of them beyond what can be looked up.

What takes more than a few operations is kept until the job reports or changes: reading ten thousand jobs again fits and
replays nothing. Nothing here changes the state.
"""

from __future__ import annotations

from coadapt.model import Fact
from coadapt.model.snapshot import ENDED, Phase
from coadapt.predict.efficiency import efficiency
from coadapt.scheduler.aged import Interval, TimeLeft
from coadapt.scheduler.curves import Priors
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.state import SchedulerState
from coadapt.scheduler.time_left import Expected, expected

#: Phases in which an end can be told: it trains, or is about to.
_UNDER_WAY = frozenset({Phase.STARTING, Phase.RUNNING, Phase.RESIZING})


class Standing(Fact, frozen=True):
    """One job at one moment."""

    #: Share of its work that is done, where that is known.
    progress: float | None = None
    #: When it ends, on the state's clock.
    eta: Interval | None = None
    #: Chance that it misses its deadline; None without one, or where nothing is known.
    late: float | None = None
    #: Statistical efficiency of its batch, and work per second, as last measured.
    efficiency: float | None = None
    goodput: float | None = None
    gpu_s: float = 0.0
    restarts: int = 0


class Standings:
    """Answers for the jobs of one state, or of one that takes its place."""

    def __init__(self) -> None:
        self._priors = Priors()
        self._expected: dict[str, tuple[tuple[object, ...], Expected]] = {}

    def of(self, state: SchedulerState, job: JobState, now: float) -> Standing:
        """The job at ``now``, which may be later than the last record."""
        ended_at = job.finished_at
        known = None if ended_at is not None else self.left(state, job, now)
        return Standing(
            progress=self._progress(state, job, now),
            eta=None if known is None else _moved(known.interval, now),
            late=_late(job, known, now),
            efficiency=_efficiency(job),
            goodput=_goodput(job),
            gpu_s=job.attained_gpu_s(now if ended_at is None else ended_at),
            restarts=max(job.attempt - 1, 0),
        )

    def left(self, state: SchedulerState, job: JobState, now: float) -> TimeLeft | None:
        """Seconds until it ends: by the policy's forecast for what it has, else by its own pace; None: not known."""
        if job.phase not in _UNDER_WAY or not job.target or job.stopped_for is not None:
            return None
        said, at = job.forecast, job.forecast_at
        if said is not None and at is not None and at >= (job.changed_at or 0.0):
            outrun = said.high_s is not None and now - at > said.high_s
            # a job that has taken longer than was said tells more by itself, if it tells anything
            if not outrun or not job.stretches:
                return TimeLeft(Interval(value=said.left_s, low=said.low_s, high=said.high_s), now - at)
        own = self._own(state, job)
        return None if own.left is None else TimeLeft(own.left, now - own.said_at)

    def _own(self, state: SchedulerState, job: JobState) -> Expected:
        key = (
            job.measured_at,
            job.changed_at,
            job.running_since,
            job.attempt,
            job.spec,
            len(job.course),
            job.share,
        )
        kept = self._expected.get(job.id)
        if kept is None or kept[0] != key:
            self._priors.follow(state.pool)
            kept = self._expected[job.id] = key, expected(job, self._priors.of(job.spec))
        return kept[1]

    def _progress(self, state: SchedulerState, job: JobState, now: float) -> float | None:
        if job.phase is Phase.SUCCEEDED:
            return 1.0
        declared, done = job.declared, job.work
        if done is None and job.spec.batch is None:
            done = job.ran_s(now if job.finished_at is None else job.finished_at)
        if declared is not None and job.spec.target is None and (done or 0.0) <= declared:
            return (done or 0.0) / declared if declared > 0 else None
        if job.share is not None and job.spec.target is None:
            return job.share
        if done is None or job.phase in ENDED:
            return None
        return self._own(state, job).done


def _moved(seconds: Interval, now: float) -> Interval:
    high = None if seconds.high is None else now + seconds.high
    return Interval(value=now + seconds.value, low=now + seconds.low, high=high)


def _late(job: JobState, known: TimeLeft | None, now: float) -> float | None:
    if job.spec.deadline_s is None:
        return None
    deadline_at = job.submitted_at + job.spec.deadline_s
    if job.finished_at is not None:
        return float(job.phase is not Phase.SUCCEEDED or job.finished_at > deadline_at)
    if now > deadline_at:
        return 1.0
    return None if known is None else known.longer_than(deadline_at - now)


def _efficiency(job: JobState) -> float | None:
    if job.config is None or job.spec.batch is None or job.grad_sqr is None or job.grad_var is None:
        return None
    return min(float(efficiency(job.grad_sqr, job.grad_var, job.config.batch / job.spec.batch.initial)), 1.0)


def _goodput(job: JobState) -> float | None:
    """Between its last reports; before there are two, by the steps of the first."""
    config = job.config
    if job.goodput is not None or config is None or job.spec.batch is None:
        return job.goodput
    useful = _efficiency(job)
    if useful is None:
        useful = 1.0 if config.batch == job.spec.batch.initial else None
    for row in job.table.rows if useful is not None else ():
        if (row.gpu_type, row.nodes, row.replicas, row.atomic_batch) == (
            config.gpu_type,
            config.nodes,
            config.replicas,
            config.atomic_batch,
        ):
            step_s = row.step_s + config.accumulation * max(row.step_s - row.sync_s, 0.0)
            return config.batch / step_s * (useful or 1.0)
    return None
