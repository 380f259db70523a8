"""Advice for a job whose deadline is at risk: by how much it will be missed, and what would save it.

The computation is that of ``planning.replan``. The plan is made from the job's own curve (one row for each number of
GPUs that the cluster could give it, at its best batch size), the progress is what the job has reported; the time per
unit of work is scaled by the measured ratio to the curve. Fitting takes milliseconds, so an answer is kept until the
job reports or changes, and jobs that are in time are not fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from coadapt.configure.curve import FittedCurve
from coadapt.explain.job_progress import Standings
from coadapt.model.interval import Interval
from coadapt.model.snapshot import ENDED
from coadapt.planning.option_outlook import Z80
from coadapt.planning.problem import Option, Plan, Question, Row
from coadapt.planning.replan import Progress, Rescue, Verdict, replan
from coadapt.scheduler.curve_source import FittedCurves
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState
from coadapt.units import format_chance, format_duration

#: Chance of missing the deadline from which on it is said.
AT_RISK = 0.5
#: Chance of meeting it that an option must have to be named, and how well a predicted speed is known (deviation of its logarithm).
_SAFE, _SPEED_SD = 0.8, 0.15
#: What a change of GPUs costs where none was measured, and the most options looked at.
_CHANGE_S, _MOST_OPTIONS = 60.0, 64
_MOST_PRIORITY = 20


class Advisor:
    """Answers for the jobs of one state, or of one that takes its place."""

    def __init__(self, standings: Standings) -> None:
        self._standings, self._curves = standings, FittedCurves()
        self._kept: dict[str, tuple[tuple[object, ...], tuple[Rescue, ...]]] = {}

    def of(self, state: SchedulerState, job: JobState, now: float) -> str:
        """One sentence; empty: the job has no deadline, has ended, or is not at risk."""
        if job.spec.deadline_s is None or job.phase in ENDED:
            return ""
        late = self._standings.of(state, job, now).late
        if late is None or late < AT_RISK:
            return ""
        left_s = job.submitted_at + job.spec.deadline_s - now
        if left_s <= 0:
            return f"Deadline: missed by {format_duration(-left_s)}."
        known = self._standings.left(state, job, now)
        over_s = 0.0 if known is None else known.interval.value - left_s
        by = f", by about {format_duration(over_s)}" if over_s > 0 else ""
        said = (
            f"Deadline: in {format_duration(left_s)}; it will probably be missed ({format_chance(late)}){by}."
        )
        return f"{said} {_remedy(job, self._rescues(state, job, now), now)}"

    def _rescues(self, state: SchedulerState, job: JobState, now: float) -> tuple[Rescue, ...]:
        key = (job.measured_at, job.changed_at, job.attempt, job.spec, state.gpus, int(now / _CHANGE_S))
        kept = self._kept.get(job.id)
        if kept is None or kept[0] != key:
            verdict = self._verdict(state, job, now)
            kept = self._kept[job.id] = key, () if verdict is None else verdict.rescues
        return kept[1]

    def _verdict(self, state: SchedulerState, job: JobState, now: float) -> Verdict | None:
        """None where too little is known to compare."""
        self._curves.of(state)
        curve, known = self._curves.curve(job), self._standings.left(state, job, now)
        here = (job.held or job.target).gpu_type
        if not isinstance(curve, FittedCurve) or known is None or job.config is None or not curve.fitted:
            return None
        left, done = curve.remaining().quantile(0.5), job.work or 0.0
        if not 0 < left < math.inf:
            return None
        spread = math.log(max(curve.remaining().quantile(0.9), left) / left) / Z80
        total = done + left
        rows = [_row(option, curve, total, spread) for option in _options(state, job, curve)]
        held = _option(job, curve, here, len(job.target.shape), sum(job.target.shape))
        rows = [_row(held, curve, total, spread), *(row for row in rows if row.option != held)]
        question = Question(
            deadline_s=job.spec.deadline_s, confidence=_SAFE, epochs=1.0, whole_passes=False, objective="time"
        )
        plan = Plan(
            planner="live", question=question, rows=tuple(rows), chosen=None, likeliest=0, frontier=()
        )
        share, seconds = left / total, known.interval
        high = seconds.value * math.exp(3.0) if seconds.high is None else seconds.high
        progress = Progress(
            option=held,
            passes=done / total,
            elapsed_s=now - job.submitted_at,
            pass_s=Interval(value=seconds.value / share, low=seconds.low / share, high=high / share),
        )
        change_s = _CHANGE_S if job.change_cost_s is None else job.change_cost_s
        return replan(plan, progress, change_s=change_s)


def _options(state: SchedulerState, job: JobState, curve: FittedCurve) -> Iterator[Option]:
    """On each GPU type that it may use, as many GPUs as there are, packed; also more than its own limits allow."""
    sizes: dict[str, list[int]] = {}
    for node in state.nodes.values():
        sizes.setdefault(node.node.gpu_type, []).append(node.node.gpus // job.spec.gpus_per_replica)
    for gpu_type, room in sizes.items():
        if job.spec.gpu_types and gpu_type not in job.spec.gpu_types:
            continue
        room.sort(reverse=True)
        most = min(sum(room), _MOST_OPTIONS)
        for replicas in range(job.spec.worker.min, most + 1):
            nodes = next(count for count in range(1, len(room) + 1) if sum(room[:count]) >= replicas)
            if float(curve.goodput(nodes, replicas, gpu_type)) > 0:
                yield _option(job, curve, gpu_type, nodes, replicas)


def _option(job: JobState, curve: FittedCurve, gpu_type: str, nodes: int, replicas: int) -> Option:
    choice = curve.config(nodes, replicas, gpu_type)
    batch = choice.atomic_batch * replicas * (choice.accumulation + 1)
    return Option(
        gpu_type=gpu_type,
        replicas=replicas,
        nodes=nodes,
        batch=batch,
        accumulation=choice.accumulation,
        gpus_per_replica=job.spec.gpus_per_replica,
    )


def _row(option: Option, curve: FittedCurve, total: float, spread: float) -> Row:
    """The whole run as one pass, at the speed that the option will have on average."""
    where = (option.nodes, option.replicas, option.gpu_type)
    speed = float(curve.goodput(*where)) * curve.quickening(*where)
    seconds = total / speed if speed > 0 else math.inf
    factor = math.exp(Z80 * math.hypot(spread, _SPEED_SD))
    total_s = Interval(value=seconds, low=seconds / factor, high=seconds * factor)
    return Row(
        option=option,
        passes=1.0,
        # how far it is to the end is in the time left already
        passes_enough=1.0,
        total_s=total_s,
        cost=total_s,
        metric=None,
        chance=0.0,
        why="",
    )


def _remedy(job: JobState, rescues: tuple[Rescue, ...], now: float) -> str:
    if not rescues:
        return "No allocation on this cluster would meet it."
    # the fewest GPUs: the more it asks for, the longer it may have to wait for them
    best = min(rescues, key=lambda rescue: (rescue.option.gpus, rescue.finish_s))
    option, ends_s = best.option, best.finish_s - (now - job.submitted_at)
    said = (
        f"On {option.gpus} {option.gpu_type} with batch size {option.batch:,} it would end in "
        f"{format_duration(ends_s)}, in time with a chance of {format_chance(best.chance)}"
    )
    if option.replicas > job.spec.worker.max:
        return f"{said}: coadapt update {job.id} --max-gpus {option.gpus}"
    return f"{said}: coadapt update {job.id} --priority {min(job.spec.priority + 1, _MOST_PRIORITY)}"
