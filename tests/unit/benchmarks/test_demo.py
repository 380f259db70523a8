"""FIFO of the demo by its paces alone."""

from __future__ import annotations

import itertools
import math

import pytest
from benchmarks.demo import fifo_s, job_s
from jobs import JOBS, PACES
from show import average_jct


def test_job_lasts_its_steps_and_its_start() -> None:
    job, pace = JOBS[0], PACES["cnn"]
    one = pace["alpha_c"] + 64 * pace["beta_c"]
    two = math.hypot(pace["alpha_c"] + 32 * pace["beta_c"], pace["alpha_r"])
    assert job.model == "cnn"
    assert job_s(job, 1, 3.0) == pytest.approx(3 + 14 * 23 * one)
    assert job_s(job, 2, 3.0) == pytest.approx(3 + 14 * 23 * two)


def test_whole_cluster_for_each_is_one_after_the_other() -> None:
    now, jct = 0.0, []
    for job in JOBS:
        now = max(now, job.arrives_s) + job_s(job, 4)
        jct.append(now - job.arrives_s)
    assert fifo_s([4] * 8) == pytest.approx(sum(jct) / 8)


def test_one_gpu_each_is_near_the_best_for_fifo_and_the_guesses_are_not() -> None:
    """What the benchmark and the docs say of the demo's guesses."""
    ones = fifo_s([1] * 8)
    best = min(fifo_s(sizes) for sizes in itertools.product((1, 2, 4), repeat=8))
    assert best <= ones <= 1.03 * best
    assert fifo_s([job.gpus for job in JOBS]) > 1.2 * ones


def test_averages_are_one_sentence() -> None:
    both = {"coadapt": 82.0, "fifo": 98.0}
    assert average_jct(both) == "average JCT: coadapt: 1m 22s, 16% less than FIFO with fixed sizes (1m 38s)"
    assert average_jct({"fifo": 98.0}) == "average JCT: fifo: 1m 38s"
