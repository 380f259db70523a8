"""Our own policy: GPUs by predicted goodput and remaining work, decided exactly and in milliseconds.

At each decision every job has a curve (goodput over GPUs at its best batch size, from its own measurements and from past
jobs like it) and a distribution of the work it has left. Who gets how much is one multiple-choice knapsack (``knapsack``)
over options (``offers``) of a stated worth (``worth``): by default that of least average completion time.

- A change is worth its gain less the time it takes, as measured for this job (until then ``change_s``).
- A job that was never measured comes first, on its least; it may grow to ``growth`` times what was measured.
- **Starvation bound**: a job that has waited ``patience`` times as long as it would run alone on its fair share of the
  cluster, and at least ``least_wait_s``, is placed before all others, and stays (``priorities``).
- **Deadlines** come before worth: a job gets what meets its deadline, if anything does and all of them fit.
- A job that needs no GPUs runs as asked for.
- **Shares** (``shares``, ``user_program``): while several users have jobs, each gets at least ``floor`` of his due share of
  the GPUs, hour by hour. Above that the objective decides, by lengths that are believed (``credibility``) and with a prize
  for jobs that end as early as alone on an equal share (``on_time``: it makes ends fairer, and costs nothing); priorities, deadlines and the starvation bound count among the jobs of one user. A running job has a margin over others, and
  the older of two equal jobs goes first.
- **Reservations** (``reservations``): no job that may not be preempted starts where it would delay one that waited too long.
- Where the network is contended or nodes differ in size, that is the placer's business (``placement/tidy.py``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coadapt.errors import InputError
from coadapt.model import Allocation, Forecast, Reason, gpus_of, workers
from coadapt.model.snapshot import HOLDING, JobView, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng, as_requested, gpus_needed
from coadapt.policies.coadapt.credibility import believed
from coadapt.policies.coadapt.fluid_forecast import ends_s, forecast
from coadapt.policies.coadapt.knapsack import Answer, Problem, solve
from coadapt.policies.coadapt.offers import USUAL, Offers, is_rigid, offers
from coadapt.policies.coadapt.priorities import (
    USAGE,
    aged_usage,
    granted_factors,
    job_weights,
    priority_factors,
    put_first,
    within_quotas,
)
from coadapt.policies.coadapt.reasons import NOT_FINITE, Explainer, started
from coadapt.policies.coadapt.reservations import (
    Backfill,
    LatestStart,
    Request,
    Reserved,
    Scene,
    backfill,
    displaced,
    in_slice,
    latest_start,
    reduced,
    reservations,
)
from coadapt.policies.coadapt.shares import (
    SHARES,
    Books,
    beyond_share,
    claims,
    party_of,
    several_parties,
    share_remarks,
)
from coadapt.policies.coadapt.user_program import solve_for_parties, with_margin
from coadapt.policies.coadapt.worth import OBJECTIVES, Objective, discounted, worth

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]


#: Largest number any option may be: more is a mistake, and would overflow somewhere.
_MOST, _MOST_WEIGHT = 1e9, 1e6


class CoadaptPolicy(BasePolicy):
    """Solves one multiple-choice knapsack per decision.

    Args:
        objective: what is maximised; see ``worth``.
        p: exponent of the speed-up that jobs are assumed to have (jct, cost), or exponent of the power mean.
        growth: a job grows to at most so many times the replicas it, or a job like it, was measured with.
        horizon_s: seconds over which the time lost to a change must pay off.
        hysteresis: share by which the gain of a change must exceed its cost.
        change_s: assumed cost of a change in seconds, until one was measured.
        min_run_s: seconds that a job keeps an allocation before it may change.
        patience: a job waits at most so many times its run time alone on a fair share.
        least_wait_s: lower bound of that wait, in seconds.
        every_s: seconds to the next decision if nothing happens before.
        weights: weights of users or teams; 1 where not given.
        quotas: most GPUs of a user or team.
        half_life_s: seconds after which recorded usage counts half; used with ``weights`` only.
        floor: share of a user's due GPUs that he has at least, hour by hour; 0: no shares between users.
        slack_h: hours of his due that a user may be behind before he gets all of it.
        on_time: while several users have jobs, the prize of a job's end in no more time than alone on an equal share.
        reserve_after: GPUs are reserved for a job that has waited so many times its run at the size it asked for.
    """

    name = "coadapt"
    order = 10
    help = (
        "Our own policy: GPUs by predicted goodput and remaining work, decided exactly and in milliseconds."
    )
    option_help: ClassVar[dict[str, str]] = {
        "objective": "jct (average completion time), fairness, throughput, mean (power mean of speed-ups) or cost",
        "p": "exponent of the speed-up that jobs are taken to have (jct, cost: 0.7), or of the power mean (-1)",
        "growth": "a job grows to at most so many times the replicas it, or a job like it, was measured with",
        "horizon_s": "seconds over which the time that a change takes has to pay",
        "hysteresis": "share by which a change must gain more than it costs",
        "change_s": "seconds that a change is taken to cost until one was measured",
        "min_run_s": "seconds that a job keeps what it was given",
        "patience": "no job waits longer than so many times its time alone on a fair share ...",
        "least_wait_s": "... and than so many seconds, before it comes first",
        "every_s": "without --interval: look again after so many seconds",
        "weights": "of users or teams, as in prod:2,research:1; 1 where not given",
        "quotas": "most GPUs of users or teams, as in prod:32,research:16",
        "half_life_s": "with weights: seconds after which usage counts half",
        "floor": "share of a user's due GPUs that he has at least, hour by hour; 0: no shares between users",
        "slack_h": "hours of the due GPUs that a user may be behind before he gets all that he is due",
        "on_time": "with several users: prize of ending a job no later than alone on an equal share; 1: as objective fairness",
        "reserve_after": "reserve GPUs for a job that has waited this many times its run at the requested size; 1e9: never",
    }
    placer = "tidy"
    adapts_batch = True
    chooses_size = True
    knows_quotas = True

    def __init__(
        self,
        *,
        objective: Objective = "jct",
        p: float | None = None,
        growth: float = 4.0,
        horizon_s: float = 300.0,
        hysteresis: float = 0.0,
        change_s: float = 30.0,
        min_run_s: float = 0.0,
        patience: float = 10.0,
        least_wait_s: float = 3600.0,
        every_s: float = 60.0,
        weights: Mapping[str, float] | None = None,
        quotas: Mapping[str, int] | None = None,
        half_life_s: float = 7 * 86400.0,
        floor: float = 0.8,
        slack_h: float = 0.07,
        on_time: float = 0.5,
        reserve_after: float = 3.0,
    ) -> None:
        if objective not in OBJECTIVES:
            raise InputError(f"coadapt: objective {objective!r} is none of {', '.join(OBJECTIVES)}")
        self.objective: Objective = objective
        self.p = p if p is not None else (-1.0 if objective == "mean" else 0.7)
        low, high = (-10, 1) if objective == "mean" else (0, 1)
        if not low <= self.p <= high or (objective != "mean" and self.p in (0, 1)):
            bounds = "between -10 and 1" if objective == "mean" else "above 0 and below 1"
            raise InputError(f"coadapt: p must be {bounds} for objective {objective}; got {p}")
        at_least = {"growth": (growth, 1), "horizon_s": (horizon_s, 1), "every_s": (every_s, 1)}
        at_least |= {"change_s": (change_s, 0), "min_run_s": (min_run_s, 0), "patience": (patience, 0)}
        at_least |= {"least_wait_s": (least_wait_s, 0), "half_life_s": (half_life_s, 1)}
        at_least |= {"slack_h": (slack_h, 0), "on_time": (on_time, 0), "reserve_after": (reserve_after, 0)}
        for name, (value, least) in at_least.items():
            if not least <= value <= _MOST:
                raise InputError(f"coadapt: {name} must be a number from {least} to {_MOST:g}; got {value}")
        if not 0 <= hysteresis < 1:
            raise InputError(f"coadapt: hysteresis must be at least 0 and below 1; got {hysteresis}")
        if not 0 <= floor <= 1:
            raise InputError(f"coadapt: floor must be a number from 0 to 1; got {floor}")
        for group, weight in (weights or {}).items():
            if not 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
                raise InputError(
                    f"coadapt: the weight of {group!r} must be between {1 / _MOST_WEIGHT:g} and {_MOST_WEIGHT:g}; got {weight}"
                )
        for group, quota in (quotas or {}).items():
            if not 0 <= quota < math.inf or quota != int(quota):
                raise InputError(
                    f"coadapt: the quota of {group!r} must be a whole number of GPUs; got {quota}"
                )
        self.growth, self.horizon_s, self.hysteresis = growth, horizon_s, hysteresis
        self.change_s, self.min_run_s, self.every_s = change_s, min_run_s, every_s
        self.patience, self.least_wait_s, self.half_life_s = patience, least_wait_s, half_life_s
        self.weights, self.quotas = dict(weights or {}), dict(quotas or {})
        self.floor, self.slack_h, self.on_time = floor, slack_h, on_time
        self.reserve_after = reserve_after

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Chooses one option per job from ``snapshot`` and ``curves``.

        Usage by user is kept in ``memory``; ``rng`` is not used.
        """
        now = snapshot.now
        kept = self._usage(snapshot, memory)
        jobs: list[JobView] = []
        staying: list[JobView] = []
        allocations: dict[str, Allocation] = {}
        reasons: dict[str, Reason] = {}
        for job in snapshot if snapshot.nodes else ():
            if gpus_needed(job.spec):
                stays = self._stays(job, now) or in_slice(job, memory.kept, now)
                (staying if stays else jobs).append(job)
            elif not job.target:
                allocations[job.id] = as_requested(job.spec)
                reasons[job.id] = Reason(code="free", text="Running. It needs no GPUs.")
        if not jobs:
            # they may be moved again when they are older
            wake_at = now + self.every_s if any(not is_rigid(job) for job in staying) else None
            return Proposal(allocations=allocations, reasons=reasons, memory=kept, wake_at=wake_at)
        found = offers(snapshot, curves, jobs, growth=self.growth)
        # what an administrator has set counts, for those it was set for
        quotas = {**self.quotas, **snapshot.quotas}
        asked = self._request(quotas)
        reserved = reservations(Scene(snapshot, curves, found, staying, memory.kept, asked))
        kept |= {k: v for k, v in reserved.written().items() if v != memory.kept.get(k)}
        places = dict(reserved.starts)
        if places:
            for name, target in places.items():
                reasons[name] = started(gpus_of(target, snapshot.active[name].spec))
            jobs = [job for job in jobs if job.id not in places]
            found = reduced(offers(snapshot, curves, jobs, growth=self.growth), snapshot, places)
        cost_s = np.array([self.change_s if job.change_cost_s is None else job.change_cost_s for job in jobs])
        usage = kept.get(USAGE, {}).get("by", {})
        remarks: dict[int, str] = {}
        fill = backfill(found, snapshot, reserved, asked)
        books = Books.opened(memory.kept.get(SHARES), now, slack_h=self.slack_h)
        if self.floor > 0 and jobs and several_parties([*jobs, *staying], self.weights):
            answer, value, allowed, notes = self._between_users(
                found, staying, cost_s, snapshot, usage, quotas, reserved, fill, books
            )
            remarks = share_remarks(found, answer.choice, books, self.weights)
        else:
            value, notes = self._value(found, cost_s, now, usage, fill.reserved)
            problem = fill.without(Problem(value, found.kind, found.size, found.capacity), found)
            allowed = within_quotas(problem, jobs, quotas, staying)
            answer = solve(allowed)
        if books.written() != memory.kept.get(SHARES):
            kept[SHARES] = books.written()
        notes |= fill.back | {r: reserved.notes[j.id] for r, j in enumerate(jobs) if j.id in reserved.notes}
        for row in found.dropped:
            notes[row] = f"{notes[row]} {NOT_FINITE}" if row in notes else NOT_FINITE
        explainer = Explainer(found, value, answer.choice, allowed.value)
        for row in np.flatnonzero(answer.choice != found.current).tolist():
            job = jobs[row]
            if answer.choice[row] or job.target:
                allocations[job.id] = self._allocation(found, row, int(answer.choice[row]))
        chosen = {row: target for row, target in fill.pinned.items() if answer.choice[row]}
        places |= {jobs[row].id: target for row, target in chosen.items()}
        changing = [*allocations, *reserved.starts]
        allocations = {name: given for name, given in allocations.items() if name not in places}
        rows = {job.id: row for row, job in enumerate(jobs)}
        for job in displaced(snapshot, places, changing, jobs) if places else ():
            allocations[job.id] = self._allocation(found, rows[job.id], int(answer.choice[rows[job.id]]))
        for row, job in enumerate(jobs):
            if (
                job.id in allocations
                or job.id in places
                or (not job.target and job.waited_s(now) < 2 * self.every_s)
                or row in notes
            ):
                reasons[job.id] = explainer.reason(row, notes.get(row) or remarks.get(row, ""))
        return Proposal(
            allocations=allocations,
            placements=places,
            fixed=frozenset(job.id for job in staying),
            reasons=reasons,
            memory=kept,
            wake_at=min(now + self.every_s, reserved.next_at(now))
            if reserved.made or self._looks_again(found, answer.choice, staying)
            else None,
            price={t: round(x, 6) for t, x in zip(found.types, answer.price, strict=True)},
            forecasts=self._forecasts(
                found,
                answer.choice,
                cost_s,
                [bool(allocations.get(job.id)) or job.id in places for job in jobs],
            ),
        )

    def latest_start(
        self, snapshot: Snapshot, curves: Curves, kept: Mapping[str, Any], name: str
    ) -> LatestStart | None:
        """Returns when a waiting job would start at the latest, by the jobs that are there; None: nothing is reserved here.

        Args:
            snapshot: the cluster at this moment.
            curves: scaling curve of each active job, by job id.
            kept: the policy's memory.
            name: id of the job.
        """
        job = snapshot.active.get(name)
        if job is None or job.target or not gpus_needed(job.spec) or self.reserve_after >= _MOST:
            return None
        needing = [each for each in snapshot if gpus_needed(each.spec)]
        staying = [each for each in needing if self._stays(each, snapshot.now)]
        jobs = [each for each in needing if not self._stays(each, snapshot.now)]
        found = offers(snapshot, curves, jobs, growth=self.growth)
        asked = self._request({**self.quotas, **snapshot.quotas})
        return latest_start(Scene(snapshot, curves, found, staying, kept, asked), jobs.index(job))

    def _request(self, quotas: Mapping[str, int]) -> Request:
        return Request(
            self.reserve_after, self.least_wait_s, self.every_s, self.change_s, self.min_run_s, quotas
        )

    def _looks_again(self, found: Offers, choice: Ints, staying: list[JobView]) -> bool:
        """Whether time alone could change anything: not where nobody has or gets anything, nor where nobody waits and all are
        as large as they will ever be."""
        waits = not choice.all()
        if waits:
            return bool(staying or choice.any() or (found.current != 0).any())
        return any(not is_rigid(job) for job in [*found.jobs, *staying])

    def _forecasts(
        self, found: Offers, choice: Ints, cost_s: Floats, changed: list[bool]
    ) -> dict[str, Forecast]:
        """When jobs will end that were given something else."""
        if not any(changed):
            return {}
        ends = ends_s(found, self.p if 0 < self.p < 1 else USUAL)
        said = {
            job.id: forecast(found, choice, row, ends, float(cost_s[row]))
            for row, job in enumerate(found.jobs)
            if changed[row]
        }
        return {job: one for job, one in said.items() if one is not None}

    def _stays(self, job: JobView, now: float) -> bool:
        """A job that is not to be touched now: it may not be preempted, or has only just been given what it has."""
        if not job.target or job.phase not in HOLDING:
            return False
        young = job.changed_at is not None and now - job.changed_at < self.min_run_s
        return not job.spec.preemptible or young

    def _usage(self, snapshot: Snapshot, memory: Memory) -> dict[str, Any]:
        """The policy's memory: usage by user, where weights make it count."""
        if not self.weights:
            return {}
        before = memory.kept.get(USAGE) or {}
        jobs = list(snapshot)
        used = aged_usage(before.get("by"), jobs, before.get("at"), snapshot.now, self.half_life_s)
        return {USAGE: {"at": snapshot.now, "by": used}}

    def _between_users(
        self,
        found: Offers,
        staying: list[JobView],
        cost_s: Floats,
        snapshot: Snapshot,
        usage: Mapping[str, float],
        quotas: Mapping[str, int],
        reserved: Reserved,
        fill: Backfill,
        books: Books,
    ) -> tuple[Answer, Floats, Problem, dict[int, str]]:
        """The decision while several users have jobs: shares first, then worth by lengths that are believed."""
        now = snapshot.now
        parties = [party_of(job.spec, self.weights) for job in found.jobs]
        trusted, notes = believed(found, now, snapshot.free_gpus)
        # between users priorities count as far as an administrator granted them, and nothing is put first
        public, after_s = self._worth(trusted, cost_s, now, usage, priorities=False, on_time=self.on_time)
        public = with_margin(trusted, public, cost_s, self.horizon_s)
        private = public * priority_factors(found.jobs)[:, None]
        private[:, 0] = 0.0
        if snapshot.priorities:
            public = public * granted_factors(found.jobs, snapshot.priorities)[:, None]
            public[:, 0] = 0.0
        first = put_first(
            trusted,
            private,
            after_s,
            now,
            patience=self.patience,
            least_wait_s=self.least_wait_s,
            reserved=fill.reserved,
        )
        claimed = claims(found, staying, self.weights, quotas, reserved.overdue_gpus(found, parties), now)
        targets = books.targets(claimed, sum(found.capacity), floor=self.floor, ready={})
        problem = Problem(public, found.kind, found.size, found.capacity)
        options = np.isfinite(within_quotas(problem, found.jobs, quotas, staying).value[:, 1:])
        able = [bool(row.any()) for row in options]
        over = beyond_share(found, parties, books.due, fill.reserved, claimed, able)
        problem = fill.without(problem, found, over)
        allowed = within_quotas(problem, found.jobs, quotas, staying)
        inside = np.where(np.isfinite(allowed.value), private, -np.inf)
        answer = solve_for_parties(allowed, inside, parties, targets)
        books.note(parties, found.size[answer.choice])
        return answer, private, allowed, {**notes, **first, **over}

    def _value(
        self,
        found: Offers,
        cost_s: Floats,
        now: float,
        usage: Mapping[str, float],
        reserved: Collection[int] = (),
    ) -> tuple[Floats, dict[int, str]]:
        """What options are worth, with starving jobs and deadlines put first; and what is to be said about jobs."""
        value, after_s = self._worth(found, cost_s, now, usage)
        notes = put_first(
            found,
            value,
            after_s,
            now,
            patience=self.patience,
            least_wait_s=self.least_wait_s,
            reserved=reserved,
        )
        return value, notes

    def _worth(
        self,
        found: Offers,
        cost_s: Floats,
        now: float,
        usage: Mapping[str, float],
        *,
        priorities: bool = True,
        on_time: float = 0.0,
    ) -> tuple[Floats, Floats]:
        """What options are worth by the objective, and the seconds to the end with each."""
        jobs = found.jobs
        age_s = np.array([now - job.submitted_at for job in jobs])
        after_s = found.after_s(cost_s)
        value = worth(
            self.objective,
            found,
            discounted(found, cost_s, self.horizon_s, self.hysteresis),
            after_s,
            age_s,
            cost_s,
            p=self.p,
            weights=job_weights(jobs, self.weights, usage, priorities=priorities),
            on_time=on_time,
        )
        return value, after_s

    def _allocation(self, found: Offers, row: int, option: int) -> Allocation:
        spec = found.jobs[row].spec
        if not option:
            return Allocation()
        gpu_type = found.types[found.kind[option]]
        if not spec.elastic or spec.batch is None or len(spec.roles) > 1:
            return as_requested(spec, gpu_type)
        return workers(int(found.size[option]) // spec.gpus_per_replica, gpu_type)
