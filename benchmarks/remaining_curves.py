"""Work left until a metric is reached: each validation curve held out, by its course alone and with the others as pool."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator

import numpy as np

from benchmarks.errors import errors
from benchmarks.measure import Row
from benchmarks.published import data_dir
from benchmarks.remaining_jobs import SHARES, Score
from coadapt.prediction.remaining.work import RemainingEvidence, remaining

#: (work, metric)
Points = list[tuple[float, float]]


def rows(task: str, with_pool: bool) -> list[Row]:
    """The figure of one task, whose metric rises: median error in percent of the total."""
    scores = list(held_out(task, rising=True, with_pool=with_pool))
    if not scores:
        return []
    answered = [each for each in scores if math.isfinite(each[1])]
    off = [100 * abs(found - true) / (true / (1 - share)) for share, found, true, _ in answered]
    held = 100 * float(np.mean([each[3] for each in scores]))
    note = f"answered {len(answered)} of {len(scores)}, rest 'not on this course'; 80% interval holds {held:.0f}%"
    if answered:
        note += f"; {errors([each[1] for each in answered], [each[2] for each in answered])}"
    how = "course and pool" if with_pool else "course alone"
    return [
        Row(
            what=f"work to a metric, {task}, {how} (of the total)",
            figure=float(np.median(off)) if off else math.nan,
            must=math.inf,
            unit="%",
            note=note,
        )
    ]


def held_out(task: str, *, rising: bool, with_pool: bool) -> Iterator[Score]:
    """Work left until the metric that was best at 40, 60, 80, 95 and 100% of the run, asked at all shares of that work."""
    curves: dict[str, Points] = {}
    for path in sorted((data_dir() / "pollux" / task).glob("validation-*.csv")):
        with path.open() as file:
            curves[path.stem] = [(float(r["progress"]), float(r["metric"])) for r in csv.DictReader(file)]
    for name, points in curves.items():
        metric = np.array([value for _, value in points])
        best = np.maximum.accumulate(metric) if rising else np.minimum.accumulate(metric)
        goals = {float(best[max(int(part * len(metric)) - 1, 0)]) for part in (0.4, 0.6, 0.8, 0.95, 1.0)}
        for goal in sorted(goals):
            total = _reached(points, goal, rising)
            others = [_reached(other, goal, rising) for key, other in curves.items() if key != name]
            past = tuple(each for each in others if each is not None) if with_pool else ()
            assert total is not None
            yield from _asked(points, total, goal, past, rising)


def _reached(points: Points, goal: float, rising: bool) -> float | None:
    return next((work for work, value in points if (value >= goal if rising else value <= goal)), None)


def _asked(
    points: Points, total: float, goal: float, past: tuple[float, ...], rising: bool
) -> Iterator[Score]:
    for share in SHARES:
        seen = tuple(point for point in points if point[0] <= share * total)
        if not seen and not past:
            continue
        done = seen[-1][0] if seen else share * total
        if not done < total:
            continue
        evidence = RemainingEvidence(
            done=done,
            target=f"metric{'>=' if rising else '<='}{goal!r}",
            curve=seen,
            past=past,
            unit=points[0][0],
        )
        true, estimate = total - done, remaining(evidence).estimate
        yield done / total, estimate.value, true, estimate.low <= true <= estimate.upper
