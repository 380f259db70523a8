"""Our policy against Pollux, on Pollux' own ground: average JCT in ratios, with paired bootstrap intervals over jobs.

    python -m benchmarks.policy [--quick] [--only TEXT]

Both in this run, on the same workloads (16 nodes x 4 GPUs, measured step times and gradient noise), nothing known in advance
but the declared epochs (and, where said, a pool of past jobs from another workload). Pollux always decides in 60 s rounds
with the early-stopped search. A ratio is that of the sums over all jobs of the workloads named. ``--quick``: the design
workloads tuned-1.0x-1 and -2 only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.measure import Row, show
from benchmarks.policy_mixed import mixed_rows
from benchmarks.policy_runs import GENERATED, run
from benchmarks.policy_speed import speed_rows
from benchmarks.published import published_jct
from benchmarks.smoke import either, few

DESIGN = ("tuned-1.0x-1", "tuned-1.0x-2")
FULL = (*DESIGN, "tuned-1.0x-3", "tuned-1.0x-4")
Pair = tuple[dict[str, Any], dict[str, Any]]


def ratio(pairs: Sequence[Pair]) -> tuple[float, str]:
    """Sum of JCTs over sum of JCTs, and its 95% interval over jobs drawn again, workload by workload, in pairs."""
    ours = [np.array([a["jct_s"][job] for job in a["jct_s"]]) for a, _ in pairs]
    theirs = [np.array([b["jct_s"][job] for job in a["jct_s"]]) for a, b in pairs]
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(1000):
        picks = [rng.integers(len(each), size=len(each)) for each in ours]
        top = sum(float(each[pick].sum()) for each, pick in zip(ours, picks, strict=True))
        drawn.append(top / sum(float(each[pick].sum()) for each, pick in zip(theirs, picks, strict=True)))
    low, high = np.percentile(drawn, [2.5, 97.5])
    value = sum(float(x.sum()) for x in ours) / sum(float(x.sum()) for x in theirs)
    return value, f"[{low:.3f}, {high:.3f}]"


def each(pairs: Sequence[Pair]) -> list[float]:
    """The ratio of every workload."""
    return [ratio([pair])[0] for pair in pairs]


def slowest(result: dict[str, Any]) -> float:
    """Mean JCT of the slowest tenth of the jobs."""
    times = np.sort(np.array(list(result["jct_s"].values())))
    return float(times[-max(len(times) // 10, 1) :].mean())


def median(result: dict[str, Any]) -> float:
    """Median JCT."""
    return float(np.median(list(result["jct_s"].values())))


def main_rows(workloads: Sequence[str]) -> list[Row]:
    """60 s rounds and 30 s per change; event-driven with a pool; 5 s per change."""
    theirs = [run("pollux", name, fairness=True) for name in workloads]
    ours = [run("coadapt", name) for name in workloads]
    pairs = list(zip(ours, theirs, strict=True))
    value, interval = ratio(pairs)
    by_workload = ", ".join(f"{x:.3f}" for x in each(pairs))
    rows = [
        Row("60 s rounds, 30 s changes: avg JCT over Pollux'", value, 0.87, 0.83, note=interval),
        Row("  the worst workload", max(each(pairs)), 0.9999, note=by_workload),
    ]
    published = [published_jct("jobload", "pollux", "1.0", int(name[-1])) for name in workloads]
    means = [float(np.mean(list(a["jct_s"].values()))) for a in ours]
    rows.append(Row("  over Pollux' published figures", sum(means) / sum(published), 0.87, 0.83))
    other = {name: f"tuned-1.0x-{int(name[-1]) % 4 + 1}" for name in workloads}
    if len(workloads) < 4:
        other = dict(zip(workloads, reversed(workloads), strict=True))
    pooled = [run("coadapt", name, interval_s=None, pool_from=other[name]) for name in workloads]
    value, interval = ratio(list(zip(pooled, theirs, strict=True)))
    rows.append(Row("event-driven, pool of other workloads", value, 0.84, 0.80, note=interval))
    quick_theirs = [run("pollux", name, change_s=5.0) for name in workloads]
    quick_ours = [run("coadapt", name, interval_s=None, change_s=5.0) for name in workloads]
    value, interval = ratio(list(zip(quick_ours, quick_theirs, strict=True)))
    rows.append(Row("5 s changes for both, event-driven for ours", value, 0.85, 0.80, note=interval))
    tails = [slowest(a) / slowest(b) for a, b in pairs]
    medians = [median(a) / median(b) for a, b in pairs]
    tail = sum(slowest(a) for a in ours) / sum(slowest(b) for b in theirs)
    middle = sum(median(a) for a in ours) / sum(median(b) for b in theirs)
    rows += [
        Row("mean of the slowest 10%", tail, 0.95, 0.88),
        Row("  the worst workload", max(tails), 1.15),
        Row("median JCT", middle, 1.0, 0.88),
        Row("  the worst workload", max(medians), 1.15),
    ]
    return rows + length_rows(workloads, theirs) + fair_rows(workloads, theirs, ours)


def length_rows(workloads: Sequence[str], theirs: Sequence[dict[str, Any]]) -> list[Row]:
    """Lengths that are wrong, or not known at all; reports that are noisy."""
    wrong = [run("coadapt", name, lengths=f"wrong-0.7-{draw}") for draw in (1, 2) for name in workloads]
    value, interval = ratio(list(zip(wrong, [*theirs, *theirs], strict=True)))
    rows = [Row("remaining work wrong (lognormal, sigma 0.7; two draws)", value, 0.92, 0.87, note=interval)]
    for what, learns in (("", True), (", and nothing learned from other jobs", False)):
        ours = [run("coadapt", name, lengths="unknown", learns=learns) for name in workloads]
        value, interval = ratio(list(zip(ours, theirs, strict=True)))
        rows.append(Row(f"remaining work unknown{what}", value, 1.0, 0.95, note=interval))
    noisy = [(run("coadapt", name, noise=0.1), run("pollux", name, noise=0.1)) for name in workloads]
    value, interval = ratio(noisy)
    what = "reports off by 10%, 5% of placements a straggler, for both"
    rows.append(Row(what, value, 0.87, note=interval))
    return rows


def fair_rows(
    workloads: Sequence[str], theirs: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]
) -> list[Row]:
    """Objective fairness, and interference."""
    fair = [run("coadapt", name, objective="fairness", fairness=True) for name in workloads]
    value, interval = ratio(list(zip(fair, theirs, strict=True)))
    ours, pollux = _unfair(fair), _unfair(theirs)
    rows = [
        Row(
            "fairness: share of jobs with rho > 1",
            ours,
            pollux,
            pollux / 2,
            note=f"must: Pollux' {pollux:.3f}",
        ),
        Row("  its avg JCT over Pollux'", value, 1.0, note=interval),
    ]
    crowded = [run("coadapt", name, interference=0.5) for name in workloads]
    value, _ = ratio(list(zip(crowded, plain, strict=True)))
    rows.append(Row("interference 0.5 against 0", value, 1.02))
    for links in few(("25,10,1", "100,25,10", "10,10,1")):
        aware = [run("coadapt", name, links=links) for name in workloads]
        packed = [run("coadapt", name, links=links, placement="packed") for name in workloads]
        blind = [run("coadapt", name, links=links, placement="blind") for name in workloads]
        value, interval = ratio(list(zip(aware, packed, strict=True)))
        same, _ = ratio(list(zip(aware, blind, strict=True)))
        worst = max(each(list(zip(aware, packed, strict=True))))
        note = (
            f"{interval}, worst workload {worst:.3f}; against the same placer without bandwidths {same:.3f}"
        )
        rows.append(Row(f"links {links} Gbit/s: by bandwidth against packed", value, 1.0, note=note))
    return rows


def _unfair(results: Sequence[dict[str, Any]]) -> float:
    rho: list[float] = [x for result in results for x in result["rho"].values()]
    return sum(x > 1 for x in rho) / len(rho)


def load_rows() -> list[Row]:
    """Other loads."""
    rows = []
    for load, must, aim in few((("1.5", 0.80, 0.72), ("2.0", 0.80, 0.72), ("0.5", 0.95, 0.90))):
        names = [f"tuned-{load}x-{number}" for number in (1, 2)]
        value, interval = ratio([(run("coadapt", name), run("pollux", name)) for name in names])
        rows.append(Row(f"{load}x load, 60 s rounds, 30 s changes", value, must, aim, note=interval))
    return rows


def generated_rows() -> list[Row]:
    """Unseen workloads, half of them without very long jobs."""
    names = [f"generated-{seed}" for seed in few(GENERATED)]
    pairs = [(run("coadapt", name), run("pollux", name)) for name in names]
    value, interval = ratio(pairs)
    worst = max(each(pairs))
    short = ratio(pairs[::2])[0]
    note = f"{interval}; without very long jobs {short:.3f}; worst workload {worst:.3f}"
    return [Row("20 generated workloads", value, 0.90, 0.85, note=note)]


def pool_table(workloads: Sequence[str]) -> None:
    """With and without the pool, by job size."""
    print("\nwith the pool against without (event-driven), by GPU-hours of the job:")
    for low, high in ((0.0, 1.0), (1.0, 10.0), (10.0, 100.0), (100.0, np.inf)):
        with_pool, without = [], []
        for name in workloads:
            other = f"tuned-1.0x-{int(name[-1]) % 4 + 1}"
            filled = run("coadapt", name, interval_s=None, pool_from=other)
            empty = run("coadapt", name, interval_s=None, learns=False)
            for job, hours in empty["gpu_h"].items():
                if low <= hours < high:
                    with_pool.append(filled["jct_s"][job])
                    without.append(empty["jct_s"][job])
        if without:
            share = sum(with_pool) / sum(without)
            print(f"  {low:>5g} to {high:>5g} GPU-h: {len(without):>4} jobs, avg JCT x {share:.3f}")


def main() -> int:
    """Prints the tables; 1 if a must falls short."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the design workloads only")
    parser.add_argument("--only", default="", help="main, loads, generated, mixed or speed")
    args = parser.parse_args()
    workloads = either(DESIGN[:1], DESIGN if args.quick else FULL)
    parts = {"main": lambda: main_rows(workloads), "speed": speed_rows}
    if not args.quick:
        parts |= {"loads": load_rows, "generated": generated_rows, "mixed": mixed_rows}
    good = True
    for name, rows in parts.items():
        if args.only in ("", name):
            good &= show(f"policy: {name}", rows())
    if args.only in ("", "main") and not args.quick:
        pool_table(workloads)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
