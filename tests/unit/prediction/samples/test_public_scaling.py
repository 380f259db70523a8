from __future__ import annotations

import math

import numpy as np
import pytest

from coadapt.prediction._base import FloatArray
from coadapt.prediction.samples import epoch_time
from coadapt.prediction.samples.public_scaling import (
    _RUN_SD,
    ScalingPrior,
    condition,
    features,
    fit_prior,
    log_times,
    shipped_prior,
)
from coadapt.prediction.samples.sample_table import EpochSample, EpochTable, epoch_table

PRIOR = ScalingPrior(
    mean=(-0.9, -0.2, 0.05, 0.1),
    covariance=(
        (0.04, 0.01, -0.01, 0.0),
        (0.01, 0.02, 0.0, 0.0),
        (-0.01, 0.0, 0.03, 0.0),
        (0.0, 0.0, 0.0, 0.01),
    ),
    noise=0.05,
    jobs=2,
    configurations=4,
)
#: Rows of batch, workers, nodes, seconds.
SAMPLES = np.array([[256, 8, 1, 100.0], [512, 16, 2, 54.0], [512, 8, 1, 92.0], [2048, 64, 8, 16.0]])
FURTHER = np.array([[1024, 32, 4], [4096, 128, 16], [16384, 512, 64], [65536, 2048, 256]], dtype=float)


def a_table(rows: FloatArray, gpu_type: str = "") -> EpochTable:
    samples = [
        EpochSample(batch=int(b), workers=int(k), nodes=int(n), epoch_s=float(s)) for b, k, n, s in rows
    ]
    return epoch_table(samples, gpus_per_node=8, gpu_type=gpu_type)


def share(rows: FloatArray, gpu_type: str = "") -> float:
    params = epoch_time.fit(a_table(rows, gpu_type))
    assert params is not None
    return params.share


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_posterior_is_that_of_the_joint_normal_distribution(count: int):
    shown = SAMPLES[:count]
    every = np.concatenate([features(shown), features(FURTHER)])
    known = np.array([0.0, *PRIOR.mean])
    spread = np.zeros((5, 5))
    spread[0, 0], spread[1:, 1:] = 1e4, PRIOR.covariance
    # all times together are normal; those of the samples are then held fixed
    joint = every @ spread @ every.T
    seen, rest = slice(None, count), slice(count, None)
    inverse = np.linalg.inv(joint[seen, seen] + (PRIOR.noise**2 + _RUN_SD**2) * np.eye(count))
    gain = joint[rest, seen] @ inverse
    mean = every[rest] @ known + gain @ (np.log(shown[:, 3]) - every[seen] @ known)
    variance = np.diag(joint[rest, rest] - gain @ joint[seen, rest])

    middle, sd = log_times(condition(shown, PRIOR), FURTHER)

    # the answer is the time at the expected speed; digits are those that a constant of variance 1e4 leaves
    np.testing.assert_allclose(middle, mean - variance / 2, atol=1e-4)
    np.testing.assert_allclose(sd, np.sqrt(variance + PRIOR.noise**2), atol=1e-4)


def test_times_of_samples_are_found_again():
    middle, _ = log_times(condition(SAMPLES, PRIOR), SAMPLES[:, :3])
    np.testing.assert_allclose(np.exp(middle), SAMPLES[:, 3], rtol=0.1)


def test_one_sample_suffices_and_the_spread_grows_with_the_distance_from_it():
    one = SAMPLES[:1]
    middle, sd = log_times(condition(one), np.concatenate([one[:, :3], FURTHER]))
    assert math.exp(middle[0]) == pytest.approx(100.0, rel=0.02)
    assert np.all(np.diff(middle) < 0)
    assert np.all(np.diff(sd) > 0)


def test_a_unit_of_time_changes_no_slope():
    slow = SAMPLES * [1, 1, 1, 3600]
    middle, sd = log_times(condition(SAMPLES), FURTHER)
    middle_slow, sd_slow = log_times(condition(slow), FURTHER)
    np.testing.assert_allclose(middle_slow - middle, math.log(3600), rtol=1e-5)
    np.testing.assert_allclose(sd_slow, sd)


def test_beyond_the_bend_times_go_on_along_a_line():
    x = np.array([[16 * k, k, k / 8] for k in (512, 1024, 2048, 4096)], dtype=float)
    np.testing.assert_allclose(np.diff(features(x), n=2, axis=0), 0, atol=1e-9)


def test_the_bend_has_no_corner_where_it_becomes_straight():
    x = np.array([[256, 256 * (1 + step), 32] for step in (-1e-4, 0, 1e-4)])
    before, after = np.diff(features(x)[:, 4])
    assert before == pytest.approx(after, rel=1e-3)


def test_a_fit_to_drawn_jobs_finds_the_slopes_they_were_drawn_from():
    rng = np.random.default_rng(0)
    jobs = []
    for _ in range(300):
        x = np.array([[k * rng.choice([8, 32, 128]), k, max(1, k // 8)] for k in (4, 8, 16, 64, 256, 1024)])
        slopes = rng.multivariate_normal(PRIOR.mean, PRIOR.covariance)
        log_s = features(x) @ [rng.normal(5, 2), *slopes] + PRIOR.noise * rng.normal(size=len(x))
        jobs.append(np.column_stack([x, np.exp(log_s)]))
    found = fit_prior(jobs)
    np.testing.assert_allclose(found.mean, PRIOR.mean, atol=0.04)
    np.testing.assert_allclose(
        np.sqrt(np.diag(found.covariance)), np.sqrt(np.diag(PRIOR.covariance)), rtol=0.25
    )
    assert found.noise == pytest.approx(PRIOR.noise, rel=0.15)
    assert (found.jobs, found.configurations) == (300, 1800)


def test_the_shipped_prior_names_its_source_and_is_a_distribution():
    prior = shipped_prior()
    assert "MLPerf" in prior.source
    assert np.all(np.linalg.eigvalsh(prior.covariance) > 0)
    assert prior.noise > 0


def test_a_job_that_scales_like_public_runs_keeps_their_share():
    rows = np.array([[32 * k, k, max(1, k / 8), 1000 * k**-0.9] for k in (4, 8, 16, 32)])
    assert share(rows) > 0.8


def test_a_job_that_scales_badly_over_nodes_decides_by_itself():
    # as fast as linear on a node, three times as slow on two of them, and no faster on more
    times_s = {1: 800.0, 2: 400.0, 4: 200.0, 8: 100.0, 16: 300.0, 32: 300.0, 64: 300.0}
    rows = np.array([[512, k, max(1, k / 8), s] for k, s in times_s.items()])
    assert share(rows) < 0.05
    params = epoch_time.fit(a_table(rows))
    assert params is not None
    alone = epoch_time.EpochQuery(batch=512, workers=128, nodes=16)
    assert epoch_time.predict(params, alone).value > 150


def test_gpus_without_a_fast_link_begin_with_low_odds():
    one = SAMPLES[:1]
    assert share(one, "t4") == pytest.approx(0.3)
    assert share(one, "a100") == pytest.approx(0.97)
    assert share(one, "a type nobody knows") == pytest.approx(0.97)


def test_another_prior_can_be_given_to_the_fit():
    table = a_table(SAMPLES[:1])
    x = FURTHER[:1]
    shipped, given = epoch_time.fit(table), epoch_time.fit(table, scaling=PRIOR)
    assert shipped is not None
    assert given is not None
    assert given.public == condition(SAMPLES[:1], PRIOR)
    assert shipped.public == condition(SAMPLES[:1])
    assert epoch_time.times_at(given, x) != epoch_time.times_at(shipped, x)
