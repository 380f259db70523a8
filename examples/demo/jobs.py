"""The eight jobs of the demo, when they arrive, and how fast a virtual GPU computes their steps."""

from __future__ import annotations

from typing import Any, NamedTuple


class DemoJob(NamedTuple):
    """One job: which network, how long, when it comes, and what its author would have asked for."""

    name: str
    model: str
    epochs: int
    arrives_s: float
    gpus: int


#: Small and large, early and late; sizes as an author guesses them who cannot know what else will be there.
JOBS = (
    DemoJob("digits-cnn", "cnn", 14, 0.0, 2),
    DemoJob("digits-mlp", "mlp", 7, 2.0, 2),
    DemoJob("digits-linear", "linear", 5, 6.0, 1),
    DemoJob("digits-wide", "wide", 9, 10.0, 2),
    DemoJob("cnn-short", "cnn", 4, 16.0, 1),
    DemoJob("mlp-long", "mlp", 14, 20.0, 2),
    DemoJob("linear-late", "linear", 6, 30.0, 1),
    DemoJob("wide-late", "wide", 5, 36.0, 2),
)
BATCH, MOST_BATCH = 64, 1024
DATA_SIZE = 1437
#: Seconds of a step on a virtual t4, in the terms of the step-time model: ``_c`` computes (constant, per example),
#: ``_r`` synchronises within a node, ``_n`` between nodes (two replicas, each more).
PACES: dict[str, dict[str, float]] = {
    "linear": {
        "alpha_c": 0.10,
        "beta_c": 0.0006,
        "alpha_n": 0.05,
        "beta_n": 0.004,
        "alpha_r": 0.015,
        "beta_r": 0.002,
        "gamma": 2.0,
    },
    "mlp": {
        "alpha_c": 0.12,
        "beta_c": 0.0010,
        "alpha_n": 0.06,
        "beta_n": 0.004,
        "alpha_r": 0.020,
        "beta_r": 0.002,
        "gamma": 2.0,
    },
    "wide": {
        "alpha_c": 0.13,
        "beta_c": 0.0012,
        "alpha_n": 0.08,
        "beta_n": 0.005,
        "alpha_r": 0.025,
        "beta_r": 0.003,
        "gamma": 2.0,
    },
    "cnn": {
        "alpha_c": 0.14,
        "beta_c": 0.0016,
        "alpha_n": 0.06,
        "beta_n": 0.004,
        "alpha_r": 0.020,
        "beta_r": 0.002,
        "gamma": 2.0,
    },
}


def specification(job: DemoJob, python: str, *, fixed: bool) -> dict[str, Any]:
    """What is submitted: free in GPUs and batch size, or as its author would have fixed both."""
    command = [python, "train.py", "--model", job.model, "--epochs", str(job.epochs), "--batch", str(BATCH)]
    batch: dict[str, Any] = {"initial": BATCH, "max": MOST_BATCH, "per_gpu": "8..256", "mode": "adaptive"}
    if fixed:
        command += ["--max-batch", str(BATCH)]
        batch = {"initial": BATCH, "max": BATCH, "per_gpu": "8..64", "mode": "fixed"}
    return {
        "name": job.name,
        "run": command,
        "resources": {"accelerators": f"t4:{job.gpus}" if fixed else "t4:1..4"},
        "batch": batch,
        "epochs": job.epochs,
        "data_size": DATA_SIZE,
        "profile": job.model,
        "preemptible": not fixed,
    }
