"""``python -m benchmarks.agent [SECTION ...]``: what ``coadapt.torch`` promises, measured with real processes on this machine.

Sections: noise, overhead, learning, batch, pauses, kills, sync. Every cell is saved (``benchmarks.cells``) and reused until the agent
changes, so that the run may be stopped and taken up again; ``--quick`` makes fewer repeats, and says so.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.agent_kills import kills
from benchmarks.agent_learning import batch, learning
from benchmarks.agent_pauses import pauses
from benchmarks.agent_runs import saved
from benchmarks.agent_sync import architectures
from benchmarks.measure import Row, show
from benchmarks.smoke import either, few


def noise(quick: bool) -> list[Row]:
    """Frozen parameters, mean of 1,000 steps, against per-sample gradients; then what sampling fewer costs."""
    steps, rows = either(20, 200 if quick else 1000), []
    one = {"batch": 32, "atomic": 32}
    ways: tuple[tuple[str, dict[str, Any], int, float], ...] = (
        ("4 replicas", {"batch": 128, "atomic": 32}, 4, 0.10),
        ("accumulation, 4 passes", {"batch": 128, "atomic": 32}, 1, 0.15),
        ("successive gradients, frozen parameters (bias: see below)", one, 1, 0.15),
    )
    for name, options, replicas, must in either(ways[-1:], ways):
        found = saved("noise", {**options, "steps": steps}, replicas)
        note = f"phi {found['phi']:.1f}, true {found['true_phi']:.1f}; standard error {found['error_of_phi']:.1%};"
        # an average over the samples among 1,000 steps, if only every so many-th is one
        errors = ", ".join(f"{every}: {found['error_of_phi'] * every**0.5:.0%}" for every in (10, 50))
        rows.append(
            Row(
                f"noise scale, {name}",
                abs(found["phi"] / found["true_phi"] - 1),
                must,
                note=f"{note} sampled every {errors}",
            )
        )
    moving = saved("noise", {**one, "steps": steps, "rate": 0.05})
    bias = moving["phi"] / moving["true_phi"] - 1
    print(
        f"   successive gradients while training at rate 0.05: phi {bias:+.0%} against the truth along the way"
        f" (standard error {moving['error_of_phi']:.0%}); no must, for the bias is to be stated"
    )
    return rows


#: Network: must, aim, and steps of a run that holds a few samples.
_OVERHEAD = {"cnn": (0.03, 0.02, 200), "mlp100k": (0.06, 0.04, 200), "mlp2m": (0.06, 0.04, 100)}


def overhead(quick: bool) -> list[Row]:
    """CPU time against plain DDP, bursts of steps in turns."""
    rows = []
    for model in few(tuple(_OVERHEAD)):
        must, aim, steps = _OVERHEAD[model]
        for replicas in few((1, 2)):
            for size in few((32, 128)):
                options = {
                    "model": model,
                    "batch": size,
                    "steps": either(20, steps),
                    "burst": 10,
                    "runs": either(1, 5 if quick else 9),
                }
                found = saved("overhead", options, replicas, more=("agent_overhead.py",))
                cpu = found["cpu_s"]
                ratios = [ours / plain - 1 for ours, plain in zip(cpu["ours"], cpu["plain"], strict=True)]
                note = f"{statistics.median(cpu['plain']) * 1e3:.2f} ms plain; {min(ratios):+.1%} to {max(ratios):+.1%}"
                note += (
                    f" in {len(ratios)} runs; a sample every {found['interval']}; load {found['load']:.1f}"
                )
                what = f"overhead, {model}, {replicas} process{'es' * (replicas > 1)}, batch {size}"
                rows.append(Row(what, statistics.median(ratios), must, aim, note=note))
    return rows


SECTIONS: dict[str, Callable[[bool], list[Row]]] = {
    "noise": noise,
    "overhead": overhead,
    "learning": learning,
    "batch": batch,
    "pauses": pauses,
    "kills": kills,
    "sync": architectures,
}


_FEW_PROCESSES = ["noise", "learning", "sync"]


def main() -> int:
    """See the module."""
    words = sys.argv[1:]
    quick = "--quick" in words
    # starting replicas costs most: the smoke form leaves out what integration tests of resizes and kills start as well
    chosen = [word for word in words if word in SECTIONS] or either(_FEW_PROCESSES, list(SECTIONS))
    if unknown := [word for word in words if word not in SECTIONS and word != "--quick"]:
        raise SystemExit(f"unknown section {unknown[0]!r}; known: {', '.join(SECTIONS)}")
    kept = True
    for name in chosen:
        kept = show(name + (" (quick: fewer repeats)" if quick else ""), SECTIONS[name](quick)) and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
