"""``python -m benchmarks.agent [SECTION ...]``: what ``coadapt.torch`` promises, measured with real processes on this machine.

Sections: noise, overhead, learning, batch, pauses, kills. Every cell is saved (``benchmarks.cells``) and reused until the agent
changes, so that the run may be stopped and taken up again; ``--quick`` makes fewer repeats, and says so.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agent_kills import kills
from benchmarks.agent_pauses import pauses
from benchmarks.cells import ROOT, cell, source_hash
from benchmarks.measure import Row, show

_SOURCES = (
    "torch/*.py",
    "torch/rates/*.py",
    "torch/batches/*.py",
    "torch/sync/ring.py",
    "torch/sync/_base.py",
)
_SETTING = ("agent_worker.py", "agent_tasks.py")
#: Flat up to 1,024 examples: a device that larger batches cost nothing.
FLAT = {"seconds": {"1": 0.03, "1024": 0.03, "8192": 0.24}}
#: 30 ms and 0.75 ms per example: where larger batches pay less and less.
RISING = {"seconds": {str(m): 0.03 + 0.00075 * m for m in (1, 8, 32, 64, 128, 256, 512, 1024, 2048)}}


def worker(
    what: str, options: dict[str, Any], replicas: int = 1, pace: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Runs replicas of a benchmark; the first one's answer."""
    with tempfile.TemporaryDirectory() as directory:
        envs = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(random.randint(20000, 50000)),
            "WORLD_SIZE": str(replicas),
            "LOCAL_WORLD_SIZE": str(replicas),
        }
        if pace is not None:
            (Path(directory) / "pace.json").write_text(json.dumps(pace))
            envs["COADAPT_PACE"] = str(Path(directory) / "pace.json")
        command = [sys.executable, "-m", "benchmarks.agent_worker", what, json.dumps(options)]
        started = [
            subprocess.Popen(
                command, env={**envs, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=subprocess.PIPE, cwd=ROOT
            )
            for r in range(replicas)
        ]
        outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{what} {options}: exit codes {[process.returncode for process in started]}")
    lines = [line for line in outputs[0].decode().splitlines() if line.startswith("ANSWER ")]
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER "))
    return answer


def saved(
    what: str, options: dict[str, Any], replicas: int = 1, pace: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The same, kept."""
    arguments = {"options": options, "replicas": replicas, "pace": pace}
    sources = source_hash(_SOURCES, setting=_SETTING)
    return cell(f"agent-{what}", arguments, sources, lambda: worker(what, options, replicas, pace))


def noise(quick: bool) -> list[Row]:
    """Frozen parameters, mean of 1,000 steps, against per-sample gradients."""
    steps, rows = 200 if quick else 1000, []
    ways = (
        ("4 replicas", {"batch": 128, "atomic": 32}, 4, 0.10),
        ("accumulation, 4 passes", {"batch": 128, "atomic": 32}, 1, 0.15),
        (
            "successive gradients (frozen: bias of the steps themselves is 0)",
            {"batch": 32, "atomic": 32},
            1,
            0.30,
        ),
    )
    for name, options, replicas, must in ways:
        found = saved("noise", {**options, "steps": steps}, replicas)
        off = abs(found["phi"] / found["true_phi"] - 1)
        note = f"phi {found['phi']:.1f}, true {found['true_phi']:.1f}; standard error of sqr {found['error_of_sqr']:.1%}"
        rows.append(Row(f"noise scale, {name}", off, must, note=note))
    return rows


def overhead(quick: bool) -> list[Row]:
    """CPU time against plain DDP, blocks in turns."""
    rows = []
    for model, must, aim in (("cnn", 0.03, 0.02), ("mlp100k", 0.06, 0.04), ("mlp2m", 0.06, 0.04)):
        for replicas in (1, 2):
            for batch in (32, 128):
                options = {"model": model, "batch": batch, "steps": 40, "blocks": 8 if quick else 24}
                found = saved("overhead", options, replicas)
                cpu = found["cpu_s"]
                ratios = [ours / plain for ours, plain in zip(cpu["ours"], cpu["plain"], strict=True)]
                low, _, high = statistics.quantiles(ratios, n=4)
                note = f"{statistics.median(cpu['plain']) * 1e3:.2f} ms plain; quartiles {low - 1:+.1%} {high - 1:+.1%}"
                note += f"; a sample every {found['interval']}; load {found['load']:.1f}"
                what = f"overhead, {model}, {replicas} process{'es' * (replicas > 1)}, batch {batch}"
                rows.append(Row(what, statistics.median(ratios) - 1, must, aim, note=note))
    return rows


def learning(quick: bool) -> list[Row]:
    """Adaptive against the reference batch for equal work: accuracy lost, at 95%."""
    rows = []
    settings = [("digits", "mlp", 20), ("digits", "cnn", 20), ("mnist", "mlp", 15), ("mnist", "cnn", 10)]
    for data, model, epochs in settings:
        differences, grown = [], []
        pairs = [(fold, seed) for seed in range(2) for fold in range(5)]
        for fold, seed in pairs[: 3 if quick else 10]:
            options = {
                "data": data,
                "model": model,
                "fold": fold,
                "seed": seed,
                "epochs": epochs,
                "max": 1024,
            }
            pair = [saved("learn", {**options, "batch": rule}, pace=FLAT) for rule in ("adaptive", "fixed")]
            differences.append(100 * (pair[1]["accuracy"] - pair[0]["accuracy"]))
            grown.append(pair[1]["steps"] / pair[0]["steps"])
        mean, error = (
            float(np.mean(differences)),
            float(np.std(differences, ddof=1) / len(differences) ** 0.5),
        )
        worst = mean + 1.833 * error  # one-sided 95% of Student's t with nine degrees of freedom
        note = f"mean {mean:+.2f} of {len(differences)} pairs; {statistics.median(grown):.1f}x fewer steps"
        rows.append(Row(f"points lost, {data} {model}, adaptive against batch 32", worst, 1.0, note=note))
    return rows


def batch(quick: bool) -> list[Row]:
    """Growth where it is free, and the batch chosen against the best of all where it is not."""
    options = {"data": "digits", "model": "mlp", "fold": 0, "seed": 0, "batch": "adaptive", "max": 4096}
    flat = saved("learn", {**options, "epochs": 20}, pace=FLAT)
    rows = [Row("growth of the batch on a flat device", flat["largest"] / 32, 8, at_least=True, unit="x")]
    moments = [7, 14, 21]
    rising = saved("learn", {**options, "epochs": 24, "moments": moments}, pace=RISING)
    for moment in rising["moments"]:
        best = max(_goodput(m, moment["true_phi"]) for m in range(32, 4097))
        share = _goodput(moment["batch"], moment["true_phi"]) / best
        estimated = f"{moment['phi']:.0f}" if moment["phi"] else "unknown"
        note = f"batch {moment['batch']}; phi {estimated}, true {moment['true_phi']:.0f}"
        rows.append(
            Row(
                f"goodput of the batch chosen, epoch {moment['epoch'] + 1}",
                share,
                0.95,
                at_least=True,
                note=note,
            )
        )
    return rows


def _goodput(batch_size: int, phi: float) -> float:
    passes = max(-(-batch_size // 1024), 2 if batch_size > 32 else 1)
    seconds = passes * (0.03 + 0.00075 * batch_size / passes)
    return batch_size / seconds * (phi + 32) / (phi + batch_size)


SECTIONS: dict[str, Callable[[bool], list[Row]]] = {
    "noise": noise,
    "overhead": overhead,
    "learning": learning,
    "batch": batch,
    "pauses": pauses,
    "kills": kills,
}


def main() -> int:
    """See the module."""
    words = sys.argv[1:]
    quick = "--quick" in words
    chosen = [word for word in words if word in SECTIONS] or list(SECTIONS)
    if unknown := [word for word in words if word not in SECTIONS and word != "--quick"]:
        raise SystemExit(f"unknown section {unknown[0]!r}; known: {', '.join(SECTIONS)}")
    kept = True
    for name in chosen:
        kept = show(name + (" (quick: fewer repeats)" if quick else ""), SECTIONS[name](quick)) and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
