"""Measuring: repeated, interleaved, with the machine's load beside it (``measure``); target beside figure (``show``).

CPU time for computation, wall time for pauses and latencies. Alternatives that are compared take turns in
one run, so that a slow minute of the machine hits all of them. A figure is marked noisy when the spread of
its repeats (interquartile range over median) is above 10%, or another process kept a core busy meanwhile.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.smoke import is_set

_NOISY_SPREAD = 0.10


@dataclass(slots=True)
class Figure:
    """All repeats of one alternative."""

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    last: object = None

    @property
    def median_cpu_s(self) -> float:
        """Median CPU time of the repeats."""
        return statistics.median(self.cpu_s)

    @property
    def median_wall_s(self) -> float:
        """Median wall time of the repeats."""
        return statistics.median(self.wall_s)

    @property
    def noisy(self) -> bool:
        """True if the repeats disagree, or the machine was busy with something else."""
        if len(self.cpu_s) >= 4:
            low, _, high = statistics.quantiles(self.cpu_s, n=4)
            if (high - low) / max(self.median_cpu_s, 1e-12) > _NOISY_SPREAD:
                return True
        elif (
            len(self.cpu_s) > 1
            and (max(self.cpu_s) - min(self.cpu_s)) / max(self.median_cpu_s, 1e-12) > 2 * _NOISY_SPREAD
        ):
            return True
        return max(self.load) > (os.cpu_count() or 1)

    def __str__(self) -> str:
        mark = " (noisy)" if self.noisy else ""
        return f"{self.median_cpu_s:.3f} s CPU, median of {len(self.cpu_s)}, load {max(self.load):.1f}{mark}"


def measure(alternatives: Mapping[str, Callable[[], object]], *, repeats: int = 3) -> dict[str, Figure]:
    """Runs every alternative ``repeats`` times, in turns, and returns their figures."""
    figures = {name: Figure() for name in alternatives}
    for _ in range(repeats):
        for name, run in alternatives.items():
            wall, cpu = time.perf_counter(), time.process_time()
            figures[name].last = run()
            figures[name].cpu_s.append(time.process_time() - cpu)
            figures[name].wall_s.append(time.perf_counter() - wall)
            figures[name].load.append(os.getloadavg()[0])
    return figures


@dataclass(slots=True)
class Row:
    """A promise beside what was measured."""

    what: str
    figure: float
    must: float
    aim: float | None = None
    unit: str = ""
    note: str = ""
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the must holds."""
        return self.figure >= self.must if self.at_least else self.figure <= self.must

    @property
    def aimed(self) -> bool:
        """Whether the aim is reached."""
        if self.aim is None:
            return self.holds
        return self.figure >= self.aim if self.at_least else self.figure <= self.aim


def show(title: str, rows: list[Row]) -> bool:
    """Prints target beside figure; True if every must holds, and always in the smoke form, which promises nothing."""
    sign = {True: ">=", False: "<="}
    print(f"\n{title}" + (" (smoke: figures mean nothing)" if is_set() else ""))
    print(f"{'':2}{'what':<58} {'figure':>12} {'must':>12} {'aim':>12}")
    for row in rows:
        mark = "ok" if row.aimed else ("OK" if row.holds else "XX")
        must = f"{sign[row.at_least]} {row.must:g}{row.unit}"
        aim = f"{sign[row.at_least]} {row.aim:g}{row.unit}" if row.aim is not None else ""
        print(f"{mark} {row.what:<58} {row.figure:>11.4g}{row.unit} {must:>12} {aim:>12}  {row.note}")
    return is_set() or all(row.holds for row in rows)
