"""Reservations for jobs that waited too long: backfill (EASY: Lifka, 1995) on nodes, among jobs that may not be preempted.

A job that has waited ``patience`` times its own run at the size it asked for, and at least ``least_wait_s``, gets a
reservation: nodes, and the first moment from which they are free of jobs that may not be preempted. Such a job is taken to end

- at its time limit, which is enforced;
- without one, at the 90% quantile of its predicted end, if it runs and the prediction is credible; the promise then says so;
- else never. Where its GPUs are needed no moment can be promised, and that is said.

**Promise.** The latest start is stated when the reservation is made. Each reservation keeps its place until an earlier one is
found beside all others, as in conservative backfill, so no later reservation and no backfilled job delays it. A job that
may not be preempted starts only where it ends, by its limit, before what is reserved there begins; a prediction is not enough
for that. Jobs that may be preempted are not held back: they give way when the moment has come.

**Start.** When the moment has come the job starts, whatever shares and worth say. One that may be preempted then keeps what it
has for ``SLICE_S``, after which it is a job like others, and waits its whole bound again before the next reservation.

Where a job outlives its end (it takes long to stop, its prediction was wrong, a node was lost), it is named as in the way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.configure import Curve
from coadapt.model import NOWHERE, JobSpec, Placement, Resources, Role, Slot, gpus_of
from coadapt.model.snapshot import JobView, Phase, Snapshot
from coadapt.policies._base import gpus_needed
from coadapt.policies.coadapt.knapsack import Problem
from coadapt.policies.coadapt.node_timeline import Hold, NodeTimeline
from coadapt.policies.coadapt.offers import Offers, is_rigid, work_done
from coadapt.prediction.remaining.work import at_levels

Floats = npt.NDArray[np.float64]

#: Key of the policy's memory: reservations by job, in the order they were made. ``by``: the latest start that was promised,
#: None where none can be; ``at`` and ``on``: when and where it starts as things are; ``in_the_way``: jobs without a known end.
RESERVATIONS = "reservations"
#: Key of the policy's memory: until when a job that started by its reservation keeps what it has.
SLICES = "reserved-slices"
#: Key of the policy's memory: until when users who had a reservation get no other.
TURNS = "reserved-turns"
#: Seconds that a job which may be preempted keeps what was reserved for it.
SLICE_S = 600.0
#: Reservations at a time; further jobs wait for the next.
MOST = 16
#: Level of the predicted end that counts, and its most multiple of the median: beyond, the prediction says too little.
_LEVEL, _SPREAD = 0.9, 2.0
#: Seconds without a report after which a prediction is not credible.
_SILENT_S = 600.0
#: Later than any known end.
_LAST_S = 1e300


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes for a job that waited too long."""

    job: str
    spec: JobSpec
    #: Workers that it gets.
    workers: int
    #: Seconds from the planned start to the latest end of what may not be stopped; infinite where that is not known.
    length_s: float
    #: When it starts at the latest, as things are; infinite where no moment can be promised.
    at: float = math.inf
    target: Placement = NOWHERE
    #: When it was made.
    since: float = 0.0
    #: The latest start that was promised; None: none was.
    by: float | None = None
    #: Jobs that are in the way and have no known end.
    in_the_way: tuple[str, ...] = ()
    #: Jobs whose predicted end the promise rests on.
    rests_on: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs that are reserved."""
        rest = sum(role.min * role.demand.gpus for role in self.spec.roles[1:])
        return self.workers * self.spec.gpus_per_replica + rest

    def written(self) -> dict[str, Any]:
        """The reservation as plain data."""
        found: dict[str, Any] = {
            "by": self.by,
            "since": self.since,
            "gpus": self.gpus,
            "workers": self.workers,
        }
        if self.target:
            found["at"] = self.at
            found["on"] = [[slot.node, slot.replicas, slot.role] for slot in self.target.slots]
        if self.in_the_way:
            found["in_the_way"] = list(self.in_the_way)
        if self.rests_on:
            found["rests_on"] = list(self.rests_on)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The reservations of one decision."""

    #: GPUs that each overdue job needs, by job; those that run included.
    overdue: dict[str, int] = field(default_factory=dict)
    made: list[Reservation] = field(default_factory=list)
    #: Jobs whose moment has come, and where they start.
    starts: dict[str, Placement] = field(default_factory=dict)
    #: Until when jobs keep what was reserved for them.
    slices: dict[str, float] = field(default_factory=dict)
    #: Until when users get no other reservation.
    turns: dict[str, float] = field(default_factory=dict)
    timeline: NodeTimeline | None = None
    notes: dict[str, str] = field(default_factory=dict)

    def written(self) -> dict[str, Any]:
        """The policy's memory of it: keys with their values, None for those to remove."""
        waiting = {each.job: each.written() for each in self.made if each.job not in self.starts}
        return {RESERVATIONS: waiting or None, SLICES: self.slices or None, TURNS: self.turns or None}

    def next_at(self, now: float) -> float:
        """The next moment at which a reserved job starts."""
        return min((each.at for each in self.made if each.at > now), default=math.inf)

    def overdue_gpus(self, found: Offers, parties: Sequence[str]) -> dict[str, int]:
        """GPUs of the largest overdue job of each party."""
        most: dict[str, int] = {}
        for job, party in zip(found.jobs, parties, strict=True):
            if job.id in self.overdue:
                most[party] = max(most.get(party, 0), self.overdue[job.id])
        return most


class LatestStart(NamedTuple):
    """The latest start of a job; None where no moment can be promised, and the jobs that prevent it."""

    at: float | None
    in_the_way: tuple[str, ...] = ()


class Request(NamedTuple):
    """What reservations of a decision depend on, besides jobs and nodes."""

    #: A job waits at most so many times its run at the size it asked for ...
    patience: float
    #: ... and at least so many seconds, before it gets a reservation.
    least_wait_s: float
    #: Seconds to the next decision at the latest, and that a start or stop takes where none was measured.
    every_s: float
    change_s: float
    min_run_s: float
    quotas: Mapping[str, int]

    @property
    def allowance_s(self) -> float:
        """Seconds by which a start may be later than planned: until the next decision, and until others have stopped."""
        return self.every_s + self.change_s


class Scene(NamedTuple):
    """What reservations are made from."""

    #: The cluster at this moment.
    snapshot: Snapshot
    #: Scaling curves by job id.
    curves: Mapping[str, Curve]
    #: The options of this decision.
    found: Offers
    #: Jobs that keep what they have.
    staying: Sequence[JobView]
    #: The policy's memory.
    memory: Mapping[str, Any]
    asked: Request


def in_slice(job: JobView, memory: Mapping[str, Any], now: float) -> bool:
    """Whether the job runs on GPUs that were reserved for it, and has not had its time."""
    return bool(now < (memory.get(SLICES) or {}).get(job.id, -math.inf) and job.target)


def reservations(scene: Scene) -> Reserved:
    """Returns the reservations of this decision: those there were, as far as their jobs still wait, and new ones."""
    snapshot, _, found, staying, memory, asked = scene
    now = snapshot.now
    before: Mapping[str, Any] = memory.get(RESERVATIONS) or {}
    slices = _slices(snapshot, memory)
    turns = {user: until for user, until in (memory.get(TURNS) or {}).items() if until > now}
    if not before and all(job.spec.preemptible for job in [*staying, *found.jobs]):
        # all jobs can be preempted: the starvation bound is enough
        return Reserved(slices=slices, turns=turns)
    overdue: dict[str, int] = {}
    waiting: dict[str, JobView] = {}
    for row, job in enumerate(found.jobs):
        waited_s = job.waited_s(now)
        if waited_s <= asked.least_wait_s or waited_s <= (bound_s := _bound_s(found, row, now, asked)):
            continue
        runs = found.expected[row] > 0
        if not runs.any():
            continue
        gpus = overdue[job.id] = int(found.size[runs].min())
        due = now - slices.get(job.id, -math.inf) > bound_s
        if not job.target and due and _within_quota(job, gpus, snapshot, asked.quotas):
            waiting[job.id] = job
    if not overdue:
        return Reserved(slices=slices, turns=turns)
    several = len({job.spec.user for job in [*found.jobs, *staying]}) > 1
    timeline, predicted, late = _occupied(scene)
    order = _queue(waiting, before, turns if several else {}, several_users=several)
    made = [_asked(job, overdue[job.id], before.get(job.id), timeline, now, asked) for job in order[:MOST]]
    made = _planned(made, timeline, now)
    result, notes = [], {}
    for each in made:
        each = _stated(each, timeline, predicted, late, now, asked)
        if not _same_promise(each, before.get(each.job)):
            notes[each.job] = _promise(each, late)
        result.append(each)
    starts = {each.job: each.target for each in result if each.at <= now and each.target}
    for each in result:
        if each.job in starts:
            if each.spec.preemptible:
                slices[each.job] = now + max(SLICE_S, 10 * asked.change_s)
            if math.isfinite(each.length_s):
                # others have as long as it has
                turns[each.spec.user] = now + 2 * each.length_s
    return Reserved(
        overdue=overdue,
        made=result,
        starts=starts,
        slices=slices,
        turns=turns,
        timeline=timeline,
        notes=notes,
    )


def latest_start(scene: Scene, row: int) -> LatestStart:
    """Returns when a waiting job, a row of the offers, would start at the latest, if no other job that may not be preempted
    starts before its reservation is made."""
    snapshot, _, found, _, memory, asked = scene
    now, job = snapshot.now, found.jobs[row]
    runs = found.expected[row] > 0
    made = (memory.get(RESERVATIONS) or {}).get(job.id)
    if made is not None and made["by"] is not None:
        return LatestStart(made["by"])
    if not runs.any():
        return LatestStart(None)
    timeline, _, _ = _occupied(scene)
    for name, other in (memory.get(RESERVATIONS) or {}).items():
        if name in snapshot.active and name != job.id:
            each = _asked(snapshot.active[name], 0, other, timeline, now, asked)
            each = replace(
                each, at=other.get("at", math.inf), target=timeline.placement(other.get("on") or ())
            )
            if each.target:
                timeline.add(Hold(name, each.spec, each.target, each.at, each.at + each.length_s))
    each = _asked(job, int(found.size[runs].min()), None, timeline, now, asked)
    overdue_at = now + max(_bound_s(found, row, now, asked) - job.waited_s(now), 0.0)
    first = timeline.first(each.spec, each.workers, now, each.length_s)
    if first is None:
        return LatestStart(None, tuple(timeline.endless(job.spec)))
    return LatestStart(max(overdue_at, first[0]) + asked.allowance_s)


# -- who gets one -------------------------------------------------------------------------------------------------


def _bound_s(found: Offers, row: int, now: float, asked: Request) -> float:
    """Seconds that a job waits before it gets a reservation."""
    return max(asked.least_wait_s, asked.patience * _run_s(found, row, now))


def _run_s(found: Offers, row: int, now: float) -> float:
    """Seconds of the job's whole run at the size it asked for, no more than its time limit; 1 where nothing is known of it."""
    job = found.jobs[row]
    most_s = math.inf if job.spec.time_limit_s is None else job.spec.time_limit_s
    asked = (found.size == gpus_needed(job.spec)) & (found.expected[row] > 0)
    goodput = float(found.expected[row, asked].max()) if asked.any() else float(found.expected[row].max())
    done = 0.0 if found.unknown[row] else work_done(job, now)
    work = done + float(found.left_s[row] * found.least[row])
    return min(max(work / goodput, 1.0), most_s) if goodput > 0 and math.isfinite(work) else 1.0


def _within_quota(job: JobView, gpus: int, snapshot: Snapshot, quotas: Mapping[str, int]) -> bool:
    """Whether the quotas of its user and team leave room: a job that waits for a quota does not wait for GPUs."""
    for group in {job.spec.user, job.spec.team} & set(quotas) - {""}:
        used = sum(
            other.target_gpus
            for other in snapshot.placed.values()
            if group in (other.spec.user, other.spec.team)
        )
        if used + gpus > quotas[group]:
            return False
    return True


def _queue(
    waiting: Mapping[str, JobView],
    before: Mapping[str, Any],
    turns: Mapping[str, float],
    *,
    several_users: bool,
) -> list[JobView]:
    """Jobs in the order of their reservations: those that have one, then by submission. While several users have jobs,
    each has one reservation at a time, and the next after others had as long as his last took."""
    order = [waiting[name] for name in before if name in waiting]
    having = {job.spec.user for job in order} | set(turns)
    for job in sorted((waiting[name] for name in waiting if name not in before), key=lambda job: job.order):
        if several_users and job.spec.user in having:
            continue
        having.add(job.spec.user)
        order.append(job)
    return order


def _slices(snapshot: Snapshot, memory: Mapping[str, Any]) -> dict[str, float]:
    """Slices of jobs that are there; one that is over is remembered, for the next reservation comes a bound later."""
    return {name: until for name, until in (memory.get(SLICES) or {}).items() if name in snapshot.active}


# -- the nodes ----------------------------------------------------------------------------------------------------


def _occupied(scene: Scene) -> tuple[NodeTimeline, frozenset[str], frozenset[str]]:
    """The nodes with all that cannot be taken back; jobs whose end is predicted, and those that have outlived their end."""
    snapshot, curves, found, staying, memory, asked = scene
    now, timeline = snapshot.now, NodeTimeline(snapshot)
    predicted, late = set(), set()
    for job in staying:
        end = _end(job, curves, memory, asked, now)
        if job.spec.time_limit_s is None and not job.spec.preemptible and math.isfinite(end):
            predicted.add(job.id)
        if end <= now:
            late.add(job.id)
            end = now + asked.every_s
        timeline.add(Hold(job.id, job.spec, job.target, now, end))
    for name, gpus in _others(snapshot, [*found.jobs, *staying]).items():
        node = snapshot.nodes[name].node
        spec = JobSpec(name=name, roles=(Role(demand=Resources(gpus=1)),))
        slot = Slot(node=name, replicas=gpus, gpu_type=node.gpu_type)
        timeline.add(Hold(f"others on {name}", spec, Placement(slots=(slot,)), now, math.inf))
    return timeline, frozenset(predicted), frozenset(late)


def _others(snapshot: Snapshot, known: Sequence[JobView]) -> dict[str, int]:
    """GPUs by node that are promised to jobs which this decision does not see."""
    seen: dict[str, int] = {}
    for job in known:
        for slot in job.target.slots:
            gpus = slot.replicas * job.spec.role(slot.role).demand.gpus
            seen[slot.node] = seen.get(slot.node, 0) + gpus
    return {
        name: view.promised - seen.get(name, 0)
        for name, view in snapshot.nodes.items()
        if view.promised > seen.get(name, 0)
    }


def _end(
    job: JobView, curves: Mapping[str, Curve], memory: Mapping[str, Any], asked: Request, now: float
) -> float:
    """When a job that stays gives its GPUs back at the latest."""
    if job.spec.preemptible:
        young = (job.changed_at or now) + asked.min_run_s
        return max(young, float((memory.get(SLICES) or {}).get(job.id, now)))
    limit_s = job.spec.time_limit_s
    if limit_s is None:
        return _predicted_end(job, curves[job.id], now)
    if job.limit_at is not None:
        return job.limit_at
    return max((job.changed_at or now) + _cost_s(job, asked), now) + limit_s


def _predicted_end(job: JobView, curve: Curve, now: float) -> float:
    """The end of a running job by its prediction, at a high level; infinite where that is not credible."""
    if job.phase is not Phase.RUNNING or not curve.fitted:
        return math.inf
    model = job.spec.batch is not None
    if model and (job.measured_at is None or now - job.measured_at > _SILENT_S):
        return math.inf
    speed = float(curve.goodput(job.target.nodes, job.target.replicas, job.target.gpu_type))
    middle, high = (float(x) for x in at_levels([curve.remaining()], (0.5, _LEVEL))[0])
    if not (0 < speed < math.inf and 0 < high < math.inf and high <= _SPREAD * middle):
        return math.inf
    since = now if job.measured_at is None else max(job.measured_at, job.changed_at or 0.0)
    if job.work is None and not model:
        high -= work_done(job, now)
    # one that has run beyond it has no credible end
    return since + high / speed if high > 0 and since + high / speed > now else math.inf


def _cost_s(job: JobView, asked: Request) -> float:
    return asked.change_s if job.change_cost_s is None else job.change_cost_s


def _asked(
    job: JobView,
    gpus: int,
    before: Mapping[str, Any] | None,
    timeline: NodeTimeline,
    now: float,
    asked: Request,
) -> Reservation:
    """The reservation of a job: as it was, if its nodes are still there; else without a moment."""
    spec = job.spec
    workers = spec.requested if is_rigid(job) else gpus // spec.gpus_per_replica
    if spec.preemptible:
        firm_s = max(SLICE_S, 10 * asked.change_s)
    else:
        firm_s = math.inf if spec.time_limit_s is None else spec.time_limit_s
    length_s = firm_s + _cost_s(job, asked) + asked.allowance_s
    made = Reservation(job=job.id, spec=spec, workers=workers, length_s=length_s, since=now)
    if before is None:
        return made
    made = replace(made, since=before["since"], by=before["by"])
    target = timeline.placement(before.get("on") or ()) if before["workers"] == workers else NOWHERE
    return replace(made, at=before["at"], target=target) if target else made


def _planned(made: Sequence[Reservation], timeline: NodeTimeline, now: float) -> list[Reservation]:
    """Finds a moment and nodes for each reservation; all are in the timeline afterwards.

    Those that have one keep it unless an earlier one is free beside all others.
    """
    plans = {each.job: each for each in made}
    for each in made:
        if each.target and timeline.bears(each.spec, each.target, each.at, each.at + each.length_s):
            timeline.add(Hold(each.job, each.spec, each.target, each.at, each.at + each.length_s))
        elif each.target:
            plans[each.job] = replace(each, at=math.inf, target=NOWHERE)
    for each in list(plans.values()):
        if each.at <= now:
            continue
        held = timeline.holds.get(each.job)
        timeline.remove(each.job)
        better = timeline.first(each.spec, each.workers, now, each.length_s, before=each.at)
        if better is not None:
            each = plans[each.job] = replace(each, at=better[0], target=better[1])
            held = Hold(each.job, each.spec, each.target, each.at, each.at + each.length_s)
        if held is not None:
            timeline.add(held)
    return list(plans.values())


# -- what is said -------------------------------------------------------------------------------------------------


def _stated(
    each: Reservation,
    timeline: NodeTimeline,
    predicted: Collection[str],
    late: Collection[str],
    now: float,
    asked: Request,
) -> Reservation:
    """The reservation with its promise, and with what it rests on or is prevented by."""
    by, way = each.by, tuple[str, ...]()
    nodes = {slot.node for slot in each.target.slots}

    def holds(names: Collection[str]) -> tuple[str, ...]:
        return tuple(
            name for name in names if nodes & {slot.node for slot in timeline.holds[name].target.slots}
        )

    if not each.target:
        way = tuple(name for name in timeline.endless(each.spec) if name != each.job)
    else:
        latest = max(each.at, now) + asked.allowance_s
        if by is None:
            by = latest
        elif each.at + asked.allowance_s > by + 1e-6:
            way = holds(sorted({*late, *predicted}))
    rests = holds(sorted(predicted)) if each.at > now else ()
    return replace(each, by=by, in_the_way=way, rests_on=rests)


def _same_promise(each: Reservation, before: Mapping[str, Any] | None) -> bool:
    if before is None:
        return False
    written = each.written()
    return all(written.get(key) == before.get(key) for key in ("by", "in_the_way", "rests_on"))


def _promise(each: Reservation, late: Collection[str]) -> str:
    """The note about a reservation; ``why`` adds the moment."""
    gpus = f"{each.gpus} GPU{'' if each.gpus == 1 else 's'}"
    others = ", ".join(each.in_the_way[:3])
    several = len(each.in_the_way) > 1
    if each.in_the_way and each.target:
        verb = "have" if several else "has"
        return f"It has waited too long: {gpus} are reserved for it. {others} {verb} outlived the end that was promised."
    if not each.target:
        verb = "cannot be preempted and have" if several else "cannot be preempted and has"
        why = f": {others} {verb} no time limit" if others else ""
        return (
            f"It has waited too long: the next {gpus} that become free are reserved for it. "
            f"No time can be promised{why}."
        )
    rests = f" This rests on the predicted end of {', '.join(each.rests_on[:3])}." if each.rests_on else ""
    return f"It has waited too long: {gpus} are reserved for it.{rests}"


# -- what may start beside them -------------------------------------------------------------------------------------


class Backfill(NamedTuple):
    """What a decision has to respect for jobs that waited too long; by row of its offers."""

    #: Jobs that may not start now, with a note.
    back: dict[int, str]
    #: Jobs that may not be preempted, and the only place where they would delay nobody.
    pinned: dict[int, Placement]
    #: Jobs that have a reservation.
    reserved: frozenset[int]

    def without(self, problem: Problem, found: Offers, also: Collection[int] = ()) -> Problem:
        """Returns the problem without options of jobs that may not start now, or not there."""
        rows = [*self.back, *also]
        if not rows and not self.pinned:
            return problem
        value = problem.value.copy()
        if rows:
            value[np.array(rows), 1:] = -np.inf
        for row, target in self.pinned.items():
            gpus = gpus_of(target, found.jobs[row].spec)
            other = (problem.size != gpus) | (problem.kind != found.types.index(target.gpu_type))
            value[row, 1:][other[1:]] = -np.inf
        return problem._replace(value=value)


def backfill(found: Offers, snapshot: Snapshot, reserved: Reserved, asked: Request) -> Backfill:
    """Returns which waiting jobs may not start, or only in one place, because they would delay a reservation.

    Args:
        found: the options of this decision, without jobs that start by their reservation.
        snapshot: the cluster at this moment.
        reserved: the reservations of this decision.
        asked: bounds and times.
    """
    rows = frozenset(
        row for row, job in enumerate(found.jobs) if any(each.job == job.id for each in reserved.made)
    )
    timeline, now = reserved.timeline, snapshot.now
    if timeline is None or not reserved.made:
        return Backfill({}, {}, rows)
    plans = {each.job: each.at for each in reserved.made if each.target}
    for each in reserved.made:
        # without a moment it keeps nodes for an hour, and leaves them to others for an hour
        if not each.target and (now - each.since) // asked.least_wait_s % 2 == 0:
            endless = timeline.free("gpus", _LAST_S, math.inf)
            target = timeline.fit(each.spec, each.workers, math.inf, math.inf, idle=endless)
            if target is not None:
                timeline.add(Hold(each.job, each.spec, target, now, math.inf))
                plans[each.job] = now
    idle = np.array([float(view.node.gpus - view.promised) for view in snapshot.nodes.values()])
    back: dict[int, str] = {}
    pinned: dict[int, Placement] = {}
    candidates = [row for row, job in enumerate(found.jobs) if not job.target and not job.spec.preemptible]
    order = {each.job: number for number, each in enumerate(reserved.made)}
    for row in sorted(candidates, key=lambda r: (order.get(found.jobs[r].id, MOST), found.jobs[r].order)):
        job = found.jobs[row]
        limit_s = job.spec.time_limit_s
        end = math.inf if limit_s is None else now + _cost_s(job, asked) + limit_s
        delayed = [name for name, at in plans.items() if name != job.id and at < end]
        if not delayed:
            continue
        held = timeline.holds.get(job.id)
        timeline.remove(job.id)
        workers = _workers(found, row)
        place = timeline.fit(job.spec, workers, now, end, idle=idle) if workers else None
        if place is None:
            back[row] = _delays(delayed[0])
        else:
            pinned[row] = place
            held = Hold(job.id, job.spec, place, now, end)
        if held is not None:
            timeline.add(held)
    return Backfill(back, pinned, rows)


def _workers(found: Offers, row: int) -> int:
    """Workers of a job that starts in a given place: as many as it asked for, or the next smaller number on offer."""
    job = found.jobs[row]
    if is_rigid(job):
        return job.spec.requested
    sizes = found.size[(found.goodput[row] > 0) & (found.size <= job.spec.requested_gpus)]
    return int(sizes.max(initial=0)) // job.spec.gpus_per_replica


def _delays(job: str) -> str:
    return f"It cannot be preempted and would delay {job}, which has waited too long."


def reduced(found: Offers, snapshot: Snapshot, starts: Mapping[str, Placement]) -> Offers:
    """Returns offers of the GPUs that jobs which start by their reservation leave."""
    taken = dict.fromkeys(found.types, 0)
    for name, target in starts.items():
        for slot in target.slots:
            taken[slot.gpu_type] += slot.replicas * snapshot.active[name].spec.role(slot.role).demand.gpus
    capacity = tuple(
        max(most - taken[gpu_type], 0) for gpu_type, most in zip(found.types, found.capacity, strict=True)
    )
    goodput = found.goodput.copy()
    goodput[:, found.size > np.array(capacity)[found.kind]] = 0.0
    return replace(found, capacity=capacity, goodput=goodput)


def displaced(
    snapshot: Snapshot, places: Mapping[str, Placement], changing: Collection[str], jobs: Sequence[JobView]
) -> list[JobView]:
    """Returns the jobs that have to be placed again so that ``places`` become free: of ``jobs``, the youngest first.

    Args:
        snapshot: the cluster at this moment.
        places: placements of jobs that start.
        changing: jobs that this decision places anew anyway.
        jobs: jobs that may be moved.
    """
    free: dict[tuple[str, str], float] = {}

    def add(target: Placement, spec: JobSpec, sign: int) -> None:
        for slot in target.slots:
            demand = spec.role(slot.role).demand
            amounts = (("gpus", float(slot.replicas * demand.gpus)), *demand.others(slot.replicas))
            for name, amount in amounts:
                key = (slot.node, name)
                if key not in free:
                    if slot.node not in snapshot.nodes:
                        continue
                    view = snapshot.nodes[slot.node]
                    free[key] = (
                        view.node.gpus - view.promised
                        if name == "gpus"
                        else view.node.limit(name) - view.promised_other.get(name, 0.0)
                    )
                free[key] += sign * amount

    for name, target in places.items():
        add(target, snapshot.active[name].spec, -1)
    for name in changing:
        job = snapshot.active[name]
        add(job.target, job.spec, 1)
    found: list[JobView] = []
    movable = [job for job in jobs if job.target and job.id not in changing and job.id not in places]
    for job in sorted(movable, key=lambda each: -each.order):
        short = {node for (node, _), amount in free.items() if amount < -1e-6}
        if not short:
            break
        if any(slot.node in short for slot in job.target.slots):
            add(job.target, job.spec, 1)
            found.append(job)
    return found
