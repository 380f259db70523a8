"""The cheapest GPUs x batch size that meet a deadline and a metric: ours beside the published planners.

Run: python -m benchmarks.plan [--quick] [--design] [--samples 60,240] [--tables]

Truth and options: ``plan_truth``; questions and samples: ``plan_runs``. A choice is charged what running it until the target is reached
really costs (to the last row, if it never is). Choices that break the deadline or miss the target are counted apart; costs are compared on
the questions where both planners hold the limits, as savings in percent and as means of what each pays over the optimum. Intervals: 95%, bootstrap over (task, question): they speak of other questions about
these tasks, not of other tasks, and runs of one question with other samples count as one. --design: only the three tasks
that the planner was designed on; --tables: the comparison alone. Real runs: ``plan_real``.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.measure import Row, show
from benchmarks.plan_runs import METHODS, OURS, QUICK_SEEDS, SAMPLES, SEEDS, results
from benchmarks.prediction_samples import LOWER_IS_BETTER, TASKS
from benchmarks.smoke import either, few

DESIGN = ("bert", "cifar10", "imagenet")
#: Largest saving in the paper, by the baseline it has.
PAPER = {"lb-bsp": 24.9, "bayesian": 26.89, "cynthia": 16.6, "linear-scaling": 34.83, "random": 34.83}
_BOOTSTRAPS = 2000

Records = list[dict[str, Any]]


def held(record: dict[str, Any]) -> bool:
    """Both limits."""
    return bool(record["in_time"] and record["reached"])


def over_optimum(record: dict[str, Any]) -> float:
    """How much worse than the best possible, as a share; for metrics as a share of the best value."""
    if record["objective"] == "metric":
        sign = -1 if record["task"] in LOWER_IS_BETTER else 1
        return float(sign * (record["best"] - record["value"]) / abs(record["best"]))
    return float(record["value"] / record["best"] - 1)


#: What is being compared: task, question, samples, seed.
Key = tuple[Any, ...]


def both_hold(records: Records, other: str) -> list[tuple[Key, dict[str, Any], dict[str, Any]]]:
    """Ours and the other's record for each question where both hold the limits."""
    by_question: dict[Key, dict[str, dict[str, Any]]] = defaultdict(dict)
    for record in records:
        key = (record["task"], record["share"], record["factor"], record["samples"], record["seed"])
        by_question[key][record["planner"]] = record
    pairs = [(key, both[OURS], both[other]) for key, both in sorted(by_question.items())]
    return [(key, ours, theirs) for key, ours, theirs in pairs if held(ours) and held(theirs)]


def savings(records: Records, other: str) -> tuple[list[Key], list[float]]:
    """Percent that ours saves on each question where both hold the limits, and what question that is."""
    keys, found = [], []
    for key, ours, theirs in both_hold(records, other):
        keys.append(key)
        if ours["objective"] == "metric":
            found.append(100 * (over_optimum(theirs) - over_optimum(ours)))
        else:
            found.append(100 * (1 - ours["value"] / theirs["value"]))
    return keys, found


def cheaper(records: Records, other: str) -> Row:
    """By how much the mean of what they pay is above the mean of what we pay, in percent of the optimum.

    A mean of savings in percent is no such comparison: what we pay twice counts -100, what they pay twice +50.
    """
    pairs = both_hold(records, other)
    keys = [key for key, *_ in pairs]
    ours = [100 * over_optimum(each) for _, each, _ in pairs]
    theirs = [100 * over_optimum(each) for _, _, each in pairs]
    less = [b - a for a, b in zip(ours, theirs, strict=True)]
    ratios = [100 * math.log((1 + b / 100) / (1 + a / 100)) for a, b in zip(ours, theirs, strict=True)]
    low, high = interval(keys, less)
    geometric = "{:.1f}% ({:.1f} to {:.1f})".format(float(np.mean(ratios)), *interval(keys, ratios))
    note = f"ours {np.mean(ours):.1f}% over the optimum, theirs {np.mean(theirs):.1f}%: {np.mean(less):.1f} less, 95% {low:.1f} to {high:.1f}; geometric {geometric}"
    objective = records[0]["objective"]
    return Row(
        f"{objective}: mean less than that of {other}, lower end", low, 0.0, None, " points", note, True
    )


def interval(keys: list[tuple[Any, ...]], values: list[float]) -> tuple[float, float]:
    """95% of the mean, by bootstrap over (task, question)."""
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        groups[key[:3]].append(value)
    sums = np.array([(sum(group), len(group)) for group in groups.values()])
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(len(sums), size=(_BOOTSTRAPS, len(sums)))].sum(axis=1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    return float(low), float(high)


def table(title: str, records: Records) -> dict[str, tuple[float, float, float]]:
    """Prints ours against each planner; mean saving and its interval by planner."""
    print(f"\n{title}")
    head = ("", "limits broken", "late", "short", "over optimum", "pairs", "mean", "95%", "median", "most")
    print("{:<18}{:>14}{:>7}{:>7}{:>14}{:>8}{:>9}{:>18}{:>9}{:>9}  win/tie/loss  paper's most".format(*head))
    found = {}
    for name in METHODS:
        own = [record for record in records if record["planner"] == name]
        broken = np.mean([not held(record) for record in own])
        late, short = (np.mean([not record[key] for record in own]) for key in ("in_time", "reached"))
        good = [over_optimum(record) for record in own if held(record)]
        over = f"{100 * np.mean(good):.1f}%" if good else "-"
        line = f"{name:<18}{broken:>14.1%}{late:>7.1%}{short:>7.1%}{over:>14}"
        keys, values = savings(records, name)
        if name != OURS and len(values) > 1:
            low, high = interval(keys, values)
            found[name] = (float(np.mean(values)), low, high)
            wins = (
                sum(v > 0.05 for v in values),
                sum(abs(v) <= 0.05 for v in values),
                sum(v < -0.05 for v in values),
            )
            line += (
                f"{len(values):>8}{np.mean(values):>8.1f}%{f'{low:.1f} to {high:.1f}':>18}{np.median(values):>8.1f}%"
                f"{max(values):>8.1f}%  {wins[0]}/{wins[1]}/{wins[2]}"
                + (f"  {PAPER[name]:g}%" if name in PAPER else "")
            )
        elif name != OURS:
            # not a number: what cannot be compared is no promise kept
            found[name] = (math.nan, math.nan, math.nan)
            line += f"{len(values):>8}  too few pairs where both hold the limits"
        print(line)
    return found


def rows(records: Records) -> list[Row]:
    """Promises beside figures."""
    cost = [record for record in records if record["objective"] == "cost"]
    titles = {
        "cost": "Cheapest for a deadline and a metric",
        "metric": "Best metric within a time",
        "time": "Least time to a metric",
    }
    found: list[Row] = []
    for objective, title in titles.items():
        beaten = table(title, [record for record in records if record["objective"] == objective])
        for name, (mean, low, high) in beaten.items():
            note = f"mean {mean:.2f}%, 95% {low:.2f} to {high:.2f}"
            found.append(Row(f"{objective}: saving over {name}, lower end", low, 0.0, None, "%", note, True))
    for objective in ("cost", "time"):
        some = [record for record in records if record["objective"] == objective]
        found += [cheaper(some, name) for name in METHODS if name != OURS and len(both_hold(some, name)) > 1]
    ours = [record for record in cost if record["planner"] == OURS]
    for text, least, must in (("all samples", 0, 5.0), (">= 120 samples", 120, 3.0)):
        some = [record for record in ours if record["samples"] >= least and held(record)]
        over = 100 * float(np.mean([over_optimum(record) for record in some]))
        by_task = {task: [100 * over_optimum(r) for r in some if r["task"] == task] for task in TASKS}
        note = ", ".join(f"{task} {np.mean(v):.1f}" for task, v in by_task.items() if v)
        found.append(Row(f"cost over the true optimum, mean, {text}", over, must, None, "%", note))
    broken = 100 * float(np.mean([not held(record) for record in ours]))
    others = ", ".join(
        f"{name} {100 * np.mean([not held(r) for r in cost if r['planner'] == name]):.0f}%"
        for name in METHODS
        if name != OURS
    )
    found.append(Row("limits broken at confidence 0.9", broken, 12.0, None, "%", others))
    sure = [record for record in ours if record["sure"]]
    late = 100 * float(np.mean([not held(record) for record in sure]))
    found.append(
        Row("  of these choices it was sure of", late, 12.0, None, "%", f"{len(sure)} of {len(ours)}")
    )
    return found


def main() -> None:
    """Prints all and exits 1 where a must falls short."""
    quick, design = "--quick" in sys.argv[1:], "--design" in sys.argv[1:]
    tasks: tuple[str, ...] = tuple(few(DESIGN if design else TASKS))
    samples: tuple[int, ...] = either((SAMPLES[1],), SAMPLES)
    if "--samples" in sys.argv[1:]:
        samples = tuple(int(n) for n in sys.argv[sys.argv.index("--samples") + 1].split(","))
    promised = rows(results(tasks, either(1, QUICK_SEEDS if quick else SEEDS), samples))
    if either(False, "--tables" not in sys.argv[1:]):
        from benchmarks.plan_more import more_rows

        promised += more_rows(tasks, quick)
    if not show("Plans", promised):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
