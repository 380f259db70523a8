from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.simulation.generate import WORKERS, YIELD, arrival_times, generate, tuned_sizes
from coadapt.simulation.truth._base import solo_time_s
from coadapt.simulation.truth.measured_tables import read_profiles
from coadapt.simulation.truth.profiles import profile, shipped_profiles
from tests.data import data_dir


def test_same_seed_gives_the_same_workload_and_another_a_different_one() -> None:
    assert generate(5) == generate(5)
    assert generate(5) != generate(6)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 300), st.floats(0.5, 30), st.booleans())
def test_workload_is_sorted_within_its_hours_and_every_job_feasible(
    seed: int, jobs: int, hours: float, long_jobs: bool
) -> None:
    workload = generate(seed, jobs, hours, long_jobs=long_jobs)
    times = [time for time, _ in workload]
    assert len(workload) == jobs
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= hours * 3600
    assert len({spec.name for _, spec in workload}) == jobs
    for _, spec in workload:
        assert spec.batch is not None
        assert spec.requested_batch is not None
        assert spec.requested * spec.batch.per_gpu_min <= spec.requested_batch <= spec.batch.max
        assert long_jobs or spec.profile != "imagenet"


def test_load_multiplies_the_jobs_and_long_jobs_are_rare() -> None:
    workload = generate(1, load=10.0)
    tasks = Counter(spec.profile for _, spec in workload)
    assert len(workload) == 1600
    assert tasks["cifar10"] + tasks["ncf"] == pytest.approx(0.79 * 1600, rel=0.05)
    assert 10 <= tasks["imagenet"] <= 50


def test_arrivals_follow_the_hours() -> None:
    by_hour = Counter(int(time // 3600) for time in arrival_times(np.random.default_rng(0), 16_000, 8))
    assert by_hour[5] == pytest.approx(3500, rel=0.1)
    assert by_hour[2] == pytest.approx(800, rel=0.15)


def test_few_users_submit_most() -> None:
    users = Counter(spec.user for _, spec in generate(2, jobs=800))
    assert sum(count for _, count in users.most_common(10)) > 400
    assert len(users) > 50


def test_tuned_sizes_yield_between_half_and_four_fifths() -> None:
    truth = profile("deepspeech2")
    alone_s = min(solo_time_s(truth, 1, batch) for batch in (20, 40, 80, 160, 320, 640))
    sizes = tuned_sizes(truth)
    assert len(sizes) > 1
    for workers, batch in sizes:
        assert workers in WORKERS
        assert YIELD[0] < alone_s / solo_time_s(truth, workers, batch) / workers < YIELD[1]


def test_unclassed_profile_is_drawn_by_its_gpu_time() -> None:
    truths = {"quick": profile("ncf"), "endless": profile("imagenet")}
    assert {spec.profile for _, spec in generate(0, profiles=truths, long_jobs=False)} == {"quick"}
    with pytest.raises(InputError, match="are excluded"):
        generate(0, profiles={"endless": profile("imagenet")}, long_jobs=False)


def test_other_gpu_types_have_their_own_sizes() -> None:
    limits = {spec.profile: spec.batch for _, spec in generate(0, gpu_type="a100")}
    assert limits["cifar10"] == shipped_profiles()["cifar10"].limits("a100")


@pytest.mark.parametrize(
    ("jobs", "hours", "load"),
    [
        (0, 8.0, 1.0),
        (1_000_001, 8.0, 1.0),
        (1_000_000, 8.0, 2.0),
        (1, 8.0, 0.1),
        (10, 0.0, 1.0),
        (10, float("nan"), 1.0),
        (10, 87_601.0, 1.0),
        (10, 8.0, 0.0),
        (10, 8.0, float("inf")),
        (10, 8.0, float("nan")),
    ],
)
def test_nothing_and_too_much_to_generate_is_refused(jobs: int, hours: float, load: float) -> None:
    with pytest.raises(InputError, match=r"must be|limits are"):
        generate(0, jobs, hours, load=load)


@pytest.mark.data
def test_tuned_sizes_of_the_tables_are_those_pollux_published() -> None:
    root = data_dir()
    if root is None:
        pytest.skip("no measurements at $COADAPT_DATA or ../shared/data")
    truths = read_profiles(root / "pollux")
    assert tuned_sizes(truths["bert"]) == [(6, 384), (8, 384), (12, 384), (16, 384)]
    assert tuned_sizes(truths["cifar10"]) == [(6, 2048), (8, 2048), (12, 4096), (16, 4096)]
    assert tuned_sizes(truths["imagenet"]) == [(24, 3200), (32, 6400), (48, 6400)]
    assert tuned_sizes(truths["yolov3"]) == [(4, 64)]
