"""``python -m benchmarks.demo [--runs 3]``: does co-adaptation pay for real, in the mix of ``make demo``?

Each run: the eight jobs under coadapt, under FIFO with the sizes their authors guess, and under FIFO with one GPU each, in turns.
The guesses are poor ones: at the demo's paces a second GPU makes a job of batch 64 only 1.15 to 1.26 times as fast, so by the
paces alone (``fifo_s``) one GPU each is within 3% of the best fixed sizes there are, and a quarter below the guesses. Who wins
over guesses need not win over those.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo"
sys.path.insert(0, str(DEMO))

from jobs import (  # noqa: E402
    BATCH,
    DATA_SIZE,
    JOBS,
    PACES,
    DemoJob,
)

from benchmarks.measure import (  # noqa: E402
    Row,
    show,
)
from benchmarks.smoke import either  # noqa: E402
from coadapt.prediction.step_time.pollux import StepTimeParams  # noqa: E402

WAYS = {
    "coadapt": ("--only", "coadapt"),
    "fifo, as guessed": ("--only", "fifo"),
    "fifo, one GPU each": ("--only", "fifo", "--gpus", "1"),
}
GPUS = 4
#: Seconds of a job besides its steps (imports, validation, its end): with these FIFO as guessed comes to the 75 s that were measured.
START_S = 8.5


def job_s(job: DemoJob, gpus: int, start_s: float = START_S) -> float:
    """How long a job runs at the fixed batch size, by its pace."""
    pace: dict[str, Any] = dict(PACES[job.model])
    each = StepTimeParams(**pace).step_time(1, gpus, BATCH / gpus)
    return start_s + job.epochs * -(-DATA_SIZE // BATCH) * float(each)


def fifo_s(sizes: Sequence[int], start_s: float = START_S) -> float:
    """Average JCT under FIFO with backfill, by the paces alone."""
    free_at, waiting, jct, now = [0.0] * GPUS, list(zip(JOBS, sizes, strict=True)), [], 0.0
    while waiting:
        free = sum(at <= now for at in free_at)
        fitting = [pair for pair in waiting if pair[0].arrives_s <= now and pair[1] <= free]
        if not fitting:
            later = [at for at in free_at if at > now] + [
                j.arrives_s for j, _ in waiting if j.arrives_s > now
            ]
            now = min(later)
            continue
        job, gpus = fitting[0]
        waiting.remove(fitting[0])
        free_at.sort()
        free_at[:gpus] = [now + job_s(job, gpus, start_s)] * gpus
        jct.append(free_at[0] - job.arrives_s)
    return statistics.mean(jct)


def average_s(words: Sequence[str]) -> float:
    """Of one real run; it ends with an error where a job failed."""
    with tempfile.TemporaryDirectory(prefix="coadapt-demo-") as name:
        command = [sys.executable, str(DEMO / "run.py"), "-o", f"{name}/out", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (found,) = json.loads((Path(name) / "out" / "demo.json").read_text())["average_jct_s"].values()
        return float(found)


def main() -> int:
    """1 where a must falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    guessed = fifo_s([job.gpus for job in JOBS])
    print(
        f"by the paces alone: FIFO as guessed {guessed:.0f} s, one GPU each {fifo_s([1] * len(JOBS)):.0f} s"
    )
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    # a run lasts minutes: the smoke form takes the paces alone
    for number in range(either(0, given.runs)):
        for name, words in WAYS.items():
            found[name].append(average_s(words))
            print(f"run {number + 1}, {name}: average JCT {found[name][-1]:.1f} s", flush=True)
    rows = []
    for name in list(WAYS)[1:] if found["coadapt"] else ():
        pairs = zip(found["coadapt"], found[name], strict=True)
        below = [100 * (1 - ours / theirs) for ours, theirs in pairs]
        note = f"{min(below):.0f} to {max(below):.0f}% in {given.runs} runs"
        aim = 30 if name.endswith("guessed") else None
        rows.append(Row(f"average JCT below {name}", statistics.mean(below), 0, aim, "%", note, True))
    return 0 if show("The demo's mix", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
