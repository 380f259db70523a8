"""Times of layers and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.model.hardware import CPU, GPUS, find_gpu
from coadapt.prediction.layers import KINDS, Layer, Measured, predict_layers
from coadapt.prediction.layers.layer import ASSUMED, Efficiency, analytic, fit_efficiency, step_work, terms
from coadapt.prediction.layers.learned import shipped
from tests.unit.prediction.layers.samples import a_convolution, a_dense, an_activation


def test_times_carry_intervals_around_them() -> None:
    layers = [a_dense(), a_convolution(), an_activation()]
    for gpu in (*GPUS.values(), CPU):
        times = predict_layers(layers, gpu)
        assert np.isfinite(times.seconds).all()
        assert (times.low < times.seconds).all()
        assert (times.seconds < times.high).all()
        assert (times.low > 0).all()


def test_interval_is_wider_where_nothing_was_measured() -> None:
    def width(gpu: str, layer: Layer) -> float:
        times = predict_layers([layer], find_gpu(gpu))
        return float(np.log(times.high / times.low)[0])

    assert width("p100", a_dense()) < width("a100", a_dense()) < width("cpu", a_dense())
    # far larger than any measured layer
    assert width("p100", a_dense(4096, 32768, 32768)) > width("p100", a_dense())


def test_methods_are_named() -> None:
    layers = [a_dense(), an_activation()]
    assert predict_layers(layers, find_gpu("k80")).methods == ("learned", "analytic")
    assert predict_layers(layers, find_gpu("h100")).methods == ("projected", "analytic")


def test_forward_only_is_faster_than_training() -> None:
    layers = [a_dense(), a_convolution(), an_activation()]
    for gpu in ("p100", "a100", "cpu"):
        forward = predict_layers(layers, find_gpu(gpu), optimizer="none").seconds
        assert (forward < predict_layers(layers, find_gpu(gpu), optimizer="adam").seconds).all()


def test_depthwise_convolutions_are_not_taken_for_measured_ones() -> None:
    from msgspec.structs import replace

    assert predict_layers([replace(a_convolution(), groups=32)], find_gpu("p100")).methods == ("analytic",)


@settings(max_examples=10, deadline=None)
@given(factor=st.floats(0.2, 5.0), seed=st.integers(0, 99))
def test_measured_layers_move_predictions_towards_them(factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = [tuple(int(v) for v in rng.integers(8, 512, 3)) for _ in range(24)]
    layers = [a_dense(*shape) for shape in shapes]
    truth = factor * predict_layers(layers, find_gpu("a100")).seconds
    known = [
        Measured(layer=layer, optimizer="sgd", seconds=s)
        for layer, s in zip(layers[:16], truth[:16].tolist(), strict=True)
    ]
    times = predict_layers(layers[16:], find_gpu("a100"), measured=known)
    assert times.methods == ("calibrated",) * 8
    assert np.abs(np.log(times.seconds / truth[16:])).max() < 0.05


def test_few_measured_layers_say_nothing() -> None:
    known = [Measured(layer=a_dense(), optimizer="sgd", seconds=1.0)] * 4
    assert predict_layers([a_dense()], find_gpu("a100"), measured=known).methods == ("projected",)


def test_efficiency_is_found_again() -> None:
    rng = np.random.default_rng(0)
    layers = [a_dense(*(int(v) for v in rng.integers(4, 2048, 3))) for _ in range(60)]
    true = Efficiency(overhead_s=2e-4, compute=3.0, memory=1.8)
    gpu, optimizers = find_gpu("t4"), ["sgd"] * 60
    seconds = analytic(layers, optimizers, gpu, {"dense": true})
    found = fit_efficiency(terms(step_work(layers, optimizers), gpu), seconds)
    assert found.overhead_s == pytest.approx(2e-4)
    assert found.compute == pytest.approx(3.0)
    assert found.memory == pytest.approx(1.8)


def test_every_kind_has_an_assumption_and_two_are_learned() -> None:
    assert set(ASSUMED) == set(KINDS)
    assert [kind for kind in KINDS if shipped(kind) is not None] == ["dense", "convolution"]


def test_a_step_counts_three_products_and_the_update() -> None:
    work = step_work([a_dense(2, 3, 5)], ["sgd"])
    assert work.flops[0] == 3 * 2 * 2 * 3 * 5
    assert work.moved_bytes[0] == 3 * 4 * (2 * 3 + 2 * 5 + 3 * 5) + 4 * 3 * 5
    forward = step_work([a_dense(2, 3, 5)], ["none"])
    assert forward.moved_bytes[0] == 4 * (2 * 3 + 2 * 5 + 3 * 5)
