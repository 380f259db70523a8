from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import LinearNDInterpolator

from coadapt.errors import InputError, TraceError, UnknownNameError
from coadapt.simulation.truth.measured_tables import (
    Curves,
    StepTimes,
    TableTruth,
    Timing,
    read_curve,
    read_profiles,
    read_timings,
    smallest_rotation,
)
from tests.data import data_dir

PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,8,1.0,0.1
1,16,2.0,0.1
11,8,1.5,0.5
11,16,2.5,0.5
12,8,1.6,0.6
12,16,2.6,0.6
"""
SCALABILITY = """num_nodes,num_replicas,local_bsz,step_time,sync_time
6,6,8,3.0,2.0
6,6,16,4.0,2.0
6,12,8,3.4,2.4
6,12,16,4.4,2.4
"""
SMALL = "progress,iteration,metric,grad_sqr,grad_var\n100,100,0.5,2.0,4.0\n200,200,0.6,1.0,4.0\n"
LARGE = "progress,iteration,metric,grad_sqr,grad_var\n101,40,0.4,4.0,4.0\n199,80,0.7,1.0,8.0\n"


@cache
def toy() -> TableTruth:
    """The task of ``write_task``, kept: a property asks it often."""
    steps = StepTimes(read_timings(io.StringIO(PLACEMENTS), "p"), read_timings(io.StringIO(SCALABILITY), "s"))
    curves = Curves({16: read_curve(io.StringIO(SMALL), "a"), 64: read_curve(io.StringIO(LARGE), "b")})
    return TableTruth(curves, {"t4": steps}, epochs=2, per_gpu_max={})


def write_task(folder: Path, **changed: str) -> None:
    files = {
        "placements": PLACEMENTS,
        "scalability": SCALABILITY,
        "validation-16": SMALL,
        "validation-64": LARGE,
    } | changed
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)


def test_task_states_its_limits_marks_and_data(tmp_path: Path) -> None:
    write_task(tmp_path / "toy")
    truth = read_profiles(tmp_path)["toy"]
    limits = truth.limits("")
    assert (limits.initial, limits.max, limits.per_gpu_min, limits.per_gpu_max) == (16, 64, 8, 16)
    assert (truth.epochs, truth.max_workers, truth.data_size) == (2, 12, 1600)
    assert truth.epoch_marks() == (100.0, 199.0)


def test_measured_placement_is_linear_in_batch_and_the_same_in_every_rotation(tmp_path: Path) -> None:
    write_task(tmp_path / "toy")
    truth = read_profiles(tmp_path)["toy"]
    assert truth.step((2, 1), 12, "any name") == pytest.approx((2.1, 0.6))
    assert truth.step((1, 2), 12, "gpu") == truth.step((2, 1), 12, "")


def test_step_beyond_the_largest_batch_adds_computation_only(tmp_path: Path) -> None:
    write_task(tmp_path / "toy")
    step_s, sync_s = read_profiles(tmp_path)["toy"].step((1,), 32, "")
    assert sync_s == pytest.approx(0.1)
    assert step_s == pytest.approx(2.0 + 1.9)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 40))
def test_step_is_finite_and_covers_its_sync_everywhere(counts: list[int], batch: int) -> None:
    step_s, sync_s = toy().step(tuple(counts), batch, "")
    assert 0 <= sync_s <= step_s < 10


def test_curves_are_linear_between_batches_and_constant_outside(tmp_path: Path) -> None:
    write_task(tmp_path / "toy")
    truth = read_profiles(tmp_path)["toy"]
    assert truth.gradients(40, 0) == pytest.approx((3.0, 4.0))
    assert truth.gradients(1000, 0) == truth.gradients(64, 0) == (4.0, 4.0)
    assert truth.steps_until(40, 1) == pytest.approx(140)
    assert truth.metric(16, 1) == pytest.approx(0.6)


def test_several_gpu_types_are_kept_apart_and_must_be_named(tmp_path: Path) -> None:
    home = tmp_path / "types"
    (home / "toy").mkdir(parents=True)
    write_task(tmp_path / "toy")
    (home / "toy" / "placements-aws.csv").write_text(PLACEMENTS)
    (home / "toy" / "placements-dgx-ext.csv").write_text(PLACEMENTS.replace("1,8,1.0,", "8,8,0.25,"))
    truth = read_profiles(home, tmp_path)["toy"]
    assert truth.gpu_types == ("t4", "a100")
    assert truth.step((8,), 8, "a100")[0] == 0.25
    assert truth.step((1,), 8, "t4")[0] == 1.0
    with pytest.raises(UnknownNameError, match="a100"):
        truth.step((1,), 8, "a10")
    with pytest.raises(InputError, match="several were measured"):
        truth.limits("gpu")


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("placement,local_bsz,step_time\n", None, "sync_time"),
        ("nodes,local_bsz\n", None, "placement"),
        (PLACEMENTS + "1,32,fast,0\n", 8, "step_time"),
        (PLACEMENTS + "1,32,nan,0\n", 8, "step_time"),
        (PLACEMENTS + "1,32,0,0\n", 8, "step_time"),
        (PLACEMENTS + "1,32\n", 8, "step_time"),
        (PLACEMENTS + "1x,32,1,0\n", 8, "placement"),
        (SCALABILITY + "\n0,6,8,1,0\n", 7, "num_nodes"),
    ],
)
def test_bad_timings_are_refused_with_their_place(text: str, line: int | None, column: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_timings(io.StringIO(text), "toy.csv")
    assert (caught.value.file, caught.value.line, caught.value.column) == ("toy.csv", line, column)


def test_empty_files_are_refused() -> None:
    with pytest.raises(TraceError, match="no measurements"):
        read_timings(io.StringIO(PLACEMENTS.splitlines()[0] + "\n"), "p.csv")
    with pytest.raises(TraceError, match="no epochs"):
        read_curve(io.StringIO(SMALL.splitlines()[0] + "\n"), "v.csv")


def test_directory_without_tasks_or_curves_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a directory"):
        read_profiles(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no task"):
        read_profiles(tmp_path)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "placements.csv").write_text(PLACEMENTS)
    with pytest.raises(InputError, match="validation-BATCH"):
        read_profiles(tmp_path)


def test_too_few_epochs_of_a_known_task_are_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "ncf")
    with pytest.raises(TraceError, match="2 epochs measured, 10 needed"):
        read_profiles(tmp_path)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 7))
def test_rotation_does_not_change_a_placements_name(shape: list[int], by: int) -> None:
    turned = shape[by % len(shape) :] + shape[: by % len(shape)]
    name = smallest_rotation(tuple(turned))
    assert name == smallest_rotation(tuple(shape))
    assert sorted(name) == sorted(map(str, shape))


def test_placement_with_ten_workers_on_a_node_has_no_name() -> None:
    assert smallest_rotation((10, 2)) == ""


def test_times_between_placements_are_scipys_linear_interpolation() -> None:
    rng = np.random.default_rng(4)
    rows = [
        Timing(
            str(per_node) if nodes == 1 else "",
            nodes,
            nodes * per_node,
            batch,
            *sorted(rng.uniform(0.1, 1.0, 2), reverse=True),
        )
        for nodes in (1, 3, 7)
        for per_node in (1, 2, 4)
        for batch in (4, 9, 16)
    ]
    reference = LinearNDInterpolator(
        np.array([row[1:4] for row in rows], float), np.array([row[4:] for row in rows])
    )
    table = StepTimes(rows[:9], rows[9:])
    inside = 0
    for nodes in (2, 4, 5, 6):
        for extra in range(3 * nodes):
            shape = (1 + extra,) + (1,) * (nodes - 1)
            expected = reference([(nodes, nodes + extra, 7)])[0]
            if not np.isnan(expected[0]):
                inside += 1
                assert table.at(shape, 7) == pytest.approx(tuple(expected))
    assert inside > 20


@pytest.mark.data
@pytest.mark.parametrize(
    ("task", "point", "expected"),
    [
        ("cifar10", (5, 20, 100), (0.17808348567862262, 0.09370466953076814)),
        ("cifar10", (9, 33, 64), (0.2191338241100311, 0.1596299447059631)),
        ("cifar10", (16, 64, 91), (0.30648480142865864, 0.22990597534179688)),
        ("cifar10", (7, 9, 300), (0.24191842911378392, 0.021243869608303285)),
        ("yolov3", (5, 7, 5), (0.9970968216657639, 0.6673103271484375)),
        ("yolov3", (11, 44, 8), (1.4858432821929455, 1.1153651714324955)),
        ("yolov3", (16, 17, 7), (1.1425871104002, 0.7901719980239867)),
    ],
)
def test_pollux_tables_answer_as_its_simulator_does(
    task: str, point: tuple[int, int, int], expected: tuple[float, float]
) -> None:
    """Expected: scipy's LinearNDInterpolator on the averaged rows, asked for this one point, as published."""
    root = data_dir()
    if root is None:
        pytest.skip("no measurements at $COADAPT_DATA or ../shared/data")
    nodes, replicas, batch = point
    shape = tuple(replicas // nodes + (at < replicas % nodes) for at in range(nodes))
    assert read_profiles(root / "pollux")[task].step(shape, batch, "") == pytest.approx(expected, rel=1e-9)


@pytest.mark.data
def test_pollux_and_sia_tables_are_read_whole() -> None:
    root = data_dir()
    if root is None:
        pytest.skip("no measurements at $COADAPT_DATA or ../shared/data")
    pollux = read_profiles(root / "pollux")
    assert {name: truth.epochs for name, truth in pollux.items()} == {
        "bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50,
    }  # fmt: skip
    assert all(truth.max_workers == 64 for truth in pollux.values())
    assert pollux["yolov3"].limits("").per_gpu_max == 8
    assert pollux["cifar10"].step((1,), 32, "")[0] == pytest.approx(0.0427886962890625)
    sia = read_profiles(root / "sia", root / "pollux")
    assert sia["bert"].gpu_types == ("t4", "a100", "rtx")
    assert sia["yolov3"].limits("t4").per_gpu_max == 16
    assert sia["deepspeech2"].limits("rtx").per_gpu_max == 57
    for truth in (*pollux.values(), *sia.values()):
        for gpu_type in truth.gpu_types:
            limits = truth.limits(gpu_type)
            for shape in ((1,), (8,), (3, 2, 1), (4,) * 5, (1,) * 7, (4,) * 16, (2,) * 20):
                for batch in (limits.per_gpu_min, limits.per_gpu_max):
                    step_s, sync_s = truth.step(shape, batch, gpu_type)
                    assert 0 <= sync_s <= step_s < 100
