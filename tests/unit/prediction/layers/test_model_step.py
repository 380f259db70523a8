"""Whole models: steps, communication, memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError, UnknownNameError
from coadapt.model.hardware import CPU, UnknownGpuError, find_gpu
from coadapt.prediction.communication import (
    METHODS,
    Link,
    Network,
    central,
    exposed,
    hierarchical,
    parameter_server,
    ring,
    sync_time,
    tree,
)
from coadapt.prediction.layers import memory, predict_step
from tests.unit.prediction.layers.samples import a_convolution, a_dense

NETWORK = Network(inside=Link(bytes_s=100.0), between=Link(bytes_s=10.0), per_node=4)
FAST = Link(bytes_s=10.0, latency_s=1.0)


def test_formulas_by_hand() -> None:
    assert central(100, 5, FAST) == 2 * 100 * 4 / 10 + 2
    assert ring(100, 4, FAST) == pytest.approx(2 * 100 * 3 / 4 / 10 + 6)
    assert tree(100, 5, FAST) == 2 * 3 * (10 + 1)
    assert parameter_server(100, 8, 2, FAST) == 2 * 100 * 4 / 10 + 2
    assert hierarchical(100, 8, NETWORK) == pytest.approx(2 * 3 / 4 * 1 + 2 * 1 / 2 * 10)


def test_parameter_servers_beyond_workers_do_not_help() -> None:
    assert parameter_server(100, 4, 8, FAST) == parameter_server(100, 4, 4, FAST)
    with pytest.raises(InputError, match="at least one"):
        parameter_server(100, 4, 0, FAST)


@given(replicas=st.integers(1, 64), size=st.floats(1, 1e6), method=st.sampled_from(METHODS))
def test_sync_time_grows_with_size_and_is_zero_alone(replicas: int, size: float, method: str) -> None:
    less, more = (sync_time(method, scale * size, replicas, NETWORK) for scale in (1, 2))
    assert more >= less >= 0
    if method != "parameter-server":
        assert sync_time(method, size, 1, NETWORK) == 0


@given(sync=st.floats(0, 10), compute=st.floats(0, 10), overlap=st.floats(0, 1))
def test_exposed_time_is_between_nothing_and_everything(sync: float, compute: float, overlap: float) -> None:
    assert -1e-9 <= exposed(sync, compute, overlap) <= sync
    assert exposed(sync, compute, 0.0) == sync


def test_sync_method_unknown() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ring'"):
        sync_time("rink", 1, 2, NETWORK)


def test_step_is_the_sum_of_its_layers_and_the_wait() -> None:
    layers = [a_dense(), a_convolution()]
    gpu = find_gpu("v100")
    alone = predict_step(layers, 10**7, gpu, NETWORK)
    assert alone.step_s.value == pytest.approx(sum(alone.by_kind.values()))
    assert alone.communication_share == 0
    four = predict_step(layers, 10**7, gpu, NETWORK, replicas=4, overlap=0.0)
    assert four.step_s.value == pytest.approx(alone.step_s.value + ring(4e7, 4, NETWORK.inside))
    assert four.step_s.low < four.step_s.value < four.step_s.upper
    with pytest.raises(InputError, match="no layers"):
        predict_step([], 0, gpu, NETWORK)


def test_memory_by_hand() -> None:
    layer = a_dense(2, 3, 5)
    held = memory([layer], 15, 24.0, 2, CPU, optimizer="adam")
    # weights and two moments; gradient, saved input, input and output in flight, the batch
    assert held.peak.value == 4 * 15 * 3 + 4 * 15 + 24 + (24 + 40) + 24
    assert held.largest_batch is None


def test_largest_batch_fits_and_one_more_does_not() -> None:
    gpu = find_gpu("t4")
    held = memory([a_dense(64, 4096, 4096)], 4096**2, 64 * 4096 * 4.0, 64, gpu)
    assert held.largest_batch is not None
    for batch, fits in ((held.largest_batch, True), (held.largest_batch + 1, False)):
        again = memory([a_dense(batch, 4096, 4096)], 4096**2, batch * 4096 * 4.0, batch, gpu)
        assert (again.peak.upper <= gpu.memory_bytes) is fits


def test_model_larger_than_the_device_fits_no_batch() -> None:
    assert memory([a_dense()], 10**11, 1.0, 32, find_gpu("t4")).largest_batch is None


def test_gpus_are_found_as_people_write_them() -> None:
    assert find_gpu("RTX 2080 Ti").name == "rtx2080ti"
    assert find_gpu("NVIDIA A100-SXM4-80GB").name == "a100-80gb"
    assert find_gpu("CPU") is CPU
    with pytest.raises(UnknownGpuError, match=r"did you mean 'v100'.*profile layers"):
        find_gpu("v10")
