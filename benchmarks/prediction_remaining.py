"""Remaining time and remaining work: how far off, and do the stated 80% intervals hold?

    python -m benchmarks.prediction_remaining [--quick]

- generated streams of batch times: seven kinds (noise, stragglers, epochs with validation, stops, resizes, batch changes, all of it);
- jobs of the real simulator on tuned-1.0x-1 and -2 (noise, stragglers, 30 s per change), by Tiresias and by Pollux;
- real runs here: a small numpy network that writes a log, read back by ``training_log``;
- remaining work towards a target metric: each validation curve held out, by its course alone and with the pool of the others.

The error is |predicted - true| / true of the time (work) left, when 10, 25, 50, 75 and 90% of the work is done.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.cells import cell, source_hash
from benchmarks.measure import Row, show
from benchmarks.published import CORE, data_dir, truths, workload
from coadapt.model import (
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Measured,
    Record,
    parse_cluster,
)
from coadapt.policies import Policy
from coadapt.policies.pollux import PolluxPolicy
from coadapt.policies.tiresias import TiresiasPolicy
from coadapt.predict import pace
from coadapt.predict.eta import eta
from coadapt.predict.log_progress import LogState, read
from coadapt.predict.remaining import RemainingEvidence, remaining
from coadapt.predict.training_log import parse
from coadapt.simulate.profiled import TrainingOptions
from coadapt.simulate.run import Setting, simulate
from coadapt.store import MemoryLog

SHARES = (0.10, 0.25, 0.50, 0.75, 0.90)
KINDS = ("noise", "stragglers", "epochs", "stops", "resizes", "batches", "all")
Floats = npt.NDArray[np.float64]
#: (share of the work done, signed relative error of the time left, interval holds the truth)
Score = tuple[float, float, bool]
#: Reports of a job: time of running, work done (None: a change of its placement), placement.
Life = list[tuple[float, float | None, str]]
#: What the simulated runs depend on; how they are predicted is computed anew every time.
SOURCES = (*(each for each in CORE if not each.startswith("predict")), "policies/*.py", "predict/step_*.py")


# -- generated streams ---------------------------------------------------------------------------------


def stream(kind: str, rng: np.random.Generator) -> tuple[Floats, Floats, list[str]]:
    """Times and work after each batch, and the configuration where a scheduler would tell it."""
    n = int(rng.integers(400, 4000))
    base = float(np.exp(rng.normal(-1, 1)))
    took = base * np.exp(rng.normal(0, rng.uniform(0.02, 0.3), n))
    took *= np.exp(np.cumsum(rng.normal(0, rng.uniform(0, 0.08) / math.sqrt(n), n)))
    work, told = np.full(n, 64.0), [""] * n
    if kind in ("stragglers", "all"):
        took = np.where(rng.random(n) < rng.uniform(0.005, 0.04), took * rng.uniform(2, 8), took)
    if kind in ("resizes", "all"):
        told = ["start"] * n
        for number in range(1 + rng.poisson(0.5)):
            at = int(rng.integers(1, n))
            took[at:] *= math.exp(rng.choice([-1, 1]) * rng.uniform(0.2, 0.8))
            took[at] += 30.0 * base
            told[at:] = [f"resize {number}"] * (n - at)
    if kind in ("batches", "all"):
        at = int(rng.integers(1, n))
        took[at:] *= 2 ** rng.uniform(0.5, 0.95)
        work[at:] *= 2
    if kind in ("epochs", "all"):
        every = n // int(rng.integers(5, 30))
        took[every - 1 :: every] += base * rng.uniform(0.03, 0.15) * every
    if kind in ("stops", "all"):
        for _ in range(rng.poisson(0.6)):
            took[int(rng.integers(1, n))] += took.sum() * rng.uniform(0.005, 0.05)
    return np.cumsum(took), np.cumsum(work), told


def follow(at: Floats, work: Floats, told: list[str]) -> Iterator[Score]:
    """Scores of one run at the shares."""
    state, total = pace.observe(pace.START, 0.0, 0.0, told[0]), float(work[-1])
    marks = {int(np.searchsorted(work, share * total)): share for share in SHARES}
    for i, (now, done) in enumerate(zip(at.tolist(), work.tolist(), strict=True)):
        state = pace.observe(state, now, done, told[i])
        if i in marks:
            estimate, true = eta(state, total - done), float(at[-1]) - now
            assert estimate is not None
            yield marks[i], estimate.value / true - 1, estimate.low <= true <= estimate.high


# -- the real simulator ----------------------------------------------------------------------------------


class Lives:
    """Follows every job of a simulation by the events a controller sees; its clock stops while it holds nothing."""

    def __init__(self) -> None:
        self.runs: dict[str, Life] = {}
        self.finished: dict[str, float] = {}
        self._ran: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._config: dict[str, str] = {}

    def _clock(self, job: str, at: float) -> float:
        return self._ran.get(job, 0.0) + (at - self._since[job] if job in self._since else 0.0)

    def __call__(self, record: Record) -> None:
        event, at = record.event, record.at
        if isinstance(event, JobStarted):
            self._since[event.job] = at
            self._note(event.job, at, None)
        elif isinstance(event, JobResized):
            self._note(event.job, at, None)
        elif isinstance(event, JobStopped):
            self._ran[event.job] = self._clock(event.job, at)
            self._since.pop(event.job, None)
        elif isinstance(event, JobFinished):
            self.finished[event.job] = self._clock(event.job, at)
        elif isinstance(event, Measured) and event.measurement.work is not None:
            config = event.measurement.config
            self._config[event.job] = f"{config.nodes} {config.replicas}"
            self._note(event.job, at, event.measurement.work)

    def _note(self, job: str, at: float, work: float | None) -> None:
        self.runs.setdefault(job, []).append((self._clock(job, at), work, self._config.get(job, "")))


def simulated(policy: Policy, name: str, seed: int) -> dict[str, list[tuple[Life, float, float]]]:
    """What each job of a workload reported, its time of running, and its total work."""
    lives = Lives()
    options = TrainingOptions(report_s=30.0, noise=0.05, straggler_chance=0.05)
    jobs = workload(name)
    simulate(
        jobs,
        parse_cluster("16x4"),
        policy,
        MemoryLog(keep=False),
        truths=truths(),
        setting=Setting(interval_s=60.0, training=options, seed=seed),
        on_record=lives,
    )
    found = []
    for _, job, spec in jobs:
        truth = truths()[spec.profile]
        total = truth.epoch_marks()[-1] * truth.limits("").initial
        found.append((lives.runs[job], lives.finished[job], total))
    return {"jobs": found}


def _job_scores(run: Life, end_s: float, total: float) -> Iterable[Score]:
    state, left = pace.START, list(SHARES)
    for at, work, config in run:
        if work is None:
            state = pace.resume(state, at) if state.at is not None else state
            continue
        state = pace.observe(state, at, work, config)
        while left and work >= left[0] * total and at < end_s:
            share = left.pop(0)
            estimate = eta(state, max(total - work, 0.0))
            if estimate is not None and work < min(share + 0.08, 0.99) * total:
                true = end_s - at
                yield share, estimate.value / true - 1, estimate.low <= true <= estimate.high


# -- real runs -------------------------------------------------------------------------------------------


def train(path: Path, seed: int, seconds: float) -> None:
    """A two-layer network on random data, by plain numpy: writes one line per few batches, with both clocks."""
    rng = np.random.default_rng(seed)
    width, batch = int(rng.integers(64, 256)), int(rng.choice([32, 64, 128]))
    x, y = rng.normal(size=(2048, 64)), rng.normal(size=(2048, 1))
    w1, w2 = rng.normal(size=(64, width)) / 8, rng.normal(size=(width, 1)) / 16
    steps = 2048 // batch
    began = time.process_time()
    for _ in range(100):
        _batch(x[:batch], y[:batch], w1, w2)
    epochs = max(int(seconds / ((time.process_time() - began) / 100 * steps * 1.3)), 20)
    with path.open("w") as log:
        for epoch in range(1, epochs + 1):
            order = rng.permutation(2048)
            for step in range(1, steps + 1):
                rows = order[(step - 1) * batch : step * batch]
                loss = _batch(x[rows], y[rows], w1, w2)
                if step % 4 == 0:
                    told = f"Epoch [{epoch}/{epochs}] Step [{step}/{steps}] loss: {loss:.4f}"
                    log.write(f"{_stamp(time.time())} {told}\t{_stamp(time.process_time())} {told}\n")
            # validation, which the log does not mention
            assert float(((np.maximum(x @ w1, 0) @ w2 - y) ** 2).mean()) > 0


def _stamp(now: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}"


def _batch(x: Floats, y: Floats, w1: Floats, w2: Floats) -> float:
    hidden = np.maximum(x @ w1, 0)
    error = hidden @ w2 - y
    w1 -= 1e-3 * (x.T @ ((error @ w2.T) * (hidden > 0))) / len(x)
    w2 -= 1e-3 * (hidden.T @ error) / len(x)
    return float((error**2).mean())


def real(seed: int, seconds: float) -> tuple[list[Score], list[Score]]:
    """Trains for a few seconds, then reads the log as ``coadapt watch`` does: by the wall clock, by CPU time.

    CPU time is what the run takes for itself; the wall clock also tells what else this machine was doing.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        # one thread: those of OpenBLAS spin while they wait, and the times of a busy machine are then anything
        one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        arguments = [
            sys.executable,
            "-m",
            "benchmarks.prediction_remaining",
            "--train",
            str(path),
            str(seed),
            str(seconds),
        ]
        subprocess.run(arguments, env=os.environ | one, check=True)
        lines = [line.split("\t") for line in path.read_text().splitlines()]
    return _log_scores([wall for wall, _ in lines]), _log_scores([cpu for _, cpu in lines])


def _log_scores(lines: list[str]) -> list[Score]:
    readings = [found for found in map(parse, lines) if found is not None]
    end = readings[-1].stamp_s
    assert end is not None
    state, left, scores = LogState(), list(SHARES), []
    for reading in readings[:-1]:
        state = read(state, reading)
        assert state.done is not None
        assert state.total is not None
        assert reading.stamp_s is not None
        if left and state.done >= left[0] * state.total:
            estimate, true = eta(state.run, state.total - state.done), end - reading.stamp_s
            assert estimate is not None
            scores.append((left.pop(0), estimate.value / true - 1, estimate.low <= true <= estimate.high))
    return scores


# -- remaining work by the metric ------------------------------------------------------------------------


def held_out_curves(task: str, rising: bool, with_pool: bool) -> list[dict[str, float]]:
    """Every validation curve held out: work left until the metric reached at 40, 60, 80 and 95% of the run."""
    curves = {}
    for path in sorted((data_dir() / "pollux" / task).glob("validation-*.csv")):
        with path.open() as file:
            curves[path.stem] = [(float(r["progress"]), float(r["metric"])) for r in csv.DictReader(file)]
    found = []
    for name, points in curves.items():
        metric = np.array([value for _, value in points])
        best = np.maximum.accumulate(metric) if rising else np.minimum.accumulate(metric)
        goals = {float(best[max(int(part * len(metric)) - 1, 0)]) for part in (0.4, 0.6, 0.8, 0.95, 1.0)}
        for goal in sorted(goals):
            total = _reached(points, goal, rising)
            others = [_reached(other, goal, rising) for key, other in curves.items() if key != name]
            past = tuple(each for each in others if each is not None) if with_pool else ()
            assert total is not None
            found += list(_curve_scores(points, total, goal, past, rising))
    return found


def _reached(points: list[tuple[float, float]], goal: float, rising: bool) -> float | None:
    return next((work for work, value in points if (value >= goal if rising else value <= goal)), None)


def _curve_scores(
    points: list[tuple[float, float]], total: float, goal: float, past: tuple[float, ...], rising: bool
) -> Iterator[dict[str, float]]:
    for share in SHARES:
        seen = tuple(point for point in points if point[0] <= share * total)
        if not seen and not past:
            continue
        done = seen[-1][0] if seen else share * total
        if not done < total:
            continue
        answer = remaining(
            RemainingEvidence(
                done=done,
                target=f"metric{'>=' if rising else '<='}{goal!r}",
                curve=seen,
                past=past,
                unit=points[0][0],
            )
        )
        true, estimate = total - done, answer.estimate
        yield {
            "share": share,
            "error": abs(estimate.value - true) / total if math.isfinite(estimate.value) else math.inf,
            "covered": float(estimate.low <= true <= estimate.high),
        }


# -- rows ------------------------------------------------------------------------------------------------


def _rows(what: str, scores: list[Score], must: float, aim: float | None, *, half_only: bool) -> list[Row]:
    rows = []
    for share in SHARES:
        picked = [score for score in scores if score[0] == share]
        if not picked:
            continue
        errors = np.abs([score[1] for score in picked])
        held = float(np.mean([score[2] for score in picked]))
        note = (
            f"median; mean {100 * errors.mean():.1f}%, bias {100 * np.median([s[1] for s in picked]):+.1f}%, "
            f"80% interval holds {100 * held:.0f}% of {len(picked)}"
        )
        wanted = share == 0.5 or not half_only
        rows.append(
            Row(
                what=f"ETA, {what}, {100 * share:.0f}% done",
                figure=100 * float(np.median(errors)),
                must=must if wanted else math.inf,
                aim=aim if wanted else None,
                unit="%",
                note=note,
            )
        )
    held = 100 * float(np.mean([score[2] for score in scores]))
    slack = max(5.0, 200 * math.sqrt(0.16 / len(scores)) if len(scores) < 250 else 0.0)
    rows.append(
        Row(
            what=f"ETA, {what}: |coverage - 80|, all shares",
            figure=abs(held - 80),
            must=slack,
            unit=" points",
            note=f"{held:.1f}% of {len(scores)}",
        )
    )
    return rows


def _simulator_scores(name: str, policy: type[Policy]) -> list[Score]:
    scores: list[Score] = []
    for load in ("tuned-1.0x-1", "tuned-1.0x-2"):
        runs = cell(
            "eta-simulated",
            {"policy": name, "workload": load},
            source_hash(SOURCES),
            partial(simulated, policy(), load, 0),
        )
        for run, end_s, total in runs["jobs"]:
            scores += _job_scores(run, end_s, total)
    return scores


def rows(quick: bool = False) -> list[Row]:
    """All figures of this part; ``quick`` has fewer runs and leaves the simulator out."""
    made: list[Score] = []
    for number, kind in enumerate(KINDS):
        for seed in range(15 if quick else 60):
            made += follow(*stream(kind, np.random.default_rng((number, seed))))
    found = _rows("generated streams", made, 5.0, 3.0, half_only=True)
    if not quick:
        for name, policy in (("Tiresias", TiresiasPolicy), ("Pollux", PolluxPolicy)):
            found += _rows(f"simulator, {name}", _simulator_scores(name, policy), 5.0, 3.0, half_only=True)
    wall: list[Score] = []
    cpu: list[Score] = []
    for seed in range(4 if quick else 20):
        for scores, more in zip((wall, cpu), real(seed, 1.5 if quick else 4.0), strict=True):
            scores += more
    found += _rows("real runs here, CPU time", cpu, 5.0, 3.0, half_only=True)
    load = f"load {os.getloadavg()[0]:.1f}"
    found += _rows(f"real runs here, wall clock, {load}", wall, math.inf, None, half_only=True)
    for task in ("bert", "cifar10", "imagenet"):
        for with_pool in (False, True):
            found += _curve_rows(task, with_pool)
    return found


def _curve_rows(task: str, with_pool: bool) -> list[Row]:
    scores = held_out_curves(task, True, with_pool)
    how = "course and pool" if with_pool else "course alone"
    if not scores:
        return []
    answered = [100 * score["error"] for score in scores if math.isfinite(score["error"])]
    held = 100 * float(np.mean([score["covered"] for score in scores]))
    figure = float(np.median(answered)) if answered else math.nan
    note = f"answered {len(answered)} of {len(scores)}, rest 'not on this course'; 80% interval holds {held:.0f}%"
    return [
        Row(
            what=f"work to a metric, {task}, {how} (of the total)",
            figure=figure,
            must=math.inf,
            unit="%",
            note=note,
        )
    ]


def main() -> None:
    """Prints the table; exits 1 where a must does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--train", nargs=3, metavar=("LOG", "SEED", "SECONDS"), help="one real run, nothing else"
    )
    given = parser.parse_args()
    if given.train:
        train(Path(given.train[0]), int(given.train[1]), float(given.train[2]))
        return
    sys.exit(0 if show("Remaining time and work", rows(given.quick)) else 1)


if __name__ == "__main__":
    main()
