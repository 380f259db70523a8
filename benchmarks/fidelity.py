"""Do we reproduce what was published? ``python -m benchmarks.fidelity [--quick] [--write]``

Tiresias and Optimus (oracle) are deterministic: average JCT within 2% of the published figure on every
workload, 1% in the mean. Pollux is a random search: within 6% on each workload and 3% as ratio of sums; nine
of ten cells of the interval and interference experiments within 7%. Sia's rounded program has many optima of which
its solver takes any: average JCT of five draws within 5% of a run of the released simulator, and no worse than that in
the form other policies are compared with (``benchmarks.mixed``). Cells are saved and reused until the
sources they depend on change. ``--quick``: Tiresias, Optimus and one Pollux workload.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import msgspec

from benchmarks import fidelity_gavel, mixed
from benchmarks import published as setting
from benchmarks.cells import ROOT, cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.smoke import either
from coadapt.model import Recorded, parse_cluster
from coadapt.policies.fifo import FifoPolicy
from coadapt.policies.recorded import RecordedPolicy
from coadapt.policies.sia import SiaPolicy
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.run import Setting, simulate
from coadapt.simulation.traces import open_trace
from coadapt.store import MemoryLog

Cell = dict[str, Any]
LOADS = {"0.5": (1, 2), "1.0": (1, 2, 3, 4), "1.5": (1, 2), "2.0": (1, 2)}
SOURCES = {
    "tiresias": (
        "policies/tiresias.py",
        "policies/_base.py",
        "policies/_ranked.py",
    ),
    "optimus": ("policies/optimus.py", "policies/_budget.py"),
    "pollux": (
        "policies/pollux/policy.py",
        "policies/pollux/genetic_search.py",
        "policies/pollux/genetic_search.py",
    ),
    "sia": ("policies/sia.py",),
}
#: Draws among equal optima.
SIA_SEEDS = 5


def wanted(quick: bool) -> list[Cell]:
    """All cells, cheap ones first."""
    cells: list[Cell] = []
    if either(True, False):
        return [_cell("jobload", policy, "0.5", 1) for policy in ("tiresias", "optimus")]
    for policy in ("tiresias", "optimus"):
        cells += [_cell("jobload", policy, load, n) for load, numbers in LOADS.items() for n in numbers]
        cells.append(_cell("realistic", policy, "1.0", 1))
    if quick:
        return [*cells, _cell("jobload", "pollux", "1.0", 3)]
    cells += [_cell("jobload", "pollux", "1.0", n, seed=s) for n in LOADS["1.0"] for s in range(3)]
    cells += [_cell("jobload", "pollux", load, n) for load in ("0.5", "1.5", "2.0") for n in LOADS[load]]
    cells += [_cell("period", "pollux", "1.0", n, interval_s=i) for i in (30, 120, 240, 480) for n in (1, 3)]
    cells += [
        _cell("interference", "pollux-noavoid", "1.0", n, interference=x) for x in (0.25, 0.5) for n in (1, 3)
    ]
    cells.append(_cell("full", "pollux", "1.0", 3))
    return [*cells, *sia_cells()]


def _cell(
    experiment: str,
    policy: str,
    load: str,
    n: int,
    *,
    seed: int = 0,
    interval_s: int = 60,
    interference: float = 0.0,
) -> Cell:
    return {
        "experiment": experiment,
        "policy": policy,
        "load": load,
        "workload": n,
        "seed": seed,
        "interval_s": interval_s,
        "interference": interference,
    }


def sia_cells() -> list[Cell]:
    """Sia on the workload its authors' simulator was run on."""
    return [
        {"policy": "sia", "workload": "rate10-1", "released": released, "seed": seed}
        for released in (True, False)
        for seed in range(SIA_SEEDS)
    ]


def compute(arguments: Cell) -> Cell:
    """Runs one cell, or finds it saved."""
    if arguments["policy"] == "sia":
        return _compute_sia(arguments)
    family = arguments["policy"].partition("-")[0]
    options: dict[str, Any] = {"avoid_interference": False} if arguments["policy"] == "pollux-noavoid" else {}
    if arguments["experiment"] == "full":
        options["patience"] = 0
    kind = "realistic" if arguments["experiment"] == "realistic" else "tuned"
    name = f"{kind}-{arguments['load']}x-{arguments['workload']}"
    sources = source_hash((*setting.CORE, *SOURCES[family]), setting=["published.py"])
    return cell(
        "fidelity",
        arguments,
        sources,
        lambda: setting.figures(
            setting.run(
                name,
                setting.policy_of(family, options),
                interval_s=arguments["interval_s"],
                interference=arguments["interference"],
                seed=arguments["seed"],
            )
        ),
    )


def _compute_sia(arguments: Cell) -> Cell:
    def run() -> Cell:
        jobs = mixed.workload(arguments["workload"])
        done = mixed.run(jobs, SiaPolicy(), seed=arguments["seed"], released=arguments["released"])
        return mixed.figures(done)

    sources = source_hash((*setting.CORE, *SOURCES["sia"]), setting=["published.py", "mixed.py"])
    return cell("fidelity-sia", arguments, sources, run)


def target(arguments: Cell) -> float:
    """The published figure of a cell."""
    if arguments["policy"] == "sia":
        return mixed.measured("sia", arguments["workload"])["avg_jct_s"]
    experiment = "jobload" if arguments["experiment"] == "full" else arguments["experiment"]
    policy = "pollux" if arguments["experiment"] == "full" else arguments["policy"]
    return setting.published_jct(
        experiment,
        policy,
        arguments["load"],
        arguments["workload"],
        arguments["interval_s"],
        arguments["interference"],
    )


def collect(cells: list[Cell], workers: int) -> list[tuple[Cell, Cell]]:
    """Computes all cells, in processes, with a line for each."""
    results: dict[int, Cell] = {}
    with ProcessPoolExecutor(either(1, workers)) as pool:
        pending = {pool.submit(compute, arguments): i for i, arguments in enumerate(cells)}
        for number, future in enumerate(as_completed(pending), start=1):
            i = pending[future]
            results[i] = future.result()
            ratio = results[i]["avg_jct_s"] / target(cells[i])
            print(
                f"[{number}/{len(cells)}] {describe(cells[i])}: {results[i]['avg_jct_s']:.1f} s, {ratio:.4f} of the published",
                file=sys.stderr,
                flush=True,
            )
    return [(arguments, results[i]) for i, arguments in enumerate(cells)]


def describe(arguments: Cell) -> str:
    """A cell in words."""
    if arguments["policy"] == "sia":
        return f"sia {_sia_form(arguments)} {arguments['workload']} seed {arguments['seed']}"
    extra = f", {arguments['interval_s']} s" if arguments["interval_s"] != 60 else ""
    extra += f", interference {arguments['interference']}" if arguments["interference"] else ""
    return f"{arguments['policy']} {arguments['experiment']} {arguments['load']}x-{arguments['workload']} seed {arguments['seed']}{extra}"


def _sia_form(arguments: Cell) -> str:
    return "as released" if arguments["released"] else "as compared with"


def recorded_replay() -> Cell:
    """Runs 5,000 Philly jobs under FIFO, writes its starts down, replays them by ``recorded``, compares the waits."""

    def compute_() -> Cell:
        trace = open_trace(setting.data_dir() / "philly" / "philly.csv").jobs[: either(100, 5000)]
        cluster, free = parse_cluster("20x8"), Setting(change_cost=constant(0.0))
        first = simulate(
            [(s.at, s.job, s.spec) for s in trace], cluster, FifoPolicy(), MemoryLog(keep=False), setting=free
        )
        starts = {job.id: job.started_at for job in first.state.jobs.values()}
        again = [
            (s.at, s.job, msgspec.structs.replace(s.spec, recorded=Recorded(start_s=starts[s.job])))
            for s in trace
        ]
        second = simulate(again, cluster, RecordedPolicy(), MemoryLog(keep=False), setting=free)
        errors = [
            abs((job.started_at or 0.0) - (starts[name] or 0.0)) for name, job in second.state.jobs.items()
        ]
        waited = sum((starts[s.job] or 0.0) > s.at for s in trace)
        return {"largest_error_s": max(errors), "jobs": len(errors), "waited": waited}

    sources = source_hash((*setting.CORE, "policies/**/*.py", "simulation/traces/*.py"))
    return cell("fidelity-recorded", {}, sources, compute_)


def judge(results: list[tuple[Cell, Cell]]) -> bool:
    """Prints targets beside figures."""
    rows: list[Row] = []
    for policy in ("tiresias", "optimus"):
        errors = [abs(r["avg_jct_s"] / target(c) - 1) for c, r in results if c["policy"] == policy]
        rows.append(
            Row(
                f"{policy}: worst of {len(errors)} workloads, error of average JCT",
                100 * max(errors),
                2,
                unit="%",
            )
        )
        rows.append(Row(f"{policy}: mean error", 100 * sum(errors) / len(errors), 1, unit="%"))
    pollux = _pollux_by_workload(results)
    if pollux:
        worst = max(pollux, key=lambda w: abs(pollux[w][0] / pollux[w][1] - 1))
        rows.append(
            Row(
                f"pollux: worst of {len(pollux)} workloads ({worst[0]}x-{worst[1]})",
                100 * abs(pollux[worst][0] / pollux[worst][1] - 1),
                6,
                unit="%",
            )
        )
        total = sum(ours for ours, _ in pollux.values()) / sum(theirs for _, theirs in pollux.values())
        rows.append(
            Row("pollux: ratio of sums, off by", 100 * abs(total - 1), 3, unit="%", note=f"ratio {total:.4f}")
        )
    other = [
        abs(r["avg_jct_s"] / target(c) - 1)
        for c, r in results
        if c.get("experiment") in ("period", "interference")
    ]
    if other:
        share = sum(error <= 0.07 for error in other) / len(other)
        rows.append(
            Row(
                "pollux: intervals and interference, cells within 7%",
                100 * share,
                90,
                unit="%",
                note=f"{len(other)} cells",
                at_least=True,
            )
        )
    rows += _spread(results)
    rows += _sia_rows(results)
    replay = recorded_replay()
    note = f"{replay['jobs']:,} jobs, of which {replay['waited']:,} waited"
    rows.append(
        Row(
            "recorded: replay of a FIFO run, largest error of a wait",
            replay["largest_error_s"],
            0,
            unit=" s",
            note=note,
        )
    )
    return show("Fidelity to the published simulations (average JCT)", rows)


def _pollux_by_workload(results: list[tuple[Cell, Cell]]) -> dict[tuple[str, int], tuple[float, float]]:
    """(our mean over seeds, published) by workload."""
    grouped: dict[tuple[str, int], list[float]] = {}
    theirs: dict[tuple[str, int], float] = {}
    for c, r in results:
        if c["policy"] == "pollux" and c["experiment"] == "jobload":
            grouped.setdefault((c["load"], c["workload"]), []).append(r["avg_jct_s"])
            theirs[c["load"], c["workload"]] = target(c)
    return {key: (sum(values) / len(values), theirs[key]) for key, values in grouped.items()}


def _spread(results: list[tuple[Cell, Cell]]) -> list[Row]:
    """Spread over seeds by workload, and whether the full search falls into that of its own workload."""
    seeds: dict[int, list[float]] = {}
    for c, r in results:
        if c["policy"] == "pollux" and c["experiment"] == "jobload" and c["load"] == "1.0":
            seeds.setdefault(c["workload"], []).append(r["avg_jct_s"])
    spread = {n: (max(v) - min(v)) / (sum(v) / len(v)) for n, v in seeds.items() if len(v) > 1}
    for n, share in spread.items():
        print(f"spread of Pollux over {len(seeds[n])} seeds on 1.0x-{n}: {100 * share:.2f}%")
    rows = []
    for c, r in results:
        if c.get("experiment") == "full" and c["workload"] in spread:
            values = seeds[c["workload"]]
            off = max(min(values) - r["avg_jct_s"], r["avg_jct_s"] - max(values), 0.0) / (
                sum(values) / len(values)
            )
            note = f"full {r['avg_jct_s']:.1f} s, early-stopped {min(values):.1f} to {max(values):.1f} s"
            must = 100 * spread[c["workload"]]
            rows.append(
                Row(
                    "pollux: full search outside the early-stopped seeds' range by",
                    100 * off,
                    must,
                    unit="%",
                    note=note,
                )
            )
    return rows


def _sia_rows(results: list[tuple[Cell, Cell]]) -> list[Row]:
    """Mean over the draws, and the other figures of the same runs beside those of the released simulator."""
    rows = []
    for released in (True, False):
        runs = [(c, r) for c, r in results if c["policy"] == "sia" and c["released"] is released]
        if not runs:
            continue
        theirs = mixed.measured("sia", runs[0][0]["workload"])
        ratios = [r["avg_jct_s"] / theirs["avg_jct_s"] for _, r in runs]
        others = ", ".join(
            f"{name} {sum(r[key] for _, r in runs) / len(runs):.0f} ({theirs[key]:.0f})"
            for name, key in (("median", "p50_jct_s"), ("p99", "p99_jct_s"), ("makespan", "makespan_s"))
        )
        mean = sum(ratios) / len(ratios)
        what = f"sia {_sia_form(runs[0][0])}: mean of {len(runs)} draws"
        note = f"{mean:.4f}, from {min(ratios):.3f} to {max(ratios):.3f}; {others}"
        if released:
            rows.append(Row(f"{what}, off by", 100 * abs(mean - 1), 5, unit="%", note=note))
        else:
            rows.append(Row(f"{what}, worse by", 100 * (mean - 1), 5, unit="%", note=note))
    return rows


def write(results: list[tuple[Cell, Cell]]) -> None:
    """docs/fidelity.md."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.strip()
    lines = [
        "# Fidelity: what was published, and what this simulator gives",
        "",
        "Made by `python -m benchmarks.fidelity --write` on the measurements of the Pollux artifact, in the",
        "published setting (16 x 4 GPUs, 60 s rounds, 30 s per change, whole seconds), at commit",
        f"`{commit}`. Average JCT in seconds; `realistic` was not published but obtained by running the artifact.",
        "Pollux is a random search: one row per seed. `full` is the 100 x 100 search without early stopping.",
        "",
        "| policy | experiment | load | workload | interval | interference | seed | published | ours | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    published = [(c, r) for c, r in results if c["policy"] != "sia"]
    for c, r in published:
        lines.append(
            f"| {c['policy']} | {c['experiment']} | {c['load']}x | {c['workload']} | {c['interval_s']} s | {c['interference']:g} | {c['seed']} "
            f"| {target(c):.1f} | {r['avg_jct_s']:.1f} | {r['avg_jct_s'] / target(c):.4f} |"
        )
    lines += [
        "",
        "Sia on its own measurements and cluster (6 x 4 T4, 2 x 8 A100, 3 x 8 RTX 2080 Ti; `benchmarks/mixed.py`): what its released",
        "simulator gave when run on these files, and ours; one row per draw among equal optima. `as released`: its curves look at batch",
        "sizes only up to the requested one; `as compared with`: at all of them, which is faster.",
        "",
        "| form | workload | seed | released simulator | ours | ratio | median (p99, makespan) | released's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c, r in results:
        if c["policy"] == "sia":
            theirs = mixed.measured("sia", c["workload"])
            own, its = (
                f"{x['p50_jct_s']:.0f} ({x['p99_jct_s']:.0f}, {x['makespan_s']:.0f})" for x in (r, theirs)
            )
            lines.append(
                f"| {_sia_form(c)} | {c['workload']} | {c['seed']} | {target(c):.1f} | {r['avg_jct_s']:.1f} "
                f"| {r['avg_jct_s'] / target(c):.4f} | {own} | {its} |"
            )
    (ROOT / "docs" / "fidelity.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Runs, prints, and returns 1 where a must falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true", help="write docs/fidelity.md")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gavel", action="store_true", help="Gavel's policies only")
    parser.add_argument("--sia", action="store_true", help="Sia only")
    arguments = parser.parse_args()
    if arguments.gavel:
        return 0 if fidelity_gavel.compare_continuous(arguments.workers) else 1
    if arguments.sia:
        found = collect(sia_cells(), arguments.workers)
        return 0 if show("Fidelity to Sia's released simulator (average JCT)", _sia_rows(found)) else 1
    results = collect(wanted(arguments.quick), arguments.workers)
    good = judge(results)
    if arguments.write:
        write(results)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
