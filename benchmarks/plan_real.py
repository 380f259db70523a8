"""Real runs on this machine: ``coadapt plan --profile`` on a small network, its choice then run, predicted beside actual.

Run: python -m benchmarks.plan_real [--quick]

scikit-learn's digits, batch sizes 32 to 256, one or two processes, target 0.93. Each repetition has its own seed: a reference run, short
runs, the plan, and the run it names. Actual time: seconds of training until the target was reached (to the end, if it never was), beside the
80% interval of the plan; actual metric: after as many passes as the plan expects.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, show

REPEATS, QUICK_REPEATS = 10, 2
TARGET = 0.93
SCRIPT = Path(__file__).with_name("digits_train.py")


def repetition(seed: int) -> dict[str, Any]:
    """One plan and its run."""
    template = f"{sys.executable} {SCRIPT} --bs {{batch_size}} --workers {{workers}} --epochs {{epochs}} --lr {{lr}} --seed {seed}"
    words = [
        sys.executable, "-m", "coadapt.cli.main", "plan", "--profile", template, "--target", f"val_acc>={TARGET}", "--gpus", "cpu:1..2",
        "--batch", "32..256", "--deadline", "5m", "--lr", "0.05", "--lr-rule", "linear", "--reference-epochs", "12", "--runs", "5",
        "--run-epochs", "3", "--json",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr)
    plan = json.loads(done.stdout)
    row = plan["chosen"] or plan["nearest"]
    command = [
        sys.executable, str(SCRIPT), "--bs", str(row["batch"]), "--workers", str(row["replicas"]), "--epochs",
        str(int(row["passes_enough"]) + 6), "--lr", f"{row['lr']:g}", "--seed", str(seed + 1000),
    ]  # fmt: skip
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    reports = [json.loads(line[8:]) for line in output.splitlines() if line.startswith("COADAPT ")]
    spent, actual = 0.0, None
    for report in reports:
        spent += report["epoch_s"]
        if actual is None and report["val_acc"] >= TARGET:
            actual = spent
    metric = reports[min(int(row["passes"]), len(reports)) - 1]["val_acc"]
    return {"row": row, "actual_s": actual or spent, "reached": actual is not None, "metric": metric}


def main() -> None:
    """Prints all and exits 1 where a must falls short."""
    repeats = QUICK_REPEATS if "--quick" in sys.argv[1:] else REPEATS
    times = metrics = 0
    for seed in range(repeats):
        found = repetition(seed)
        row, total, metric = found["row"], found["row"]["total_s"], found["row"]["metric"]
        in_time = total["low"] <= found["actual_s"] <= total["high"]
        in_metric = metric["low"] <= found["metric"] <= metric["high"]
        times, metrics = times + in_time, metrics + in_metric
        print(
            f"{row['gpus']} processes, batch {row['batch']}: time {total['value']:.2f} s ({total['low']:.2f} to {total['high']:.2f}), actual "
            f"{found['actual_s']:.2f} s; metric {metric['value']:.3f} ({metric['low']:.3f} to {metric['high']:.3f}), actual {found['metric']:.3f}",
            flush=True,
        )
    share = 0.8 * repeats
    rows = [
        Row("real runs: time inside its interval", times, share, None, f" of {repeats}", "", True),
        Row("real runs: metric inside its interval", metrics, share, None, f" of {repeats}", "", True),
    ]
    if not show("Real runs", rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
