"""Answers of ``coadapt plan --json`` to questions of every kind, from the data in ``examples``."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from coadapt.cli.main import run
from coadapt.prediction.remaining.past_jobs import PastJob, Pool
from coadapt.prediction.step_time.step_table import StepTimeRow, StepTimeTable
from coadapt.store.pool_file import write_pool

ROOT = Path(__file__).resolve().parents[2]
_SAMPLES = ("--samples", "examples/runs.csv")
_PRICES = ("--prices", "examples/prices.yaml")
_TARGET = ("--target", "val_acc>=0.92")
#: A job without a metric, as past jobs know none.
_JOB = """name: net-run-18
run: python train.py --bs {batch_size} --epochs {epochs}
resources: {accelerators: "t4:1..4"}
data_size: 10000
batch: {initial: 64, max: 512}
"""
QUESTIONS: dict[str, tuple[str, ...]] = {
    "deadline": (*_SAMPLES, *_TARGET, "--deadline", "20m", "--gpus", "t4:1..16"),
    "budget": (*_SAMPLES, *_TARGET, "--budget", "$1", *_PRICES, "--gpus", "t4:1..16", "--stops-at-target"),
    "target out of reach": (*_SAMPLES, "--target", "val_acc>=0.96", "--deadline", "9h", "--gpus", "t4:1..8"),
    "limits too tight": (*_SAMPLES, *_TARGET, "--deadline", "2m", "--budget", "0.01", "--gpus", "t4:1..4"),
    "several types": (
        *(*_SAMPLES, *_TARGET, *_PRICES, "--gpus", "t4:1..8,a100:1..4", "--minimize", "time"),
        *(
            "--setup-time",
            "30s",
            "--validation-time",
            "5s",
            "--checkpoint-time",
            "2s",
            "--gpus-per-node",
            "4",
        ),
    ),
    "best metric": (*_SAMPLES, "--maximize", "metric", "--deadline", "40m", "--gpus", "t4:1..16"),
    "epochs and learning rate": (
        *(*_SAMPLES, "--epochs", "30", "--deadline", "1h", "--gpus", "t4:1..8"),
        *("--lr", "0.1", "--lr-rule", "adascale", "--confidence", "0.8"),
    ),
    "specification": (
        *("examples/train.yaml", *_SAMPLES, *_PRICES, "--deadline", "6h", "--budget", "40", "--lr", "0.1"),
    ),
    "co-configuration": (
        *_SAMPLES,
        *_TARGET,
        "--deadline",
        "1h",
        "--gpus",
        "t4:1..8",
        "--planner",
        "co-configuration",
    ),
    "cynthia": (*_SAMPLES, *_TARGET, "--deadline", "1h", "--gpus", "t4:1..8", "--planner", "cynthia"),
    "past jobs": ("job.yaml", "--pool", "past.pool", "--minimize", "time"),
}
#: Depends on the clock and the time zone.
_CLOCK = frozenset({"deadline"})
#: Sentences for people.
_WORDS = frozenset({"why", "notes", "text"})


def answers() -> Iterator[tuple[str, Any, Any]]:
    """Name, answer, and answer without words of every question; with the exit code in both."""
    with tempfile.TemporaryDirectory() as name, _home(name), chdir(name):
        Path("examples").symlink_to(ROOT / "examples")
        Path("job.yaml").write_text(_JOB)
        write_pool("past.pool", past_jobs())
        for question, words in QUESTIONS.items():
            found = asked(words)
            yield question, without(found, _CLOCK), without(found, _CLOCK | _WORDS)


@contextmanager
def _home(directory: str) -> Iterator[None]:
    """What commands keep, they keep there."""
    before = os.environ.get("COADAPT_HOME")
    os.environ["COADAPT_HOME"] = directory
    try:
        yield
    finally:
        if before is None:
            del os.environ["COADAPT_HOME"]
        else:
            os.environ["COADAPT_HOME"] = before


def past_jobs() -> Pool:
    """Two past jobs of one name, with step times on one and more GPUs and with gradient noise."""
    return Pool(jobs=(_past("net-run-16", 1.0), _past("net-run-17", 1.06)))


def _past(name: str, slower: float) -> PastJob:
    rows = []
    for replicas in (1, 2, 4):
        for batch in (32, 64, 128):
            sync_s = slower * (0.005 if replicas == 1 else 0.02 + 0.004 * replicas)
            step_s = slower * (0.02 + 0.002 * batch) + sync_s
            rows.append(
                StepTimeRow(
                    gpu_type="t4",
                    nodes=1,
                    replicas=replicas,
                    atomic_batch=batch,
                    count=50,
                    step_s=step_s,
                    sync_s=sync_s,
                    step_var=1e-6,
                    sync_var=1e-6,
                    fit_step_s=step_s,
                    fit_sync_s=sync_s,
                )
            )
    return PastJob(
        name=name,
        data_size=10_000,
        batch=64,
        table=StepTimeTable(rows=tuple(rows)),
        noise=((0.1, 300.0), (0.5, 600.0), (0.9, 900.0)),
        total_work=300_000 * slower,
    )


def asked(words: tuple[str, ...]) -> dict[str, Any]:
    """The answer as the command prints it, and its exit code."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = run(["plan", *words, "--json"])
    return {"exit_code": code, "answer": json.loads(out.getvalue())}


def without(value: Any, names: frozenset[str]) -> Any:
    """Plain data without the keys of these names, at any depth."""
    if isinstance(value, dict):
        return {key: without(each, names) for key, each in value.items() if key not in names}
    return [without(each, names) for each in value] if isinstance(value, list) else value
