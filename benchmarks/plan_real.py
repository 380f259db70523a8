"""Real runs on this machine: ``coadapt plan --profile`` on a small network, its choice then run, predicted beside actual.

Run: python -m benchmarks.plan_real [--quick] [--keep FILE [--most N]]

``examples/train_digits.py``: scikit-learn's digits, batch sizes 32 to 256, one or two processes, target 0.95. Each repetition has its own seed: a
reference run, short runs, the plan, and then the very command the plan prints, with another seed. Actual time: of the whole command, start-up included.
Actual metric: the one it ends with. Both beside the plan's 80% intervals. ``--keep`` takes up repetitions that were made before by the same
code, ``--most`` limits further runs: a shared machine is quiet for minutes only. Fewer runs than requested do not count as a pass.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.cells import source_hash
from benchmarks.measure import Row, show
from benchmarks.smoke import either

REPEATS, QUICK_REPEATS = 10, 2
TARGET, REFERENCE_EPOCHS = 0.95, 20
SCRIPT = Path(__file__).parents[1] / "examples" / "train_digits.py"
#: The run that is made has a seed of its own.
_OTHER = 1000
#: What a repetition depends on: those that other code made are not taken up.
_SOURCES = (
    "planning/*.py",
    "planning/*.py",
    "planning/past_runs.py",
    "configure/*.py",
    "planning/**/*.py",
    "prediction/**/*.py",
    "planning/*.py",
)


def repetition(seed: int) -> dict[str, Any]:
    """One plan and its run."""
    template = f"{sys.executable} {SCRIPT} --bs {{batch_size}} --workers {{workers}} --epochs {{epochs}} --lr {{lr}} --seed {seed}{{seed}}"
    words = [
        sys.executable, "-m", "coadapt.cli.main", "plan", "--profile", template, "--target", f"val_acc>={TARGET}", "--gpus", "cpu:1..2",
        "--batch", "32..256", "--deadline", "5m", "--lr", "0.05", "--lr-rule", "sqrt", "--reference-epochs", str(either(2, REFERENCE_EPOCHS)),
        "--max-runs", either("1", "5"), "--run-epochs", either("1", "3"), "--json",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr)
    plan = json.loads(done.stdout)
    row = plan["chosen"] or plan["nearest"]
    command = plan["run"] or template.format(
        batch_size=row["batch"], workers=row["replicas"], epochs=row["epochs"], lr=row["lr"], seed=0
    )
    began = time.monotonic()
    other = command.replace(f"--seed {seed}0", f"--seed {seed + _OTHER}")
    assert other != command, f"the run would have the seed of the samples: {command}"
    output = subprocess.run(
        shlex.split(other),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    actual_s = time.monotonic() - began
    reports = [json.loads(line[8:]) for line in output.splitlines() if line.startswith("COADAPT ")]
    kept = ("gpus", "batch", "epochs", "total_s", "metric", "chance")
    trained_s = sum(report["epoch_s"] for report in reports)
    return {
        "seed": seed,
        "chosen": plan["chosen"] is not None,
        **{name: row[name] for name in kept},
        "actual_s": actual_s,
        "trained_s": trained_s,
        "actual": reports[-1]["val_acc"],
    }


def inside(found: dict[str, Any]) -> tuple[bool, bool]:
    """Whether time and metric lie in their intervals."""
    total, metric = found["total_s"], found["metric"]
    return total["low"] <= found["actual_s"] <= total["high"], metric["low"] <= found["actual"] <= metric[
        "high"
    ]


def said(found: dict[str, Any]) -> str:
    """One repetition in a line."""
    total, metric, (in_time, in_metric) = found["total_s"], found["metric"], inside(found)
    return (
        f"{found['seed']}: {found['gpus']} processes, batch {found['batch']}, {found['epochs']} epochs: time {total['value']:.2f} s "
        f"({total['low']:.2f} to {total['high']:.2f}), actual {found['actual_s']:.2f} ({found['trained_s']:.2f} in passes){'' if in_time else ' OUT'}; metric "
        f"{metric['value']:.3f} ({metric['low']:.3f} to {metric['high']:.3f}), actual {found['actual']:.3f}{'' if in_metric else ' OUT'}"
    )


def main() -> None:
    """Prints all and exits 1 where a must falls short."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--most", type=int, default=REPEATS)
    given = parser.parse_args()
    repeats = either(1, QUICK_REPEATS if given.quick else REPEATS)
    sources, results = source_hash(_SOURCES, setting=("plan_real.py",)), []
    if given.keep is not None and given.keep.exists():
        kept = [json.loads(line) for line in given.keep.read_text().splitlines()]
        results = [found for found in kept if found.get("sources") == sources][:repeats]
    for found in results:
        print(said(found))
    for seed in range(len(results), min(repeats, len(results) + given.most)):
        found = {**repetition(seed), "sources": sources}
        results.append(found)
        print(said(found), flush=True)
        if given.keep is not None:
            with given.keep.open("a") as stream:
                stream.write(json.dumps(found) + "\n")
    times, metrics = (sum(column) for column in zip(*map(inside, results), strict=True))
    share, of = 0.8 * len(results), f" of {len(results)}"
    rows = [
        Row("real runs", len(results), repeats, None, "", "", True),
        Row("real runs: time inside its interval", times, share, None, of, "", True),
        Row("real runs: metric inside its interval", metrics, share, None, of, "", True),
    ]
    print(f"target reached: {sum(found['actual'] >= TARGET for found in results)}{of}")
    if not show("Real runs", rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
