"""Measured step times of one task on one GPU type, read between the measured points.

As in the simulator of Pollux (Qiao et al., OSDI 2021), whose published figures depend on it:

1. A measured placement is taken as it is, linear in the per-GPU batch size. A placement is a cycle of
   workers per node: (4, 4, 3), (4, 3, 4) and (3, 4, 4) are one, named by its smallest rotation "344".
2. Any other placement is read by linear interpolation over (nodes, replicas, batch): a Delaunay
   triangulation, axes not rescaled, of the placements averaged by (nodes, replicas, batch) followed
   by the measurements at scale. Nodes count as at most 16. Points stay in the order of the original,
   because the triangulation of a grid is not unique and depends on it.
3. Where Pollux would stop (outside the measured range), we go on: below the smallest batch its time is
   kept; above the largest one computation grows in proportion and synchronisation stays; outside the
   triangulation the measured (nodes, replicas) with the nearest logarithms stands in.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Pollux measured up to 16 nodes and takes wider placements for as slow as these.
MOST_NODES = 16
#: Simplices flatter than this hold no volume.
_FLAT = 1e-11


class Timing(NamedTuple):
    """One measured row: where (a placement's digits, or "" at scale), how large, how long."""

    placement: str
    nodes: int
    replicas: int
    atomic_batch: int
    step_s: float
    sync_s: float


class _Line:
    """Step and sync time along the batch size."""

    def __init__(self, points: Iterable[tuple[int, float, float]]) -> None:
        self.batches, self.steps, self.syncs = (list(column) for column in zip(*sorted(points), strict=True))

    def at(self, batch: int) -> tuple[float, float]:
        batches, steps, syncs = self.batches, self.steps, self.syncs
        right = bisect_right(batches, batch)
        if right == 0:
            return steps[0], syncs[0]
        if right == len(batches):
            growth = (batch - batches[-1]) / batches[-1]
            return steps[-1] + growth * max(steps[-1] - syncs[-1], 0.0), syncs[-1]
        left = right - 1
        part = (batch - batches[left]) / (batches[right] - batches[left])
        return (
            steps[left] + part * (steps[right] - steps[left]),
            syncs[left] + part * (syncs[right] - syncs[left]),
        )


class StepTimes:
    """Step times of one task on one GPU type; every answer is kept."""

    def __init__(self, placements: Iterable[Timing], at_scale: Iterable[Timing] = ()) -> None:
        self._placements = list(placements)
        self._at_scale = list(at_scale)
        by_name: dict[str, list[tuple[int, float, float]]] = {}
        for row in self._placements:
            by_name.setdefault(row.placement, []).append((row.atomic_batch, row.step_s, row.sync_s))
        self._measured = {name: _Line(points) for name, points in by_name.items()}
        self._kept: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}
        self._kept_between: dict[tuple[int, int, int], tuple[float, float]] = {}
        batches = [row.atomic_batch for row in self._placements]
        self.smallest_batch, self.largest_batch = min(batches), max(batches)
        self.max_workers = max(row.replicas for row in (*self._placements, *self._at_scale))

    def at(self, shape: tuple[int, ...], atomic_batch: int) -> tuple[float, float]:
        """(step_s, sync_s) of a step on ``shape`` workers per node."""
        key = (shape, atomic_batch)
        found = self._kept.get(key)
        if found is None:
            line = self._measured.get(smallest_rotation(shape))
            nodes = sum(1 for count in shape if count)
            found = line.at(atomic_batch) if line else self._between(nodes, sum(shape), atomic_batch)
            self._kept[key] = found
        return found

    def _between(self, nodes: int, replicas: int, batch: int) -> tuple[float, float]:
        key = (min(nodes, MOST_NODES), replicas, batch)
        found = self._kept_between.get(key)
        if found is None:
            step_s, sync_s = self._interpolator([key])[0]
            found = (float(step_s), float(sync_s)) if step_s == step_s else self._nearest(*key)
            self._kept_between[key] = found
        return found

    def _nearest(self, nodes: int, replicas: int, batch: int) -> tuple[float, float]:
        def distance(pair: tuple[int, int]) -> float:
            return math.log(pair[0] / nodes) ** 2 + math.log(pair[1] / replicas) ** 2

        return self._lines[min(self._lines, key=distance)].at(batch)

    @cached_property
    def _points(self) -> dict[tuple[int, int, int], tuple[float, float]]:
        """Times by (nodes, replicas, batch): averaged placements in sorted order, then those at scale."""
        groups: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        for row in self._placements:
            key = (row.nodes, row.replicas, row.atomic_batch)
            groups.setdefault(key, []).append((row.step_s, row.sync_s))
        points = {}
        for key in sorted(groups):
            steps, syncs = zip(*groups[key], strict=True)
            points[key] = (sum(steps) / len(steps), sum(syncs) / len(syncs))
        for row in self._at_scale:
            points.setdefault((row.nodes, row.replicas, row.atomic_batch), (row.step_s, row.sync_s))
        return points

    @cached_property
    def _lines(self) -> dict[tuple[int, int], _Line]:
        """Times along the batch by (nodes, replicas)."""
        groups: dict[tuple[int, int], list[tuple[int, float, float]]] = {}
        for (nodes, replicas, batch), (step_s, sync_s) in self._points.items():
            groups.setdefault((nodes, replicas), []).append((batch, step_s, sync_s))
        return {pair: _Line(points) for pair, points in groups.items()}

    @cached_property
    def _interpolator(self) -> Callable[[Sequence[tuple[int, int, int]]], npt.NDArray[np.float64]]:
        # Imported here: it takes longer than many a simulation, which needs no triangulation.
        from scipy.interpolate import LinearNDInterpolator
        from scipy.spatial import Delaunay

        mesh = Delaunay(np.array(list(self._points), float))
        # scipy would ask LAPACK for each simplex, and where threads compete for cores that takes a second.
        # A scipy that no longer looks here computes them itself: slower, not wrong.
        mesh._transform = _transforms(mesh.points[mesh.simplices])  # type: ignore[attr-defined]
        return LinearNDInterpolator(mesh, np.array(list(self._points.values())))


def _transforms(corners: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What scipy keeps as ``Delaunay.transform``: the inverse edge matrix and the last corner of each simplex.

    The inverse of three edges by cross products; a simplex without volume has NaN, as scipy wants it.
    """
    base = corners[:, 3]
    first, second, third = (corners[:, at] - base for at in range(3))
    rows = np.stack([np.cross(second, third), np.cross(third, first), np.cross(first, second)], axis=1)
    volumes = np.einsum("si,si->s", first, rows[:, 0])
    sizes = np.prod([np.linalg.norm(edge, axis=1) for edge in (first, second, third)], axis=0)
    volumes = np.where(np.abs(volumes) > _FLAT * sizes, volumes, np.nan)
    return np.concatenate([rows / volumes[:, None, None], base[:, None, :]], axis=1)


def smallest_rotation(shape: tuple[int, ...]) -> str:
    """The name of a placement: digits of its lexicographically smallest rotation; "" if none is defined."""
    digits = [count for count in shape if count]
    if len(digits) > 1:
        digits = min(digits[at:] + digits[:at] for at in range(len(digits)))
    return "".join(map(str, digits)) if digits and max(digits) < 10 else ""
