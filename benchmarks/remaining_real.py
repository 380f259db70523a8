"""Real runs on this machine: a small numpy network trains, writes a log, and the log is read as ``coadapt watch`` does.

One run after the other, one thread each, so that they do not disturb one another. Every line has three clocks:

- wall: what a user waits by. It also tells what else this machine was doing: with ten processes on two cores the pace of
  the second half of a run differs from that of the first by a tenth, whoever predicts;
- CPU: the time the run took for itself. On a busy machine that wanders too, for caches and cores are shared;
- fair: CPU time by how fast the machine was just then, which a fixed piece of work beside every line tells.

The promise is that of the fair clock, and that of the wall clock too where the load stayed below the number of cores. Runs are
saved (``benchmarks/.cells/eta-real-*``; delete them to measure anew).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.cells import cell, source_hash
from benchmarks.remaining_jobs import SHARES, Score
from coadapt.prediction.remaining.eta_estimate import eta
from coadapt.prediction.training_log import LogReader, parse

Floats = npt.NDArray[np.float64]
EXAMPLES = 8192
CLOCKS = ("wall", "CPU", "fair")
#: Batches of fixed work beside every line, and lines over which they are averaged.
REFERENCES, WINDOW = 4, 25


def train(path: Path, seed: int, seconds: float) -> None:
    """A two-layer network on random data, by plain numpy: a line about every 20 ms, with both clocks."""
    rng = np.random.default_rng(seed)
    width, batch = int(rng.integers(64, 256)), int(rng.choice([32, 64, 128]))
    x, y = rng.normal(size=(EXAMPLES, 64)), rng.normal(size=(EXAMPLES, 1))
    w1, w2 = rng.normal(size=(64, width)) / 8, rng.normal(size=(width, 1)) / 16
    steps = EXAMPLES // batch
    began, tried = time.perf_counter(), 0
    while time.perf_counter() < began + 0.02 * seconds:
        _batch(x[:batch], y[:batch], w1, w2)
        tried += 1
    step_s = (time.perf_counter() - began) / tried
    epochs, every = max(int(seconds / (step_s * steps)), 5), max(int(0.02 / step_s), 1)
    clock = _FairClock()
    with path.open("w") as log:
        for epoch in range(1, epochs + 1):
            order = rng.permutation(EXAMPLES)
            for step in range(1, steps + 1):
                rows = order[(step - 1) * batch : step * batch]
                loss = _batch(x[rows], y[rows], w1, w2)
                if step % every == 0 or step == steps:
                    told = f"Epoch [{epoch}/{epochs}] Step [{step}/{steps}] loss: {loss:.4f}"
                    clock.tick()
                    clocks = (time.time(), clock.cpu_s, clock.fair_s)
                    log.write("\t".join(f"{_stamp(each)} {told}" for each in clocks) + "\n")
            # validation, which the log does not mention
            assert float(((np.maximum(x @ w1, 0) @ w2 - y) ** 2).mean()) > 0


class _FairClock:
    """CPU time of a run, its own work beside it left out; and the same by how fast the machine is just then."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._work = [rng.normal(size=shape) for shape in ((64, 64), (64, 1), (64, 128), (128, 1))]
        self._took: deque[float] = deque((self._reference() for _ in range(WINDOW)), maxlen=WINDOW)
        self._usual = fmean(self._took)
        self.cpu_s = self.fair_s = 0.0
        self._mark = time.process_time()

    def tick(self) -> None:
        """Counts what the run took since the last tick."""
        spent_s = time.process_time() - self._mark
        self._took.append(self._reference())
        self.cpu_s += spent_s
        self.fair_s += spent_s * self._usual / fmean(self._took)
        self._mark = time.process_time()

    def _reference(self) -> float:
        began = time.process_time()
        for _ in range(REFERENCES):
            _batch(*self._work)
        return time.process_time() - began


def _stamp(now: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}"


def _batch(x: Floats, y: Floats, w1: Floats, w2: Floats) -> float:
    hidden = np.maximum(x @ w1, 0)
    error = hidden @ w2 - y
    w1 -= 1e-3 * (x.T @ ((error @ w2.T) * (hidden > 0))) / len(x)
    w2 -= 1e-3 * (hidden.T @ error) / len(x)
    return float((error**2).mean())


def run(seed: int, seconds: float) -> dict[str, Any]:
    """One run in a process of its own: its log's lines, and the load of this machine before and after."""
    before = os.getloadavg()[0]
    # one thread: those of OpenBLAS spin while they wait, and the times of a busy machine are then anything
    one = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        module = [sys.executable, "-m", "benchmarks.prediction_remaining", "--train"]
        subprocess.run([*module, str(path), str(seed), str(seconds)], env=one, check=True)
        lines = path.read_text().splitlines()
    return {"lines": lines, "load": [before, os.getloadavg()[0]]}


def scores(count: int, seconds: float) -> tuple[dict[str, list[Score]], tuple[float, float]]:
    """By each clock, and the least and the largest load of the machine."""
    found: dict[str, list[Score]] = {name: [] for name in CLOCKS}
    loads: list[float] = []
    sources = source_hash((), setting=("remaining_real.py",))
    for seed in range(count):
        saved = cell("eta-real", {"seed": seed, "seconds": seconds}, sources, partial(run, seed, seconds))
        for name, lines in zip(
            CLOCKS, zip(*(line.split("\t") for line in saved["lines"]), strict=True), strict=True
        ):
            found[name] += log_scores(list(lines))
        loads += saved["load"]
    return found, (min(loads), max(loads))


def log_scores(lines: list[str]) -> list[Score]:
    """Reads the log as ``coadapt watch`` does."""
    end = parse(lines[-1])
    assert end is not None
    assert end.stamp_s is not None
    reader, left, found = LogReader(), list(SHARES), []
    for line in lines[:-1]:
        reading = reader.line(line)
        state = reader.progress()
        if reading is None or state is None:
            continue
        assert state.total is not None
        assert reading.stamp_s is not None
        if left and state.done >= left[0] * state.total:
            estimate, true = eta(state.pace, state.total - state.done), end.stamp_s - reading.stamp_s
            if estimate is None:
                continue  # too little is done for one yet; the next line will do
            held = estimate.low <= true <= estimate.upper
            found.append((left.pop(0), estimate.value, true, held))
    return found
