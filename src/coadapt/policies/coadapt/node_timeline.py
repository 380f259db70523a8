"""The nodes over time: what is taken on each of them, by which job and until when; where and when another job fits.

Times are half-open intervals. Whether a job fits from ``start`` to ``end`` is judged by everything that is taken at any moment
of that time, added up: this errs on the safe side where two holds follow each other. All resources of the nodes count:
GPUs by type, CPU, memory and extras.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coadapt.model import NOWHERE, JobSpec, Placement, Resources, Slot
from coadapt.model.resources import ROUNDING
from coadapt.model.snapshot import Snapshot

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int_]
_GPUS = "gpus"
#: More replicas than any node takes.
_MANY = 1 << 30


class Hold(NamedTuple):
    """A job has ``target`` from ``start`` to ``end``."""

    job: str
    spec: JobSpec
    target: Placement
    start: float
    end: float


class NodeTimeline:
    """Holds of jobs on the nodes of ``snapshot`` that take replicas; nodes that do not (drained, lost) do not count."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = [view.node for view in snapshot.nodes.values()]
        self._index = {node.name: number for number, node in enumerate(self._nodes)}
        self._types = np.array([node.gpu_type for node in self._nodes])
        self._gpus = np.array([node.gpus for node in self._nodes], dtype=np.float64)
        self.holds: dict[str, Hold] = {}
        self._limits: dict[str, Floats] = {_GPUS: self._gpus}
        self._columns: tuple[Floats, Floats, Ints, list[str]] | None = None
        self._amounts: dict[str, Floats] = {}

    def add(self, hold: Hold) -> None:
        """Adds a hold; a job has one at a time."""
        self.holds[hold.job] = hold
        self._columns = None

    def remove(self, job: str) -> None:
        """Removes the hold of a job, if it has one."""
        if self.holds.pop(job, None) is not None:
            self._columns = None

    def placement(self, slots: Iterable[Sequence[Any]]) -> Placement:
        """The placement of ``[node, replicas, role]``; nowhere if a node of it does not take replicas any more."""
        found = []
        for node, replicas, role in slots:
            if node not in self._index:
                return NOWHERE
            gpu_type = self._nodes[self._index[node]].gpu_type
            found.append(Slot(node=node, replicas=replicas, gpu_type=gpu_type, role=role))
        return Placement(slots=tuple(found))

    def free(self, name: str, start: float, end: float) -> Floats:
        """Amount of a resource that no hold takes at any moment from ``start`` to ``end``, by node."""
        starts, ends, nodes, _ = self._table()
        if name not in self._limits:
            self._limits[name] = np.array([node.limit(name) for node in self._nodes])
        if not nodes.size:
            return self._limits[name].copy()
        there = (ends > start) & (starts < end)
        used = np.bincount(nodes, weights=self._amount(name) * there, minlength=len(self._nodes))
        return np.asarray(self._limits[name] - used)

    def fit(
        self,
        spec: JobSpec,
        workers: int,
        start: float,
        end: float,
        *,
        idle: Floats | None = None,
        gpu_types: Collection[str] = (),
    ) -> Placement | None:
        """Places ``workers`` workers and the least of the other roles for this time; None where they do not fit.

        Args:
            spec: the job.
            workers: replicas of the first role.
            start: beginning of the time.
            end: its end; may be infinite.
            idle: GPUs that are free just now, by node; nodes with more of them come first.
            gpu_types: use one of these types only; empty: any that the job may use.
        """
        counts = [workers, *(role.min for role in spec.roles[1:])]
        names = {_GPUS, *(name for role in spec.roles for name, _ in role.demand.others(1))}
        free = {name: self.free(name, start, end) for name in names}
        slots: list[Slot] = []
        for role, count in zip(spec.roles, counts, strict=True):
            if not count:
                continue
            chosen = self._choose(spec, role.demand, count, free, idle, gpu_types, first=not slots)
            if chosen is None:
                return None
            for number, replicas in sorted(chosen.items()):
                node = self._nodes[number]
                slots.append(Slot(node=node.name, replicas=replicas, gpu_type=node.gpu_type, role=role.name))
                free[_GPUS][number] -= replicas * role.demand.gpus
                for name, amount in role.demand.others(replicas):
                    free[name][number] -= amount
        return Placement(slots=tuple(slots))

    def bears(self, spec: JobSpec, target: Placement, start: float, end: float) -> bool:
        """Whether exactly ``target`` is free for this time."""
        if any(slot.node not in self._index for slot in target.slots):
            return False
        need: dict[tuple[str, str], float] = {}
        for slot in target.slots:
            demand = spec.role(slot.role).demand
            for name, amount in ((_GPUS, float(slot.replicas * demand.gpus)), *demand.others(slot.replicas)):
                need[name, slot.node] = need.get((name, slot.node), 0.0) + amount
        free = {name: self.free(name, start, end) for name in {name for name, _ in need}}
        return all(
            amount <= free[name][self._index[node]] * ROUNDING + 1e-9 for (name, node), amount in need.items()
        )

    def first(
        self, spec: JobSpec, workers: int, now: float, length_s: float, before: float = math.inf
    ) -> tuple[float, Placement] | None:
        """The first moment from ``now`` on, and before ``before``, at which the job fits for so long, and where; None if there
        is none."""
        moments = sorted({hold.end for hold in self.holds.values() if now < hold.end < before})
        for at in [now, *moments] if now < before else []:
            target = self.fit(spec, workers, at, at + length_s)
            if target is not None:
                return at, target
        return None

    def endless(self, spec: JobSpec) -> list[str]:
        """Jobs that hold, without a known end, nodes which ``spec`` may use."""
        allowed = set(spec.gpu_types)
        return [
            hold.job
            for hold in self.holds.values()
            if math.isinf(hold.end)
            and any(
                slot.node in self._index and (not allowed or slot.gpu_type in allowed)
                for slot in hold.target.slots
            )
        ]

    # -- details -----------------------------------------------------------------------------------------

    def _table(self) -> tuple[Floats, Floats, Ints, list[str]]:
        """Start, end and node of every slot that is held."""
        if self._columns is None:
            rows = list(self._rows())
            starts = np.array([hold.start for hold, _ in rows])
            ends = np.array([hold.end for hold, _ in rows])
            nodes = np.array([self._index[slot.node] for _, slot in rows], dtype=np.int_)
            self._columns = starts, ends, nodes, [hold.job for hold, _ in rows]
            self._amounts = {}
        return self._columns

    def _rows(self) -> Iterable[tuple[Hold, Slot]]:
        for hold in self.holds.values():
            for slot in hold.target.slots:
                if slot.node in self._index:
                    yield hold, slot

    def _amount(self, name: str) -> Floats:
        if name not in self._amounts:
            found = []
            for hold, slot in self._rows():
                demand = hold.spec.role(slot.role).demand
                if name == _GPUS:
                    found.append(float(slot.replicas * demand.gpus))
                else:
                    found.append(dict(demand.others(slot.replicas)).get(name, 0.0))
            self._amounts[name] = np.array(found)
        return self._amounts[name]

    def _choose(
        self,
        spec: JobSpec,
        demand: Resources,
        count: int,
        free: dict[str, Floats],
        idle: Floats | None,
        gpu_types: Collection[str],
        *,
        first: bool,
    ) -> dict[int, int] | None:
        """Replicas by node: the tightest node that takes all, else the fewest nodes; all workers on one GPU type."""
        takes = _takes(demand, free, len(self._nodes))
        allowed = [
            t for t in dict.fromkeys(self._types.tolist()) if not spec.gpu_types or t in spec.gpu_types
        ]
        if gpu_types:
            allowed = [t for t in allowed if t in gpu_types]
        if not first:
            # further roles run on any node
            groups: Sequence[Ints] = [np.arange(len(self._nodes))]
        else:
            groups = [np.flatnonzero(self._types == each) for each in allowed]
        for group in groups:
            if takes[group].sum() >= count:
                return _spread(group.tolist(), takes, count, idle, demand.gpus)
        return None


def _takes(demand: Resources, free: dict[str, Floats], nodes: int) -> Ints:
    """Replicas that each node takes."""
    most = np.full(nodes, float(_MANY))
    if demand.gpus:
        most = np.minimum(most, np.floor(free[_GPUS] / demand.gpus))
    for name, amount in demand.others(1):
        if amount > 0:
            with np.errstate(invalid="ignore"):
                most = np.minimum(most, np.floor(free[name] * ROUNDING / amount))
    return np.asarray(np.maximum(most, 0), dtype=np.int_)


def _spread(group: Sequence[int], takes: Ints, count: int, idle: Floats | None, gpus: int) -> dict[int, int]:
    room = {node: int(takes[node]) for node in group if takes[node] > 0}
    spare = {node: 0 if idle is None else int(idle[node]) // max(gpus, 1) for node in room}
    chosen: dict[int, int] = {}
    while count:
        enough = [node for node, most in room.items() if most >= count]
        if enough:
            node = min(enough, key=lambda n: (spare[n] < count, room[n], -spare[n], n))
        else:
            node = max(room, key=lambda n: (min(spare[n], room[n]) if idle is not None else 0, room[n], -n))
        chosen[node] = min(room.pop(node), count)
        count -= chosen[node]
    return chosen
