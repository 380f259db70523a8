"""Sia: goodput on mixed clusters, by an integer program over the configurations of each GPU type.

Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling" (SOSP 2023), in the
form of the authors' released simulator. With G[j, c] the goodput of job j in configuration c over the smallest of
its row, every round minimises

    sum A[j, c] x[j, c] + no_allocation * (jobs without a configuration)
    A[j, c] = (G[j, c] r)^p,  p = -0.5,  r = 1 for the configuration the job has, else
              max(age - restarts * restart_s, 0) / (age + restart_s)       restarts = changes after the first start

**Configurations.** A configuration is 1, 2, 4, ... GPUs of one node, up to all of it, or some whole nodes, of one GPU
type. An elastic job may get twice the most replicas it was measured with; before its first measurement it gets the
smallest configuration of every type, all of equal goodput. A rigid job has one configuration per type, its requested
size on as few nodes as possible. A GPU type on which a job was never measured is projected from one on which it was
(``prediction.step_time.gpu_projection``).

**Program.** The choice is a binary program, solved by HiGHS:

    minimise  sum cost[j, c] x[j, c]                       x binary
    s.t.      sum_c x[j, c] <= 1                           every job: one configuration, or none
              sum gpus[c] x[j, c] <= capacity              every GPU type

Configurations without gain (cost >= 0) are not offered: leaving the job out is at least as good. HiGHS gives one
answer for one version and one input; its search is bounded by a count of nodes, never by time. Costs are whole
numbers, with which HiGHS prunes earlier; and the HiGHS of scipy 1.17 prints a line on standard output, whatever its
options say, where a heuristic's solution is not quite whole (ERGO-Code/HiGHS issue 2783): with costs in fractions
once in a thousand programs, with whole ones never in 6,400.

**Nodes.** The program counts GPUs per type only; nodes are chosen afterwards, by the rules of the paper: an
allocation smaller than a node does not span nodes, a larger one takes whole nodes, and where that is not possible
jobs are moved. Jobs are placed in order of size, the largest first. A job that keeps its configuration has a claim to
its place. A job without a place takes GPUs that are not claimed, else those where it displaces the fewest GPUs; the
displaced jobs are smaller and are placed later. With sizes and nodes that are powers of two this always succeeds; a
job of another size that fits no single node is spread over the emptiest nodes. A job whose restart is under way keeps
its place.

As released: A is rounded to two digits, so that small differences do not count; r is 1 until a job is as old as its
restart takes; what a restart takes is known by task.

Where we deviate, and why:
- Jobs that may not be preempted keep their GPUs; the program divides the rest.
- Among configurations that are equal after rounding a job keeps the one it has, and else one is drawn: the released
  solver's pick is arbitrary, and moves a workload's average JCT by 2 to 3%.
- A restart of a task that was not published takes what was measured of the job, before that ``restart_s``.
- Workers and GPUs only, as published: jobs with parameter servers are refused, CPU and memory are ignored.
- Where decisions are made on events, it asks to be woken after ``every_s``, since growth waits for measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from coadapt.configure import Curve
from coadapt.errors import InputError
from coadapt.model import NOWHERE, Placement, Reason, Slot
from coadapt.model.snapshot import HOLDING, JobView, Phase, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng


class Config(NamedTuple):
    """A number of GPUs of one type on a number of nodes."""

    gpu_type: str
    nodes: int
    gpus: int

    def __str__(self) -> str:
        return f"{self.gpus} {self.gpu_type} GPU{'s' if self.gpus > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Row:
    """A job's configurations, their goodput over the smallest of them, and which of them it has."""

    job: JobView
    configs: tuple[Config, ...]
    gains: tuple[float, ...]
    current: Config | None

    def gain(self, config: Config) -> float:
        """Goodput of each configuration over that of the slowest."""
        return self.gains[self.configs.index(config)]

    @property
    def best(self) -> Config | None:
        """The fastest configuration."""
        return max(self.configs, key=self.gain, default=None)


def configurations(snapshot: Snapshot) -> dict[str, list[Config]]:
    """By GPU type, from the smallest on; of nodes that differ the largest count first."""
    sizes: dict[str, list[int]] = {}
    for view in snapshot.nodes.values():
        if view.node.gpus:
            sizes.setdefault(view.node.gpu_type, []).append(view.node.gpus)
    found: dict[str, list[Config]] = {}
    for gpu_type, nodes in sizes.items():
        nodes.sort(reverse=True)
        parts = [2**i for i in range(nodes[0].bit_length()) if 2**i < nodes[0]]
        found[gpu_type] = [Config(gpu_type, 1, gpus) for gpus in parts]
        found[gpu_type] += [Config(gpu_type, n, sum(nodes[:n])) for n in range(1, len(nodes) + 1)]
    return found


def row_of(job: JobView, curve: Curve, configs: Mapping[str, Sequence[Config]]) -> Row:
    """Returns the job's row of the goodput matrix. The slowest type of a rigid job counts as many as it has GPUs."""
    spec, unit = job.spec, job.spec.gpus_per_replica
    if len(spec.roles) > 1:
        raise InputError(
            f"policy 'sia' supports workers only; job {job.id!r} also has the role {spec.roles[1].name!r}"
        )
    if not unit:
        raise InputError(f"policy 'sia' supports GPU jobs only; a replica of job {job.id!r} needs no GPU")
    allowed = {name: of for name, of in configs.items() if not spec.gpu_types or name in spec.gpu_types}
    rigid = is_rigid(job)
    if rigid:
        offered = [_requested(name, of, spec.requested * unit) for name, of in allowed.items()]
    else:
        offered = [c for of in allowed.values() for c in _sizes(job, curve, of)]
    kept = {c: g for c, g in zip(offered, _goodputs(curve, offered, unit), strict=True) if g > 0}
    scale = (spec.requested * unit if rigid else 1) / min(kept.values(), default=1.0)
    has = (job.target.gpu_type, job.target.replicas * unit)
    current = next((c for c in kept if (c.gpu_type, c.gpus) == has), None)
    return Row(job, tuple(kept), tuple(g * scale for g in kept.values()), current)


def is_rigid(job: JobView) -> bool:
    """One size only: asked for so, or nothing is known about other sizes."""
    return not job.spec.elastic or job.spec.batch is None


def _sizes(job: JobView, curve: Curve, configs: Sequence[Config]) -> list[Config]:
    """Those within the job's bounds and not beyond twice what was measured, where its curve ends."""
    spec, unit = job.spec, job.spec.gpus_per_replica
    most = min(2 * curve.max_profiled_replicas, spec.worker.max)
    if spec.batch is not None:
        most = min(most, spec.batch.max // spec.batch.per_gpu_min)
    able = [c for c in configs if c.gpus % unit == 0 and spec.worker.min <= c.gpus // unit <= spec.worker.max]
    # the smallest is always offered, also where one step from what was measured would be larger than that
    return [c for i, c in enumerate(able) if i == 0 or c.gpus // unit <= most]


def _requested(gpu_type: str, configs: Sequence[Config], gpus: int) -> Config:
    nodes = next((config.nodes for config in configs if config.gpus >= gpus), configs[-1].nodes)
    return Config(gpu_type, nodes, gpus)


def _goodputs(curve: Curve, configs: Sequence[Config], unit: int) -> list[float]:
    """Of each configuration (those of a type stand together); 1 of all before anything is known."""
    if not curve.fitted:
        return [1.0] * len(configs)
    found: list[float] = []
    for gpu_type in dict.fromkeys(config.gpu_type for config in configs):
        of = [config for config in configs if config.gpu_type == gpu_type]
        replicas = np.array([c.gpus // unit for c in of])
        nodes = np.minimum([c.nodes for c in of], replicas)
        found += curve.goodput(nodes, replicas, gpu_type).tolist()
    return found


class Choice(NamedTuple):
    """One configuration offered to one job."""

    job: int
    gpu_type: str
    gpus: int
    cost: int


def solve(
    choices: Sequence[Choice], capacity: Mapping[str, int], *, gap: float, nodes: int
) -> list[int] | None:
    """Solves the binary program.

    Returns the indices of the choices taken, in order; None if the solver found no solution.

    Args:
        choices: the configurations offered to the jobs.
        capacity: GPUs by type.
        gap: relative distance to the optimum at which the solver may stop.
        nodes: most nodes of the search tree.
    """
    useful = [
        i for i, choice in enumerate(choices) if choice.cost < 0 and choice.gpus <= capacity[choice.gpu_type]
    ]
    if not useful:
        return []
    # imported here: it takes longer than many a command that never solves anything
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    offered = [choices[i] for i in useful]
    jobs = {job: row for row, job in enumerate(dict.fromkeys(choice.job for choice in offered))}
    types = {name: len(jobs) + row for row, name in enumerate(capacity)}
    rows = np.array([jobs[c.job] for c in offered] + [types[c.gpu_type] for c in offered])
    amounts = np.array([1.0] * len(offered) + [float(c.gpus) for c in offered])
    columns = np.tile(np.arange(len(offered)), 2)
    matrix = csr_array((amounts, (rows, columns)), shape=(len(jobs) + len(types), len(offered)))
    limits = np.array([1.0] * len(jobs) + [float(capacity[name]) for name in types])
    result = milp(
        np.array([float(c.cost) for c in offered]),
        integrality=np.ones(len(offered), dtype=np.int_),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, ub=limits),
        options={"mip_rel_gap": gap, "node_limit": nodes},
    )
    if result.x is None:
        return None
    return [i for i, share in zip(useful, result.x.tolist(), strict=True) if share > 0.5]


class Wish(NamedTuple):
    """A job, the GPUs it was given, GPUs of one replica, and where it is if it keeps what it has (else nowhere)."""

    job: str
    gpus: int
    unit: int
    at: Placement

    @property
    def held(self) -> dict[str, int]:
        """GPUs that the job holds, by node."""
        return {slot.node: slot.replicas * self.unit for slot in self.at.slots}


def place(wishes: Sequence[Wish], free: Mapping[str, int], gpu_type: str) -> dict[str, Placement]:
    """A placement for every wish that fits; ``free`` are the GPUs by node of the type, in cluster order."""
    left, claimed = dict(free), dict.fromkeys(free, 0)
    for wish in wishes:
        _add(claimed, wish.held, 1)
    placed: dict[str, Placement] = {}
    # of equal sizes those with a place first, so that only smaller ones ever lose theirs
    for wish in sorted(wishes, key=lambda wish: (-wish.gpus, not wish.at)):
        counts, at = wish.held, wish.at
        _add(claimed, counts, -1)
        if not at or any(left[node] < gpus for node, gpus in counts.items()):
            counts = _find(wish, left, claimed)
            slots = [
                Slot(node=n, replicas=counts[n] // wish.unit, gpu_type=gpu_type) for n in left if n in counts
            ]
            at = Placement(slots=tuple(slots))
        if sum(counts.values()) == wish.gpus:
            _add(left, counts, -1)
            placed[wish.job] = at
    return placed


def _add(to: dict[str, int], counts: Mapping[str, int], sign: int) -> None:
    for node, gpus in counts.items():
        to[node] += sign * gpus


def _find(wish: Wish, left: Mapping[str, int], claimed: Mapping[str, int]) -> dict[str, int]:
    """GPUs by node: of one node if one has room, else of the emptiest; fewer than wished where there is no room."""

    def fit(node: str) -> tuple[int, int]:
        unclaimed = left[node] - claimed[node]
        return max(wish.gpus - unclaimed, 0), unclaimed

    enough = [node for node in left if left[node] >= wish.gpus]
    if enough:
        return {min(enough, key=fit): wish.gpus}
    counts: dict[str, int] = {}
    rest = wish.gpus
    for node in sorted(left, key=lambda node: (-left[node], claimed[node])):
        counts[node] = min(rest, left[node] // wish.unit * wish.unit)
        rest -= counts[node]
    return {node: gpus for node, gpus in counts.items() if gpus}


#: Seconds that a restart is assumed to take, by task, as released (its simulator charges others).
RESTART_S = {
    "bert": 120.0,
    "cifar10": 30.0,
    "deepspeech2": 25.0,
    "imagenet": 250.0,
    "ncf": 30.0,
    "yolov3": 45.0,
}
#: Parts of the last significant digit in which costs are counted; smaller parts break ties.
_PARTS = 10_000
_STAY = 10


class SiaPolicy(BasePolicy):
    """Chooses one configuration per job by a binary program.

    Args:
        p: exponent of the goodputs; lower is fairer.
        no_allocation: cost of a job without GPUs; 1 is the cost at its slowest configuration.
        restart_s: assumed seconds of a restart, until one of the job was measured.
        restart_s_of: the same by profile, known from the start; None: the published values.
        digits: decimals to which costs are rounded.
        clip: largest value that a configuration may count.
        gap: relative distance to the optimum at which the solver may stop.
        solver_nodes: most nodes of the solver's search tree.
        every_s: seconds to the next decision if nothing happens before.
    """

    name = "sia"
    order = 80
    help = "Sia: goodput on mixed clusters, by an integer program over the configurations of each GPU type."
    option_help: ClassVar[dict[str, str]] = {
        "p": "exponent of the goodputs; lower is fairer",
        "no_allocation": "value of a job without GPUs, relative to its slowest configuration",
        "restart_s": "assumed seconds of a restart until one of the job was measured",
        "restart_s_of": "assumed seconds of a restart by profile; none: as published",
        "digits": "decimals of a job's value that the solver sees",
        "clip": "upper limit of the value of a configuration",
        "gap": "relative gap to the optimum at which the solver may stop",
        "solver_nodes": "maximum number of branch-and-bound nodes of the solver",
        "every_s": "without --interval: seconds until the next decision, which uses new measurements",
    }
    placer = "packed"
    adapts_batch = True
    chooses_size = True
    step_time_model = "pollux"

    def __init__(
        self,
        *,
        p: float = -0.5,
        no_allocation: float = 1.1,
        restart_s: float = 30.0,
        restart_s_of: Mapping[str, float] | None = None,
        digits: int = 2,
        clip: float = 3000.0,
        gap: float = 1e-4,
        solver_nodes: int = 10_000,
        every_s: float = 60.0,
    ) -> None:
        if not math.isfinite(p) or p == 0:
            raise InputError(f"sia: p must be a number other than 0; got {p}")
        if not 1 <= digits <= 6 or not 1 <= solver_nodes <= 10**9:
            raise InputError(
                f"sia: digits must be 1 to 6, solver_nodes 1 to 1e9; got {digits}, {solver_nodes}"
            )
        known = dict(RESTART_S if restart_s_of is None else restart_s_of)
        above, others = (no_allocation, clip), (restart_s, gap, *known.values())
        if not all(0 < x <= 1e9 for x in above) or not all(0 <= x <= 1e9 for x in others):
            raise InputError(
                "sia: no_allocation and clip must be above 0, restart_s, restart_s_of and gap not negative, all at most 1e9;"
                f" got {no_allocation}, {clip}, {restart_s}, {restart_s_of}, {gap}"
            )
        if not 1 <= every_s <= 1e9:
            raise InputError(f"sia: every_s must be a number from 1 to 1e9; got {every_s}")
        self.p, self.no_allocation, self.digits, self.clip = p, no_allocation, digits, clip
        self.restart_s, self.restart_s_of = restart_s, known
        self.gap, self.solver_nodes, self.every_s = gap, solver_nodes, every_s

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Solves the program for ``snapshot`` and ``curves`` and places the result.

        ``rng`` draws among equal configurations; ``memory`` is not used.
        """
        moving = [job for job in snapshot if not _pinned(job, snapshot)]
        if not moving or not snapshot.nodes:
            return Proposal(wake_at=self._wake_at(snapshot))
        free = _free(moving, snapshot)
        configs = configurations(snapshot)
        rows = [row_of(job, curves[job.id], configs) for job in moving]
        chosen = self._chosen(rows, free, snapshot, rng())
        if chosen is None:
            return Proposal(wake_at=self._wake_at(snapshot))
        targets = _places(rows, chosen, free, snapshot)
        placements, reasons = {}, {}
        for row, config in zip(rows, chosen, strict=True):
            name, target = row.job.id, targets[row.job.id]
            if target != row.job.target:
                placements[name], reasons[name] = target, _reason(row, config, target)
        held = any(targets.values()) or any(job.target for job in snapshot)
        # if no job has or gets GPUs, only an event can change that
        wake_at = self._wake_at(snapshot) if held else None
        return Proposal(placements=placements, reasons=reasons, wake_at=wake_at)

    def _wake_at(self, snapshot: Snapshot) -> float | None:
        """Later, if anything may have changed by then that is not an event: measurements, or the end of a restart."""
        waits = any(not is_rigid(job) or job.phase in _RESTARTING for job in snapshot)
        return snapshot.now + self.every_s if waits and snapshot.nodes else None

    def _chosen(
        self, rows: Sequence[Row], free: Mapping[str, int], snapshot: Snapshot, rng: np.random.Generator
    ) -> list[Config | None] | None:
        """The configuration of each row, None for a job left out; None at all if the solver has no answer."""
        capacity: dict[str, int] = {}
        for name, view in snapshot.nodes.items():
            capacity[view.node.gpu_type] = capacity.get(view.node.gpu_type, 0) + free[name]
        choices: list[Choice] = []
        configs: list[Config] = []
        for number, row in enumerate(rows):
            draws = rng.integers(_STAY, size=len(row.configs)).tolist()
            for config, cost, draw in zip(row.configs, self._costs(row, snapshot.now), draws, strict=True):
                choices.append(Choice(number, config.gpu_type, config.gpus, cost + draw))
                configs.append(config)
        taken = solve(choices, capacity, gap=self.gap, nodes=self.solver_nodes)
        if taken is None:
            return None
        chosen: list[Config | None] = [None] * len(rows)
        for i in taken:
            chosen[choices[i].job] = configs[i]
        return chosen

    def _costs(self, row: Row, now: float) -> list[int]:
        """A - no_allocation of each configuration, in whole parts; with p > 0 more is better, and A counts negative."""
        gains = np.array(row.gains)
        kept = np.array([config == row.current for config in row.configs], dtype=np.bool_)
        if row.current is not None:
            gains = np.where(kept, gains, gains * self._restart_factor(row.job, now))
        with np.errstate(divide="ignore", over="ignore"):
            value = np.minimum(np.round(gains**self.p, self.digits), self.clip)
        cost = (value if self.p < 0 else -value) - self.no_allocation
        parts = np.rint(cost * 10**self.digits * _PARTS).astype(np.int64) - _STAY * kept
        return [int(each) for each in parts]

    def _restart_factor(self, job: JobView, now: float) -> float:
        cost_s = self.restart_s_of.get(job.spec.profile)
        if cost_s is None:
            cost_s = self.restart_s if job.change_cost_s is None else job.change_cost_s
        age = now - job.submitted_at
        if age < cost_s or age == 0:
            return 1.0
        return max(age - max(job.changes - 1, 0) * cost_s, 0.0) / (age + cost_s)


_RESTARTING = (Phase.STARTING, Phase.RESIZING, Phase.STOPPING)


def _pinned(job: JobView, snapshot: Snapshot) -> bool:
    """It may not be preempted, or its restart is under way and its nodes are still open: it keeps its place."""
    if job.target and job.phase in HOLDING and not job.spec.preemptible:
        return True
    here = bool(job.target) and all(slot.node in snapshot.nodes for slot in job.target.slots)
    return here and job.phase in _RESTARTING


def _free(moving: Sequence[JobView], snapshot: Snapshot) -> dict[str, int]:
    """GPUs by node that are not promised to a job which keeps its place."""
    free = {name: view.node.gpus - view.promised for name, view in snapshot.nodes.items()}
    for job in moving:
        for slot in job.target.slots:
            if slot.node in free:
                free[slot.node] += slot.replicas * job.spec.gpus_per_replica
    return free


def _places(
    rows: Sequence[Row], chosen: Sequence[Config | None], free: Mapping[str, int], snapshot: Snapshot
) -> dict[str, Placement]:
    """The target of every job that may move."""
    targets = {row.job.id: NOWHERE for row in rows}
    wishes: dict[str, list[Wish]] = {}
    for row, config in zip(rows, chosen, strict=True):
        if config is not None:
            target = row.job.target
            stays = config == row.current and all(slot.node in free for slot in target.slots)
            wish = Wish(row.job.id, config.gpus, row.job.spec.gpus_per_replica, target if stays else NOWHERE)
            wishes.setdefault(config.gpu_type, []).append(wish)
    for gpu_type, those in wishes.items():
        own = {name: free[name] for name, view in snapshot.nodes.items() if view.node.gpu_type == gpu_type}
        targets.update(place(those, own, gpu_type))
    return targets


def _reason(row: Row, config: Config | None, target: Placement) -> Reason:
    """Speed of its configuration relative to its slowest, and the fastest that it did not get."""
    best = row.best
    if config is None or not target:
        return Reason(code="outbid", text="Waiting. Other jobs gain more from its GPUs.")
    gain = row.gain(config)
    text = f"Running on {config}. It is {gain:.2f} times as fast there as in its slowest configuration."
    if best is not None and row.gain(best) > gain:
        text += (
            f" On {best} it would be {row.gain(best):.2f} times as fast, but other jobs gain more from those."
        )
    return Reason(code="goodput", text=text, numbers={"gpus": config.gpus, "gain": round(gain, 3)})
