"""Pollux: goodput-driven co-adaptation of GPUs and batch sizes.

Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning" (OSDI 2021), in
the form of the authors' released simulator. Every job is valued by its speedup, goodput(nodes, replicas)
over its goodput on the fair share of ceil(GPUs / jobs) GPUs; a genetic search (``genetic_search``) maximises the
power mean of the speedups with exponent p = -1. A job whose placement changes counts less:

    speedup * max(age - restarts * restart_s, 0) / (age + restart_s),   restarts = changes after the first start

A job starts with one replica and may grow to twice the most replicas it was measured with, since its curve
is not known beyond. At most one job that spans nodes is put on each node (``avoid_interference``).

Where we deviate, and why:
- Jobs that may not be preempted keep their GPUs; the search divides the rest.
- A rigid job is offered at its requested size (packed into free nodes) as a member of the first population:
  growing replica by replica, the published mutation would never arrive at a large fixed size.
- ``patience`` ends a search that has stopped improving; ``patience=0`` is the full 100 x 100 search.
- One GPU type only, as published: its curves know no types.
- Where decisions are made on events, it asks to be woken after ``every_s``, since growth waits for measurements.
- When only rigid jobs are active and all of them run, nothing can be gained and nothing is searched.

As released: the fair share is valued on ceil(nodes x share of one replica) nodes, i.e. one, however many GPUs it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coadapt.configure import Curve
from coadapt.errors import InputError
from coadapt.model import NOWHERE, Placement, Reason, Slot
from coadapt.model.snapshot import HOLDING, JobView, Snapshot
from coadapt.policies._base import BasePolicy, Curves, Memory, Proposal, Rng
from coadapt.policies.pollux.genetic_search import PATIENCE, Problem, carry_over, search

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]


class PolluxPolicy(BasePolicy):
    """Maximises the power mean of speedups by a genetic search.

    Args:
        p: exponent of the power mean of the speedups; lower is fairer.
        restart_s: assumed cost of a change of placement, in seconds.
        population: number of allocations that the search keeps.
        generations: most generations of one search.
        patience: generations without improvement that end the search; 0: never.
        tolerance: share by which the best fitness must grow to count as improved.
        avoid_interference: put at most one job that spans nodes on each node.
        published_repair: evict as the released code does where two distributed jobs meet on a node.
        max_nodes_per_job: most nodes that one job may span.
        every_s: seconds to the next decision if nothing happens before.
    """

    name = "pollux"
    order = 70
    help = "Pollux: goodput-driven co-adaptation of GPUs and batch sizes."
    option_help: ClassVar[dict[str, str]] = {
        "p": "exponent of the power mean of speedups; lower is fairer",
        "restart_s": "seconds that a change of placement is assumed to cost",
        "population": "number of allocations in the population of the search",
        "generations": "maximum number of generations of the search",
        "patience": "generations without improvement that end the search; 0: never",
        "tolerance": "relative growth of the best that counts as improvement",
        "avoid_interference": "allow at most one multi-node job on each node",
        "published_repair": "where two multi-node jobs share a node, also move the jobs after them, as published",
        "max_nodes_per_job": "maximum number of nodes of one job",
        "every_s": "without --interval: seconds until the next decision, which uses new measurements",
    }
    placer = "packed"
    adapts_batch = True
    chooses_size = True
    step_time_model = "pollux"

    def __init__(
        self,
        *,
        p: float = -1.0,
        restart_s: float = 30.0,
        population: int = 100,
        generations: int = 100,
        patience: int = PATIENCE,
        tolerance: float = 1e-3,
        avoid_interference: bool = True,
        published_repair: bool = True,
        max_nodes_per_job: int = 16,
        every_s: float = 60.0,
    ) -> None:
        if not every_s > 0:
            raise InputError(f"pollux: every_s must be above 0; got {every_s}")
        if (
            min(population, generations, max_nodes_per_job) < 1
            or patience < 0
            or restart_s < 0
            or not math.isfinite(p)
        ):
            raise InputError(
                "pollux: population, generations and max_nodes_per_job must be at least 1, patience and restart_s"
                f" not negative, p a number; got {population}, {generations}, {max_nodes_per_job}, {patience}, {restart_s}, {p}"
            )
        self.p, self.restart_s = p, restart_s
        self.population, self.generations = population, generations
        self.patience, self.tolerance = patience or None, tolerance
        self.avoid_interference, self.published_repair = avoid_interference, published_repair
        self.max_nodes_per_job, self.every_s = max_nodes_per_job, every_s

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Searches for the best allocation of ``snapshot`` under ``curves``.

        The search starts from the last front, kept in ``memory.warm``, and draws from ``rng``.
        """
        jobs = [job for job in snapshot if job.spec.preemptible or job.phase not in HOLDING]
        if not jobs or not snapshot.nodes:
            return Proposal()
        wake_at = snapshot.now + self.every_s
        if all(job.target and _rigid(job) for job in jobs):
            return Proposal(warm=memory.warm, wake_at=wake_at)
        jobs.sort(key=lambda job: (job.attained_gpu_s(snapshot.now), job.order))
        names, nodes = [job.id for job in jobs], list(snapshot.nodes)
        problem = self._problem(snapshot, jobs, nodes, curves)
        found = search(
            problem,
            self._first(problem, jobs, memory, names, nodes),
            rng(),
            pop_size=self.population,
            generations=self.generations,
            p=self.p,
            patience=self.patience,
            tolerance=self.tolerance,
        )
        placements = _placements(found.best, problem.current, jobs, nodes, snapshot)
        return Proposal(
            placements=placements,
            reasons={name: _reason(problem, found.best, names.index(name)) for name in placements},
            warm=(found.front, names, nodes),
            wake_at=wake_at if found.best.any() else None,
        )

    def _problem(
        self, snapshot: Snapshot, jobs: Sequence[JobView], nodes: Sequence[str], curves: Curves
    ) -> Problem:
        views = list(snapshot.nodes.values())
        if len({view.node.gpu_type for view in views}) > 1:
            raise InputError("policy 'pollux' supports one GPU type; this cluster has several")
        index = {name: i for i, name in enumerate(nodes)}
        capacity = np.array([view.node.gpus - view.promised for view in views], dtype=np.int64)
        current = np.zeros((len(jobs), len(nodes)), dtype=np.int64)
        for row, job in enumerate(jobs):
            for slot in job.target.slots:
                current[row, index[slot.node]] += slot.replicas
                capacity[index[slot.node]] += slot.replicas * job.spec.gpus_per_replica
        gpus = int(capacity.sum())
        limit = min(self.max_nodes_per_job, len(nodes))
        most = np.array([self._most(job, curves[job.id], gpus) for job in jobs], dtype=np.int64)
        speedup = np.zeros((len(jobs), limit + 1, int(most.max()) + 1))
        for row, job in enumerate(jobs):
            share = job.spec.gpus_per_replica / gpus if gpus else 1.0
            table = _speedups(
                curves[job.id], share, len(jobs), len(nodes), speedup.shape[1:], views[0].node.gpu_type
            )
            speedup[row] = table * share * len(nodes)
        age = np.array([snapshot.now - job.submitted_at for job in jobs])
        restarts = np.array([max(job.changes - 1, 0) for job in jobs])
        return Problem(
            speedup=speedup,
            current=current,
            restart_factor=np.maximum(age - restarts * self.restart_s, 0) / (age + self.restart_s),
            max_replicas=most,
            min_replicas=np.array([job.spec.requested if _rigid(job) else 0 for job in jobs]),
            gpus_per_replica=np.array([job.spec.gpus_per_replica for job in jobs]),
            capacity=capacity,
            avoid_interference=self.avoid_interference,
            published_repair=self.published_repair,
            max_nodes_per_job=self.max_nodes_per_job,
        )

    @staticmethod
    def _most(job: JobView, curve: Curve, gpus: int) -> int:
        """Most replicas the job may get now: twice what was measured, for its curve ends there."""
        spec = job.spec
        if _rigid(job):
            return spec.requested
        most = min(max(2 * curve.max_profiled_replicas, 1), spec.worker.max, gpus // spec.gpus_per_replica)
        if spec.batch is not None:
            most = min(most, spec.batch.max // spec.batch.per_gpu_min)
        return max(most, 1)

    def _first(
        self, problem: Problem, jobs: Sequence[JobView], memory: Memory, names: list[str], nodes: list[str]
    ) -> Ints:
        """The first population: last round's front, else the current allocation; rigid jobs packed in."""
        first: Ints = problem.current[None]
        if memory.warm is not None:
            front, old_names, old_nodes = memory.warm
            first = carry_over(front, old_names, names, old_nodes, nodes)
        packed = _with_rigid(problem, jobs)
        return first if packed is None else np.concatenate([first, packed[None]])


def _rigid(job: JobView) -> bool:
    """One size only: asked for so, or nothing is known about other sizes."""
    return not job.spec.elastic or job.spec.batch is None


def _speedups(
    curve: Curve, share: float, jobs: int, nodes: int, shape: Sequence[int], gpu_type: str
) -> Floats:
    """Speedup over the fair share for every (nodes, replicas) of ``shape``."""
    fair = math.ceil(1 / (share * jobs))
    replicas = np.arange(shape[1])
    if curve.fitted:
        base = float(curve.goodput(math.ceil(nodes * share), fair, gpu_type))
        if base > 0:
            return curve.goodput(np.arange(shape[0])[:, None], replicas, gpu_type) / base
    return np.broadcast_to(replicas / fair, tuple(shape)).copy()


def _with_rigid(problem: Problem, jobs: Sequence[JobView]) -> Ints | None:
    """The current allocation with waiting rigid jobs packed into what is free, in order; None if there are none."""
    x = problem.current.copy()
    free = problem.capacity - (x * problem.gpus_per_replica[:, None]).sum(axis=0)
    changed = False
    for row, job in enumerate(jobs):
        if not _rigid(job) or job.target:
            continue
        room = free // job.spec.gpus_per_replica
        if room.sum() < job.spec.requested:
            continue
        left = job.spec.requested
        enough = np.flatnonzero(room >= left)
        order = (
            enough[np.argsort(room[enough], kind="stable")]
            if enough.size
            else np.argsort(-room, kind="stable")
        )
        for node in order:
            x[row, node] = min(left, int(room[node]))
            left -= x[row, node]
        free = free - x[row] * job.spec.gpus_per_replica
        changed = True
    return x if changed else None


def _placements(
    best: Ints, current: Ints, jobs: Sequence[JobView], nodes: Sequence[str], snapshot: Snapshot
) -> dict[str, Placement]:
    """The rows that differ from what runs, as placements."""
    changed: dict[str, Placement] = {}
    for row in np.flatnonzero((best != current).any(axis=1)).tolist():
        counts = best[row].tolist()
        slots = tuple(
            Slot(node=node, replicas=count, gpu_type=snapshot.nodes[node].node.gpu_type)
            for node, count in zip(nodes, counts, strict=True)
            if count
        )
        changed[jobs[row].id] = Placement(slots=slots) if slots else NOWHERE
    return changed


def _reason(problem: Problem, best: Ints, row: int) -> Reason:
    """The speedup over the fair share that the job's new size brings."""
    nodes, replicas = int((best[row] > 0).sum()), int(best[row].sum())
    if not replicas:
        return Reason(code="outbid", text="Waiting. Other jobs gain more from its GPUs.")
    unit = float(problem.gpus_per_replica[row]) / float(problem.capacity.sum()) * len(problem.capacity)
    speedup = float(problem.speedup[row, nodes, replicas]) / unit
    text = f"Running with {replicas} replicas on {nodes} nodes, {speedup:.2f} times as fast as on its fair share."
    return Reason(code="goodput", text=text, numbers={"replicas": replicas, "speedup": round(speedup, 3)})
