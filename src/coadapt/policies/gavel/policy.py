"""Gavel: time fractions by job and GPU type from an optimisation program, realised in rounds.

Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads" (OSDI 2020), in the form of
the authors' released simulator. A program (``programs``, ``assignments``) says which fraction of time each job should have on
each GPU type; ``rounds`` chooses the jobs of every round so that the fractions come true:

    priority of a job on a type = fraction due / fraction received       the greatest first, where its GPUs fit

A round ends after ``round_s``, or when its last job is through its whole steps, if rates are known exactly. Whoever arrives or
ends meanwhile is noticed then. Fractions are computed anew if a job came or left and ``recompute_s`` have passed.

**Objectives** (``objective``), in the words of the released code: max_min_fairness ("least attained service", the default),
finish_time_fairness, min_total_duration, max_sum_throughput (``cost``: per unit of money), water_filling, hierarchical
(entities are users: ``entities``), fifo, isolated, allox, gandiva. With ``aware`` off the program does not know rates
("heterogeneity-agnostic": ``max_min_fairness`` takes them all as 1, the others as that of the fastest type). With ``packed`` on
pairs of jobs share GPUs, where the rates of both are known.

Rates come from the jobs' curves. A job that was not measured yet counts as equally fast on all types; in a simulation the
policy knows the true rates, as published.

Where we deviate, and why:
- Jobs that may not be preempted keep their GPUs; rounds divide the rest. A job that is still starting when a round ends
  stays for the next one.
- Pairs fill GPUs that are left over only if the program gave them time (except under gandiva): the released code lists all
  pairs, which takes the square of the number of jobs in every round.
- Gandiva's and FIFO's draws, and the order of types without ``aware``, follow the released generators with ``seed``.
- A packed program works for jobs of several sizes (the released one does not): pairs have equal sizes.
- The end of a job that was never declared is taken to be 30 days away.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any, ClassVar, Literal

import numpy as np

from coadapt.configure import Curve, RateCurve
from coadapt.errors import InputError
from coadapt.model import NOWHERE, Allocation, Placement, Reason, Slot
from coadapt.model.snapshot import HOLDING, JobView, Phase, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng, as_requested, gpus_needed
from coadapt.policies.gavel import assignments, programs, rounds
from coadapt.policies.gavel.linear_program import FloatArray
from coadapt.policies.gavel.problem import Applicant, Problem, Row
from coadapt.policies.gavel.rounds import Candidate, Clock, Key, RowTime

Objective = Literal[
    "max_min_fairness",
    "finish_time_fairness",
    "min_total_duration",
    "max_sum_throughput",
    "water_filling",
    "hierarchical",
    "fifo",
    "isolated",
    "allox",
    "gandiva",
]
#: Types as the released simulator fills them, the fastest first; others follow in the order of the cluster.
_FASTEST_FIRST = ("v100", "p100", "k80")
#: Seconds to the end of a job that did not declare one.
_UNKNOWN_S = 30 * 86400.0
_ROW, _JOB, _STATE, _DRAWS = "row:", "job:", "gavel", "draws"
_NEVER = -1.0
_STARTING = (Phase.STARTING, Phase.RESIZING)


class GavelPolicy(BasePolicy):
    """Rounds that follow the time fractions of a program.

    Args:
        objective: the program.
        aware: the program knows how fast each job is on each GPU type.
        packed: pairs of jobs may share GPUs.
        round_s: seconds of a round.
        recompute_s: least seconds between two computations of the fractions.
        cost: max_sum_throughput counts steps per unit of money.
        prices: price of a GPU by type, in any unit; types without one cost 1.
        deadlines: max_sum_throughput meets deadlines first, if all of them can be met.
        entities: how hierarchical divides the share of a user among his jobs.
        alpha: share of the waiting jobs that allox looks at.
        seed: seed of the draws.
    """

    name = "gavel"
    order = 90
    help = (
        "Gavel: time fractions by job and GPU type from a program (max-min fairness and others), in rounds."
    )
    option_help: ClassVar[dict[str, str]] = {
        "objective": "the program; max_min_fairness is least attained service",
        "aware": "the program knows the speed of each job on each GPU type",
        "packed": "pairs of jobs may share GPUs, where their rates together are known",
        "round_s": "seconds of a round",
        "recompute_s": "minimum number of seconds between two computations of the time fractions",
        "cost": "max_sum_throughput: steps per unit of money",
        "prices": "price of a GPU by type; types that are not named cost 1",
        "deadlines": "max_sum_throughput: meet deadlines first, if all can be met",
        "entities": "hierarchical: divide a user's share among his jobs by weight (fairness) or in order (fifo)",
        "alpha": "allox: share of the waiting jobs that are considered",
        "seed": "seed of the draws of fifo and gandiva, and of the order of types",
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "gavel-agnostic": {"aware": False},
        "gavel-packed": {"packed": True},
        "gavel-ftf": {"objective": "finish_time_fairness"},
        "gavel-ftf-agnostic": {"objective": "finish_time_fairness", "aware": False},
        "gavel-makespan": {"objective": "min_total_duration"},
        "gavel-throughput": {"objective": "max_sum_throughput"},
        "gavel-cost": {"objective": "max_sum_throughput", "cost": True},
        "gavel-cost-slo": {"objective": "max_sum_throughput", "cost": True, "deadlines": True},
        "gavel-water-filling": {"objective": "water_filling"},
        "gavel-hierarchical": {"objective": "hierarchical"},
        "gavel-fifo": {"objective": "fifo"},
        "gavel-fifo-agnostic": {"objective": "fifo", "aware": False},
        "gavel-fifo-packed": {"objective": "fifo", "packed": True},
        "gavel-isolated": {"objective": "isolated", "aware": False},
        "allox": {"objective": "allox"},
        "gandiva": {"objective": "gandiva", "packed": True},
    }
    placer = "packed"
    adapts_batch = False
    chooses_size = False
    wants_truth = True

    def __init__(
        self,
        *,
        objective: Objective = "max_min_fairness",
        aware: bool = True,
        packed: bool = False,
        round_s: float = 360.0,
        recompute_s: float = 1920.0,
        cost: bool = False,
        prices: Mapping[str, float] | None = None,
        deadlines: bool = False,
        entities: Literal["fairness", "fifo"] = "fairness",
        alpha: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not 1 <= round_s <= 1e6 or not 0 <= recompute_s <= 1e9:
            raise InputError(
                f"gavel: round_s must be 1 to 1e6 and recompute_s 0 to 1e9 seconds; got {round_s}, {recompute_s}"
            )
        if not 0 < alpha <= 1:
            raise InputError(f"gavel: alpha must be above 0 and at most 1; got {alpha}")
        if not all(0 < price <= 1e9 for price in (prices or {}).values()):
            raise InputError(f"gavel: prices must be above 0 and at most 1e9; got {prices}")
        self.objective, self.aware = objective, aware
        self.packed = self.shares_gpus = packed or objective == "gandiva"
        self.round_s, self.recompute_s = round_s, recompute_s
        self.cost, self.prices, self.deadlines = cost, dict(prices or {}), deadlines
        self.entities, self.alpha, self.seed = entities, alpha, seed

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Begins a round if the last one is over; else nothing changes.

        What was used and is due is kept in ``memory``; draws follow ``seed`` and not ``rng``.
        """
        turn = _Turn(self, snapshot, curves, memory)
        if snapshot.now < turn.ends_at and turn.stands():
            return Proposal(wake_at=turn.ends_at, warm=memory.warm)
        return turn.begin()


class _Turn:
    """One decision."""

    def __init__(self, policy: GavelPolicy, snapshot: Snapshot, curves: Curves, memory: Memory) -> None:
        self.policy, self.snapshot, self.curves = policy, snapshot, curves
        self.kept, self.warm = memory.kept, memory.warm
        self.said: Mapping[str, Any] = self.kept.get(_STATE) or {}
        self.ends_at: float = self.said.get("ends_at", _NEVER)
        self.patch: dict[str, Any] = {}

    def stands(self) -> bool:
        """Whether the round goes on: some job that it began with still runs."""
        placed = self.snapshot.placed
        return any(name in placed for keys, _, _ in self.said.get("runs", ()) for name in keys)

    def begin(self) -> Proposal:
        """Books the last round and begins the next one."""
        policy, snapshot = self.policy, self.snapshot
        pinned = {
            job.id for job in snapshot if job.phase in HOLDING and job.target and not job.spec.preemptible
        }
        self.jobs = {job.id: job for job in snapshot if job.id not in pinned and gpus_needed(job.spec)}
        if policy.packed:
            for job in self.jobs.values():
                _check_workers_only(job)
        self._measure_nodes(pinned)
        if not any(self.room):
            return Proposal(warm=self.warm)  # only an event can change that
        self.half_s = policy.round_s / 2
        self.clock = self._clock()
        self._come_and_go()
        if not self.jobs:
            self.clock.computed_at = 0.0
            self._remember({}, _NEVER)
            return Proposal(memory=self.patch, warm=self.warm)
        last = self.clock.computed_at
        if self.clock.changed and (last == 0.0 or snapshot.now - last >= policy.recompute_s):
            self._compute()
        if policy.objective == "gandiva":
            self._list_all_pairs()
        runs = rounds.select(
            self.clock,
            self._candidates(),
            self.room,
            self._order(),
            fill=policy.objective != "fifo",
            kept=self._starting(),
        )
        rounds.leave(
            self.clock, [key for key, row in self.clock.rows.items() if _is_idle(key, row, runs, self.half_s)]
        )
        ends = {key: self._end(key, column) for key, column in runs.items()}
        ends_at = max(ends.values(), default=_NEVER)
        if not all(self._exact(name) for key in runs for name in key):
            ends_at = snapshot.now + policy.round_s
        self._remember({key: (column, ends[key]) for key, column in runs.items()}, ends_at)
        allocations, placements = self._places(runs)
        return Proposal(
            allocations=allocations,
            placements=placements,
            reasons=self._reasons(runs),
            memory=self.patch,
            warm=self.warm,
            wake_at=ends_at if runs else self._waits_until(),
        )

    def _waits_until(self) -> float | None:
        """When nobody runs: time is divided anew after a while; without a change only an event can help."""
        return self.clock.computed_at + self.policy.recompute_s if self.clock.changed else None

    # -- what is there -------------------------------------------------------------------------------

    def _measure_nodes(self, pinned: set[str]) -> None:
        """GPU types in the order of the alphabet, as released, and their GPUs less those that nobody may take."""
        counts: dict[str, int] = {}
        for view in self.snapshot.nodes.values():
            if view.node.gpus:
                counts[view.node.gpu_type] = counts.get(view.node.gpu_type, 0) + view.node.gpus
        for name in pinned:
            job = self.snapshot.active[name]
            for slot in job.target.slots:
                if slot.gpu_type in counts:
                    counts[slot.gpu_type] -= slot.replicas * job.spec.role(slot.role).demand.gpus
        self.types = tuple(sorted(counts))
        self.room = [max(counts[name], 0) for name in self.types]
        first = [self.types.index(name) for name in _FASTEST_FIRST if name in counts]
        self.fastest_first = first + [t for t in range(len(self.types)) if t not in first]

    def _clock(self) -> Clock:
        """The clock as the last round left it, with what its jobs have used."""
        width = len(self.types)
        if list(self.types) != self.said.get("types", list(self.types)):
            return Clock()  # other columns: the count begins anew
        clock = Clock(
            total=list(self.said.get("total", ())),
            computed_at=self.said.get("computed_at", 0.0),
            changed=self.said.get("changed", True),
        )
        for name, value in self.kept.items():
            if name.startswith(_ROW):
                used, owed, due = value
                clock.rows[tuple(self._key(name))] = RowTime(
                    list(used), list(owed), None if due is None else list(due)
                )
        begun_at = self.said.get("begun_at", 0.0)
        for keys, column, end in self.said.get("runs", ()):
            if column < width:
                rounds.book(clock, tuple(keys), column, min(end, self.snapshot.now) - begun_at)
        return clock

    def _key(self, name: str) -> Sequence[str]:
        members: Sequence[str] = self.said["members"].get(name) or (name[len(_ROW) :],)
        return members

    def _come_and_go(self) -> None:
        """Jobs that ended since the last round leave, new ones enter in order of arrival."""
        clock = self.clock
        gone = [key for key in clock.rows if any(name not in self.jobs for name in key)]
        rounds.leave(clock, gone)
        new = [name for name in self.jobs if (name,) not in clock.rows]
        for name in new:
            rounds.enter(clock, (name,), len(self.types), self.half_s)
        if gone or new or self.room != self.said.get("room"):
            clock.changed = True
        # rows in order of arrival, pairs behind the jobs
        order = {name: i for i, name in enumerate(self.jobs)}
        clock.rows = dict(sorted(clock.rows.items(), key=lambda row: (len(row[0]), order[row[0][-1]])))

    def _rate(self, name: str, gpu_type: str) -> float:
        """Rate of a job on a GPU type: steps per second, or work per second where steps are not counted."""
        curve = self.curves[name]
        if not self._may_use(name, gpu_type):
            return 0.0
        if isinstance(curve, RateCurve):
            return curve.steps_per_s(gpu_type)
        return _goodput(curve, self.jobs[name], gpu_type)

    def _may_use(self, name: str, gpu_type: str) -> bool:
        """Whether the job may run on the type, and all of the type's GPUs are enough."""
        spec = self.jobs[name].spec
        allowed = not spec.gpu_types or gpu_type in spec.gpu_types
        return allowed and self._gpus(name) <= self.room[self.types.index(gpu_type)]

    def _left(self, name: str) -> float:
        curve = self.curves[name]
        if isinstance(curve, RateCurve):
            return curve.steps_left
        left = curve.remaining_work()
        return left if math.isfinite(left) else _UNKNOWN_S * max(self.rates[name])

    def _exact(self, name: str) -> bool:
        return isinstance(self.curves[name], RateCurve)

    @property
    def rates(self) -> dict[str, tuple[float, ...]]:
        """Rates of all jobs, read once a decision."""
        if not hasattr(self, "_rates"):
            self._rates = {name: tuple(self._rate(name, t) for t in self.types) for name in self.jobs}
        return self._rates

    # -- fractions -----------------------------------------------------------------------------------

    def _compute(self) -> None:
        """New fractions, from the program."""
        now = self.snapshot.now
        # one that can run nowhere would get nothing, and so would everybody that is compared with it
        names = [name for name in self.jobs if self._can_run(name)]
        applicants = []
        for name in names:
            job = self.jobs[name]
            isolated_s, rate, left = self.kept.get(_JOB + name) or (0.0, 0.0, 0.0)
            if rate:
                isolated_s += (left - self._left(name)) / rate
            deadline_s = job.spec.deadline_s
            applicants.append(
                Applicant(
                    id=name,
                    gpus=gpus_needed(job.spec),
                    rates=self._seen_rates(name),
                    steps_left=max(self._left(name), 1e-9),
                    age_s=now - job.submitted_at,
                    weight=float(max(job.spec.priority, 0) or 1),
                    isolated_s=isolated_s,
                    due_s=None if deadline_s is None else job.submitted_at + deadline_s - now,
                    entity=job.spec.user,
                )
            )
        problem = Problem(
            jobs=applicants, types=self.types, capacity=tuple(self.room), pairs=self._pairs(names)
        )
        if self.policy.objective == "finish_time_fairness":
            own = (problem.rates * problem.even()).sum(axis=1).tolist()
            for applicant, rate in zip(applicants, own, strict=True):
                self.patch[_JOB + applicant.id] = [applicant.isolated_s, rate, self._left(applicant.id)]
        x = self._program(problem) if names else np.zeros((0, len(self.types)))
        keys = [tuple(names[j] for j in row.members) for row in problem.rows]
        fractions = {key: row for key, row in zip(keys, x.tolist(), strict=True) if len(key) == 1 or any(row)}
        for key in fractions:
            rounds.enter(self.clock, key, len(self.types), self.half_s)
        rounds.compute(self.clock, fractions, now, len(self.types), self.half_s)

    def _can_run(self, name: str) -> bool:
        return any(rate > 0 for rate in self.rates[name])

    def _seen_rates(self, name: str) -> tuple[float, ...]:
        """Rates as the program may know them."""
        rates = self.rates[name]
        if self.policy.aware or self.policy.objective in ("isolated", "gandiva", "fifo", "allox"):
            return rates
        alike = 1.0
        if self.policy.objective not in ("max_min_fairness", "water_filling", "hierarchical"):
            alike = next(rates[t] for t in self.fastest_first if rates[t] > 0)
        return tuple(alike if self._may_use(name, kind) else 0.0 for kind in self.types)

    def _pairs(self, names: Sequence[str]) -> list[Row]:
        """Pairs of jobs of one size whose rates together are known somewhere."""
        if not self.policy.packed:
            return []
        able = [(j, name) for j, name in enumerate(names) if self._exact(name)]
        found = []
        for (i, one), (j, other) in combinations(able, 2):
            if self._gpus(one) == self._gpus(other):
                rates = tuple(
                    tuple(self._beside(name, partner, t) for t in self.types)
                    for name, partner in ((one, other), (other, one))
                )
                # gandiva draws pairs before it knows whether they can run, and gives up those that cannot
                able_to = any(all(of[t] > 0 for of in rates) for t in range(len(self.types)))
                if able_to or self.policy.objective == "gandiva":
                    found.append(Row((i, j), rates))
        return found

    def _beside(self, name: str, partner: str, gpu_type: str) -> float:
        curve = self.curves[name]
        if not isinstance(curve, RateCurve) or not self._may_use(name, gpu_type):
            return 0.0
        return curve.steps_per_s(gpu_type, self.jobs[partner].spec.profile)

    def _gpus(self, name: str) -> int:
        return gpus_needed(self.jobs[name].spec)

    def _program(self, problem: Problem) -> FloatArray:
        """The fractions of the objective."""
        policy = self.policy
        prices = [policy.prices.get(name, 1.0) for name in self.types] if policy.cost else None
        simple: dict[str, Callable[[Problem], FloatArray]] = {
            "max_min_fairness": programs.max_min_fairness,
            "finish_time_fairness": programs.finish_time_fairness,
            "min_total_duration": programs.min_total_duration,
            "max_sum_throughput": lambda p: programs.max_sum_throughput(
                p, prices=prices, deadlines=policy.deadlines
            ),
            "water_filling": programs.water_filling,
            "hierarchical": lambda p: programs.water_filling(p, entities=policy.entities),
            "isolated": assignments.isolated,
        }
        if policy.objective in simple:
            return simple[policy.objective](problem)
        if policy.objective == "fifo" and policy.aware:
            return assignments.fifo_packed(problem) if policy.packed else assignments.fifo_fastest(problem)
        held: Mapping[str, Any] = self.said.get("held") or {}
        types = {name: self.types.index(kind) for name, kind in held.items() if kind in self.types}
        if policy.objective == "allox":
            known = {job.id: types[job.id] for job in problem.jobs if job.id in types}
            x = assignments.allox(problem, known, alpha=policy.alpha)
            self.held = {
                job.id: self.types[x[j].argmax()] for j, job in enumerate(problem.jobs) if x[j].any()
            }
            return x
        generator = _generator(self.said.get("generator"), policy.seed)
        if policy.objective == "fifo":
            queue = assignments.FirstCome(types, generator)
            x = queue.fractions(problem)
            self.held = {name: self.types[t] for name, t in queue.held.items()}
        else:
            pairs = assignments.RandomPairs(held, generator)
            x = pairs.fractions(problem)
            self.held = pairs.partners
        self.generator = _encoded(generator)
        return x

    # -- rounds --------------------------------------------------------------------------------------

    def _starting(self) -> dict[Key, int]:
        """Rows of the last round whose jobs are still starting: to stop one now would waste its start."""
        found: dict[Key, int] = {}
        for keys, _, _ in self.said.get("runs", ()):
            key = tuple(keys)
            jobs = [self.jobs[name] for name in key if name in self.jobs and self.jobs[name].target]
            if (
                key in self.clock.rows
                and len(jobs) == len(key)
                and any(job.phase in _STARTING for job in jobs)
            ):
                kind = jobs[0].target.gpu_type
                if (
                    kind in self.types
                    and sum(j.target_gpus for j in jobs[:1]) <= self.room[self.types.index(kind)]
                ):
                    found[key] = self.types.index(kind)
        return found

    def _list_all_pairs(self) -> None:
        """All pairs, as released: those that the draw gave no time may still fill GPUs that are left over.

        A job is followed by its pairs with those that came before it.
        """
        known = self.clock.rows
        rows: dict[Key, RowTime] = {}
        width, half_s = len(self.types), self.half_s
        for j, name in enumerate(self.jobs):
            rows[name,] = known[name,]
            for other in list(self.jobs)[:j]:
                key = (other, name)
                if key in known:
                    rows[key] = known[key]
                elif self._gpus(other) == self._gpus(name) and self._exact(other) and self._exact(name):
                    new = known[name,].due is None or known[other,].due is None
                    rows[key] = RowTime([half_s] * width, [0.0] * width, None if new else [0.0] * width)
        self.clock.rows = rows

    def _candidates(self) -> list[Candidate]:
        found = []
        for key in self.clock.rows:
            if len(key) == 1:
                runs_on = tuple(rate > 0 for rate in self.rates[key[0]])
            else:
                one, other = key
                runs_on = tuple(
                    self._beside(one, other, t) > 0 and self._beside(other, one, t) > 0 for t in self.types
                )
            found.append(Candidate(key=key, gpus=self._gpus(key[0]), runs_on=runs_on))
        return found

    def _order(self) -> list[int]:
        """Types in the order in which they are filled; drawn anew each round if speeds are not known."""
        order = list(self.fastest_first)
        policy = self.policy
        if policy.aware and policy.objective != "isolated":
            return order
        drawn: int = self.kept.get(_DRAWS) or 0
        generator, made = self.warm if isinstance(self.warm, tuple) else (None, -1)
        if not isinstance(generator, Random) or made != drawn:
            generator = Random(policy.seed + 5)
            for _ in range(drawn):
                generator.shuffle(list(order))
        generator.shuffle(order)
        self.patch[_DRAWS], self.warm = drawn + 1, (generator, drawn + 1)
        return order

    def _end(self, key: Key, column: int) -> float:
        """When a row is through its round: whole steps, as many as fit; both members of a pair at the later end."""
        now, kind = self.snapshot.now, self.types[column]
        ends = []
        for name in key:
            rate = self.rates[name][column] if len(key) == 1 else self._beside(name, _other(key, name), kind)
            if not self._exact(name):
                ends.append(now + self.policy.round_s)
                continue
            steps = min(float(max(math.floor(rate * self.policy.round_s), 1)), self._left(name))
            ends.append(now + steps / rate)
        return max(ends)

    def _remember(self, runs: Mapping[Key, tuple[int, float]], ends_at: float) -> None:
        """Writes what the next round needs: rows that changed, and the round itself."""
        rows = {_ROW + "+".join(key): (key, row) for key, row in self.clock.rows.items()}
        for name in self.kept:
            if (name.startswith(_ROW) and name not in rows) or (
                name.startswith(_JOB) and name[len(_JOB) :] not in self.jobs
            ):
                self.patch[name] = None
        for name, (_, row) in rows.items():
            value = [row.used, row.owed, row.due]
            if self.kept.get(name) != value:
                self.patch[name] = value
        self.patch[_STATE] = {
            "types": list(self.types),
            "room": self.room,
            "members": {name: list(key) for name, (key, _) in rows.items() if len(key) > 1},
            "total": self.clock.total,
            "computed_at": self.clock.computed_at,
            "changed": self.clock.changed,
            "begun_at": self.snapshot.now,
            "ends_at": ends_at,
            "runs": [[list(key), column, end] for key, (column, end) in runs.items()],
            "held": getattr(self, "held", self.said.get("held")),
            "generator": getattr(self, "generator", self.said.get("generator")),
        }

    def _places(self, runs: Mapping[Key, int]) -> tuple[dict[str, Allocation], dict[str, Placement]]:
        """What changes: counts for the placer; with pairs the places themselves, because both must get the same GPUs."""
        running = {name: (key, column) for key, column in runs.items() for name in key}
        # a list: the order of changes is part of the decision
        stop = [name for name, job in self.jobs.items() if name not in running and job.target]
        if self.policy.packed:
            placements = {
                name: at for name, at in self._own_places(runs).items() if at != self.jobs[name].target
            }
            return {}, {**placements, **dict.fromkeys(stop, NOWHERE)}
        allocations = dict.fromkeys(stop, Allocation())
        for name, (_, column) in running.items():
            job, kind = self.jobs[name], self.types[column]
            if not job.target or job.target.gpu_type != kind:
                allocations[name] = as_requested(job.spec, kind)
        return allocations, {}

    def _own_places(self, runs: Mapping[Key, int]) -> dict[str, Placement]:
        """A place for every row; rows that ran together on the type stay, of the others the largest come first."""
        left = {name: view.node.gpus for name, view in self.snapshot.nodes.items()}
        for job in self.snapshot.placed.values():
            if job.id not in self.jobs:
                for slot in job.target.slots:
                    if slot.node in left:
                        left[slot.node] -= slot.replicas * job.spec.role(slot.role).demand.gpus
        placements: dict[str, Placement] = {}
        moving = []
        for key, column in runs.items():
            group = "+".join(key) if len(key) > 1 else ""
            at = self.jobs[key[0]].target
            alike = at.gpu_type == self.types[column] and all(slot.group == group for slot in at.slots)
            if at and alike and all(self.jobs[name].target == at for name in key):
                self._take(left, at, key[0])
                placements.update(dict.fromkeys(key, at))
            else:
                moving.append((key, column, group))
        for key, column, group in sorted(moving, key=lambda each: -self._gpus(each[0][0])):
            at = self._find(left, key[0], self.types[column], group)
            self._take(left, at, key[0])
            placements.update(dict.fromkeys(key, at))
        return placements

    def _take(self, left: dict[str, int], at: Placement, name: str) -> None:
        for slot in at.slots:
            left[slot.node] -= slot.replicas * self.jobs[name].spec.gpus_per_replica

    def _find(self, left: Mapping[str, int], name: str, gpu_type: str, group: str) -> Placement:
        """The fullest node that takes all of it, else the emptiest nodes; nowhere if there is not enough."""
        spec = self.jobs[name].spec
        each, rest = spec.gpus_per_replica, spec.requested
        nodes = [n for n in left if self.snapshot.nodes[n].node.gpu_type == gpu_type]
        enough = [n for n in nodes if left[n] // each >= rest]
        order = [min(enough, key=lambda n: left[n])] if enough else sorted(nodes, key=lambda n: -left[n])
        slots = []
        for node in order:
            count = min(rest, left[node] // each)
            if count:
                share = 0.5 if group else 1.0
                slots.append(Slot(node=node, replicas=count, gpu_type=gpu_type, share=share, group=group))
                rest -= count
        names = list(self.snapshot.nodes)
        slots.sort(key=lambda slot: names.index(slot.node))
        return Placement(slots=tuple(slots)) if not rest else NOWHERE

    def _reasons(self, runs: Mapping[Key, int]) -> dict[str, Reason]:
        """Why each job runs where, or waits, with what it is due and what it had."""
        reasons: dict[str, Reason] = {}
        where = {name: (key, column) for key, column in runs.items() for name in key}
        for name, job in self.jobs.items():
            if name in where:
                key, column = where[name]
                row = self.clock.rows[key]
                due = (row.due or [0.0] * len(self.types))[column]
                partner = f" It shares them with job {_other(key, name)}." if len(key) > 1 else ""
                numbers = {"fraction_due": round(due, 4), "used_s": round(row.used[column], 1)}
                text = f"Running on {self.types[column]}: {due:.0%} of the time there is due to it.{partner}"
                reasons[name] = Reason(code="round", text=text, numbers=numbers)
            elif (name,) in self.clock.rows and self.clock.rows[name,].due is None:
                reasons[name] = Reason(
                    code="waiting", text="Waiting. It came after time was last divided.", numbers={}
                )
            elif not job.target or name not in where:
                due = sum(self.clock.rows[name,].due or [])
                text = f"Waiting for a later round: {due:.0%} of the time is due to it."
                reasons[name] = Reason(code="waiting", text=text, numbers={"fraction_due": round(due, 4)})
        return reasons


def _check_workers_only(job: JobView) -> None:
    """Raises InputError for a job that a policy which shares GPUs cannot place."""
    if len(job.spec.roles) > 1 or not job.spec.worker.demand.only_gpus():
        raise InputError(
            f"policy 'gavel' with packed supports jobs that need workers and GPUs only; job {job.id!r} needs more"
        )


def _goodput(curve: Curve, job: JobView, gpu_type: str) -> float:
    """Work per second at the requested size, packed; 1 on every type before anything was measured."""
    if not curve.fitted:
        return 1.0
    replicas = job.spec.requested
    return max(float(np.asarray(curve.goodput(1, replicas, gpu_type))), 0.0)


def _is_idle(key: Key, row: RowTime, runs: Mapping[Key, int], half_s: float) -> bool:
    """A pair that need not be remembered: it has no time, does not run and never did."""
    if len(key) == 1 or key in runs:
        return False
    return not any(row.due or ()) and not any(row.owed) and all(used == half_s for used in row.used)


def _other(key: Key, name: str) -> str:
    return key[1] if key[0] == name else key[0]


def _generator(state: str | None, seed: int) -> Random:
    """The generator as the last draw left it."""
    generator = Random(seed)
    if state is not None:
        numbers = np.frombuffer(base64.b85decode(state), dtype="<u4").tolist()
        generator.setstate((3, tuple(numbers), None))
    return generator


def _encoded(generator: Random) -> str:
    return base64.b85encode(np.array(generator.getstate()[1], dtype="<u4").tobytes()).decode()
