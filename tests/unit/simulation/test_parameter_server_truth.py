from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from coadapt.errors import InputError, UnknownNameError
from coadapt.simulation.truth.parameter_server_speed import (
    ParameterServerTruth,
    PsConstants,
    parameter_server_truth,
    shipped_models,
)
from tests.data import data_dir


def constants(**changed: float) -> PsConstants:
    values = {
        "example_s": 0.01,
        "backward_s": 0.1,
        "model_bytes": 1e8,
        "link_bytes_per_s": 1e9,
        "update_s": 0.05,
        "per_worker_s": 0.002,
        "per_server_s": 0.001,
    } | changed
    return PsConstants(**values)


def test_spread_synchronous_step_is_the_published_formula() -> None:
    step_s = ParameterServerTruth(constants()).step((1, 1, 1, 1, 0, 0), (0, 0, 0, 0, 1, 1), 40)
    assert step_s == pytest.approx(10 * 0.01 + 0.1 + 2 * 5e7 * 4 / 1e9 + 0.05 * 4 / 2 + 0.002 * 4 + 0.001 * 2)


def test_asynchronous_workers_have_their_own_batches_and_share_links_in_part() -> None:
    truth = ParameterServerTruth(constants(concurrency=0.5), asynchronous=True)
    step_s = truth.step((1, 1), (0, 0, 1), 40)
    assert step_s == pytest.approx(
        40 * 0.01 + 0.1 + 2 * 1e8 * 2 * 0.5 / 1e9 + 0.05 * 0.5 * 2 + 0.002 * 2 + 0.001
    )
    assert truth.steps_per_s((1, 1), (0, 0, 1), 40) == pytest.approx(2 / step_s)


def test_own_workers_traffic_stays_inside_the_node() -> None:
    truth = ParameterServerTruth(constants())
    apart, beside = truth.step((2, 0), (0, 1), 32), truth.step((2,), (1,), 32)
    assert apart - beside == pytest.approx(2 * 1e8 * 2 / 1e9)


def test_uneven_servers_are_as_slow_as_the_busiest_node() -> None:
    truth = ParameterServerTruth(constants())
    even = truth.step((4, 0, 0), (0, 2, 2), 32)
    uneven = truth.step((4, 0, 0), (0, 3, 1), 32)
    assert uneven - even == pytest.approx(2 * 1e8 / 4 * 4 / 1e9)


def test_job_without_workers_or_servers_is_refused() -> None:
    with pytest.raises(InputError, match="needs at least one of each"):
        ParameterServerTruth(constants()).step((2,), (0,), 32)


@given(
    st.sampled_from(sorted(shipped_models().models)),
    st.sampled_from(["t4", "v100", "a100", "rtx2080ti"]),
    st.integers(1, 16),
    st.integers(1, 16),
    st.booleans(),
)
def test_shipped_models_take_finite_time_and_gain_from_a_faster_link(
    model: str, gpu: str, workers: int, servers: int, asynchronous: bool
) -> None:
    shapes = ((1,) * workers, (0,) * workers + (1,) * servers)
    slow = parameter_server_truth(model, gpu, asynchronous=asynchronous)
    fast = parameter_server_truth(model, gpu, asynchronous=asynchronous, link_bytes_per_s=1.25e10)
    assert 0 < fast.step(*shapes, 64) < slow.step(*shapes, 64) < 1000
    assert slow.steps_per_s(*shapes, 64) > 0


def test_unknown_model_or_gpu_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="resnet-50"):
        parameter_server_truth("resnet50")
    with pytest.raises(UnknownNameError, match="a100"):
        parameter_server_truth("vgg-16", "a10")


@pytest.mark.data
def test_formula_fits_measured_speeds_of_every_model() -> None:
    """DL2's measurements. Link and update both grow with w/p, so one free constant stands for them."""
    root = data_dir()
    if root is None:
        pytest.skip("no measurements at $COADAPT_DATA or ../shared/data")
    by_model: dict[str, list[tuple[int, int, int, float]]] = {}
    with (root / "dl2" / "config_speed.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            if float(row["total_speed"]) > 0:
                batch = int(row["total_batch_size"])
                measured = (
                    batch,
                    int(row["num_ps"]),
                    int(row["num_workers"]),
                    batch / float(row["total_speed"]),
                )
                by_model.setdefault(row["model"], []).append(measured)
    assert len(by_model) == 8
    errors = {}
    for model, rows in by_model.items():
        terms = np.array([(batch / w, 1, w / p, w, p) for batch, p, w, _ in rows])
        step_s = np.array([row[3] for row in rows])
        example_s, backward_s, update_s, per_worker_s, per_server_s = nnls(
            terms / step_s[:, None], np.ones(len(rows))
        )[0]
        truth = ParameterServerTruth(
            PsConstants(
                example_s=example_s,
                backward_s=backward_s,
                model_bytes=0.0,
                link_bytes_per_s=1.0,
                update_s=update_s,
                per_worker_s=per_worker_s,
                per_server_s=per_server_s,
            )
        )
        found = np.array([truth.step((1,) * w, (0,) * w + (1,) * p, batch) for batch, p, w, _ in rows])
        errors[model] = float(np.mean(np.abs(found / step_s - 1)))
    assert max(errors.values()) < 0.10, errors
    assert np.mean(list(errors.values())) < 0.07, errors
