from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError, UnknownNameError
from coadapt.prediction.gradient_noise import gain
from coadapt.simulation.truth._base import packed, solo_time_s
from coadapt.simulation.truth.measured_tables import read_profiles
from coadapt.simulation.truth.profiles import profile, shipped_file, shipped_profiles, spec_for
from tests.data import data_dir

TASKS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


def test_shipped_file_states_source_errors_and_projections() -> None:
    file = shipped_file()
    assert set(file.tasks) == set(TASKS)
    assert file.about["licence"] == "Apache-2.0"
    assert {name for name, gpu in file.gpu_types.items() if not gpu.projected} == {"t4"}
    for facts in file.tasks.values():
        assert 0 < facts.fit["step_mean"] < 0.07
        assert 0 < facts.fit["finish_mean"] < 0.08


@given(
    st.sampled_from(TASKS),
    st.lists(st.integers(1, 8), min_size=1, max_size=20),
    st.sampled_from(["", "t4", "v100", "a100", "rtx2080ti"]),
    st.floats(0, 1),
)
def test_step_covers_its_sync_and_grows_with_batch(
    task: str, shape: list[int], gpu: str, part: float
) -> None:
    truth = profile(task)
    limits = truth.limits(gpu)
    batch = limits.per_gpu_min + int(part * (limits.per_gpu_max - limits.per_gpu_min))
    step_s, sync_s = truth.step(tuple(shape), batch, gpu)
    assert 0 <= sync_s < step_s < 100
    assert truth.step(tuple(shape), 4 * limits.per_gpu_max, gpu)[0] > step_s


@given(st.sampled_from(TASKS), st.floats(0, 1), st.floats(0, 1))
def test_gain_lies_between_one_and_the_batchs_scale(task: str, at: float, when: float) -> None:
    truth = profile(task)
    limits = truth.limits("")
    batch = limits.initial + int(at * (limits.max - limits.initial))
    scale = batch / limits.initial
    assert 1 <= gain(*truth.gradients(batch, int(when * (truth.epochs - 1))), scale) <= scale * (1 + 1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_epochs_take_equal_progress_and_more_steps_each(task: str) -> None:
    truth = profile(task)
    marks = truth.epoch_marks()
    assert len(marks) == truth.epochs
    assert marks[0] == pytest.approx(truth.data_size / truth.limits("").initial)
    for batch in (truth.limits("").initial, truth.limits("").max):
        steps = [truth.steps_until(batch, epoch) for epoch in range(truth.epochs)]
        assert steps == sorted(set(steps))
    assert truth.steps_until(truth.limits("").initial, truth.epochs - 1) == pytest.approx(marks[-1], rel=2e-3)


def test_faster_gpu_steps_faster_and_larger_memory_takes_more() -> None:
    truth = profile("imagenet")
    assert (
        truth.step((1,), 100, "a100")[0] < truth.step((1,), 100, "v100")[0] < truth.step((1,), 100, "t4")[0]
    )
    assert truth.limits("a100").per_gpu_max == 500
    assert truth.limits("rtx2080ti").per_gpu_max == 137


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="cifar10"):
        profile("cifar")
    with pytest.raises(UnknownNameError, match="v100"):
        profile("bert").step((1,), 4, "v10")


def test_spec_of_a_workload_row_is_elastic_and_keeps_what_was_asked() -> None:
    spec = spec_for("cifar10-0", profile("cifar10"), "cifar10", replicas=6, batch=2048, user="ada")
    assert (spec.worker.min, spec.worker.max) == (1, 64)
    assert (spec.requested, spec.requested_batch, spec.user, spec.profile) == (6, 2048, "ada", "cifar10")
    assert (spec.epochs, spec.data_size) == (100.0, 50048)
    assert spec.batch == profile("cifar10").limits("")
    assert spec_for("b", profile("imagenet"), "imagenet", replicas=1, batch=200).worker.max == 64


def test_spec_beyond_the_profiles_limits_is_refused() -> None:
    with pytest.raises(InputError, match="batch size 64"):
        spec_for("x", profile("cifar10"), "cifar10", replicas=1, batch=64)
    with pytest.raises(InputError, match="65 replicas"):
        spec_for("x", profile("cifar10"), "cifar10", replicas=65, batch=128)


def test_packed_fills_nodes_first() -> None:
    assert packed(10, 4) == (4, 4, 2)
    assert packed(8, 4) == (4, 4)


def test_more_workers_at_the_same_batch_finish_sooner_but_not_in_proportion() -> None:
    truth = profile("imagenet")
    one, sixteen = (solo_time_s(truth, workers, 3200) for workers in (1, 16))
    assert one / 16 < sixteen < one


@pytest.mark.data
@pytest.mark.parametrize("task", TASKS)
def test_formula_finishes_when_the_tables_do(task: str) -> None:
    root = data_dir()
    if root is None:
        pytest.skip("no measurements at $COADAPT_DATA or ../shared/data")
    table, formula = read_profiles(root / "pollux")[task], shipped_profiles()[task]
    assert formula.limits("") == table.limits("")
    assert formula.data_size == table.data_size
    limits = table.limits("")
    errors = []
    for workers in (1, 4, 8, 16, 32):
        batch = limits.initial
        while batch <= limits.max:
            if batch >= workers * limits.per_gpu_min:
                errors.append(
                    abs(solo_time_s(formula, workers, batch) / solo_time_s(table, workers, batch) - 1)
                )
            batch *= 2
    assert sum(errors) / len(errors) < 0.08
    assert max(errors) < 0.3
