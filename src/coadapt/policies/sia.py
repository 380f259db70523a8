"""Sia: goodput on mixed clusters, by an integer program over the configurations of each GPU type.

Jayaram Subramanya et al., "Sia: Heterogeneity-aware, goodput-optimized ML-cluster scheduling" (SOSP 2023), in the
form of the authors' released simulator. With G[j, c] the goodput of job j in configuration c over the smallest of
its row (``_sia_rows``), every round minimises

    sum A[j, c] x[j, c] + no_allocation * (jobs without a configuration)          (``_sia_program``)
    A[j, c] = (G[j, c] r)^p,  p = -0.5,  r = 1 for the configuration the job has, else
              max(age - restarts * restart_s, 0) / (age + restart_s)       restarts = changes after the first start

A GPU type that a job was never measured on is projected from one that it was (``predict.projection``). A job whose restart
is under way keeps its place. Nodes are chosen after the program, which counts GPUs only (``_sia_places``).

As released: A is rounded to two digits, so that small differences do not count; r is 1 until a job is as old as its
restart takes; what a restart takes is known by task.

Where we deviate, and why:
- Jobs that may not be preempted keep their GPUs; the program divides the rest.
- Among configurations that are equal after rounding a job keeps the one it has, and else one is drawn: the released
  solver's pick is arbitrary, and moves a workload's average JCT by 2 to 3%.
- A restart of a task that was not published takes what was measured of the job, before that ``restart_s``.
- Workers and GPUs only, as published: jobs with parameter servers are refused, CPU and memory are not looked at.
- Where decisions are made on events, it asks to be woken after ``every_s``, since growth waits for measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from coadapt.errors import InputError
from coadapt.model import NOWHERE, Placement, Reason
from coadapt.model.snapshot import HOLDING, JobView, Phase, Snapshot
from coadapt.policies._base import Curves, Memory, Proposal, Rng
from coadapt.policies._sia_places import Wish, place
from coadapt.policies._sia_program import Choice, solve
from coadapt.policies._sia_rows import Config, Row, configurations, is_rigid, row_of

#: Seconds that a restart is assumed to take, by task, as released (its simulator charges others).
RESTART_S = {
    "bert": 120.0,
    "cifar10": 30.0,
    "deepspeech2": 25.0,
    "imagenet": 250.0,
    "ncf": 30.0,
    "yolov3": 45.0,
}
#: Costs are counted in so many parts of the last digit that counts; fewer parts than that tell equals apart.
_PARTS = 10_000
_STAY = 10


class SiaPolicy:
    """``p``: exponent of the goodputs; ``no_allocation``: what a job without GPUs counts."""

    placer = "packed"
    adapts_batch = True
    chooses_size = True
    predictor = "published"

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
        """See ``Policy``."""
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
        # where nobody has anything and nobody gets anything, only an event can change that
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
    """How fast its configuration is beside its slowest, and the fastest that it did not get."""
    best = row.best
    if config is None or not target:
        return Reason(code="outbid", text="others gain more from its GPUs")
    gain = row.gain(config)
    text = f"{config}: {gain:.2f} times as fast as its slowest configuration"
    if best is not None and row.gain(best) > gain:
        text += f"; {best} would be {row.gain(best):.2f}, but others gain more from them"
    return Reason(code="goodput", text=text, numbers={"gpus": config.gpus, "gain": round(gain, 3)})
