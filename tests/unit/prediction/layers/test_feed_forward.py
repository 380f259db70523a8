"""A network as arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coadapt.errors import InvariantError
from coadapt.model.hardware import CPU, GPUS, find_gpu
from coadapt.prediction.layers import LEARNERS, Layer, predict_layers
from coadapt.prediction.layers.layer import OPTIMIZER_STATE
from coadapt.prediction.layers.learned import (
    LEARNED,
    FeedForward,
    encode,
    file_name,
    levels_of,
    pack_network,
    shipped,
    unpack_network,
)
from tests.unit.prediction.layers.samples import a_convolution, a_dense, an_activation


def two_layers() -> FeedForward:
    """max(0, (size - 10) / 2) - 3 [optimizer 1] + 5 [optimizer 4], between -2 and 6; size between 8 and 20."""
    return FeedForward(
        names=("size", "optimizer"),
        levels=(np.zeros(0), np.array([1.0, 4.0])),
        centre=np.array([10.0, 0.0, 0.0]),
        scale=np.array([2.0, 1.0, 1.0]),
        low=np.array([8.0, 0.0, 0.0]),
        high=np.array([20.0, 1.0, 1.0]),
        weights=(np.eye(3), np.array([[1.0], [-3.0], [5.0]])),
        biases=(np.zeros(3), np.zeros(1)),
        bounds=(-2.0, 6.0),
    )


def test_network_is_computed_by_hand() -> None:
    x = np.array([[14.0, 0.0], [14.0, 1.0], [9.0, 4.0], [9.0, 0.0]])
    # the last: a rectified unit below zero
    assert two_layers().predict(x).tolist() == [2.0, -1.0, 5.0, 0.0]


def test_network_stays_within_what_it_learned_from() -> None:
    x = np.array([[1e9, 0.0], [20.0, 0.0], [10.0, 1.0], [20.0, 4.0], [-1e9, 0.0]])
    assert two_layers().predict(x).tolist() == [5.0, 5.0, -2.0, 6.0, 0.0]


def test_level_never_seen_counts_as_the_first() -> None:
    assert two_layers().predict(np.array([[14.0, 2.0]])).tolist() == [2.0]


def test_network_packed_and_unpacked_answers_the_same() -> None:
    x = np.random.default_rng(0).uniform(0, 25, (50, 2)).round()
    again = unpack_network(pack_network(two_layers()))
    assert again.names == ("size", "optimizer")
    assert np.array_equal(again.predict(x), two_layers().predict(x))


def test_network_refuses_another_number_of_features() -> None:
    with pytest.raises(InvariantError, match="3 features where the network has 2"):
        two_layers().predict(np.zeros((1, 3)))


def test_categories_become_one_input_per_level() -> None:
    x = np.array([[7.0, 0.0], [8.0, 4.0], [9.0, 1.0]])
    levels = levels_of(x, ("size", "optimizer"))
    assert encode(x, levels).tolist() == [[7.0, 0.0, 0.0], [8.0, 0.0, 1.0], [9.0, 1.0, 0.0]]


@pytest.mark.parametrize("kind", LEARNED)
def test_shipped_network_is_small_and_no_pickle(kind: str) -> None:
    from importlib.resources import files

    path = files("coadapt.prediction.layers") / "data" / file_name(kind, "network")
    assert len(path.read_bytes()) < 1_000_000
    learned = shipped(kind, "network")  # type: ignore[arg-type]
    assert learned is not None
    assert isinstance(learned.regressor, FeedForward)
    # the paper's shape
    assert [each.shape[1] for each in learned.regressor.weights] == [32, 64, 128, 128, 128, 128, 1]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 10**5),
    wide=st.integers(1, 10**5),
    out=st.integers(1, 10**5),
    gpu=st.sampled_from(sorted(GPUS)),
    optimizer=st.sampled_from(sorted(OPTIMIZER_STATE)),
)
def test_times_by_network_are_positive_and_inside_their_interval(
    rows: int, wide: int, out: int, gpu: str, optimizer: str
) -> None:
    layers = [a_dense(rows, wide, out), a_convolution(), an_activation()]
    times = predict_layers(layers, find_gpu(gpu), optimizer=optimizer, learner="network")
    assert np.isfinite(times.high).all()
    assert (times.low > 0).all()
    assert (times.low < times.seconds).all()
    assert (times.seconds < times.high).all()


def test_trees_and_network_tell_much_the_same_of_a_measured_device() -> None:
    layers: list[Layer] = [a_dense(), a_dense(8, 4000, 1000), a_convolution(), a_convolution(32, 64, 3, 32)]
    trees, network = (predict_layers(layers, find_gpu("p100"), learner=each) for each in LEARNERS)
    assert trees.methods == network.methods
    # two opinions: near, but not one and the same
    ratio = network.seconds / trees.seconds
    assert np.abs(np.log(ratio)).max() < 0.5
    assert (ratio != 1).all()


def test_unmeasured_optimizer_is_not_taken_for_forward_only() -> None:
    layer, gpu = [a_dense(), a_convolution()], find_gpu("p100")
    for learner in LEARNERS:
        adam, adamw = (
            predict_layers(layer, gpu, optimizer=name, learner=learner).seconds for name in ("adam", "adamw")
        )
        assert np.array_equal(adam, adamw)


def test_cpu_needs_no_network() -> None:
    times = [predict_layers([a_dense()], CPU, learner=each).seconds for each in LEARNERS]
    assert times[0] == times[1]


def test_grouped_convolution_leaves_the_others_learned() -> None:
    from msgspec.structs import replace

    layers = [a_convolution(), replace(a_convolution(), groups=32), a_convolution()]
    times = predict_layers(layers, find_gpu("p100"))
    assert times.methods == ("learned", "analytic", "learned")
    assert times.seconds[0] == times.seconds[2]


def test_network_trained_anew_answers_as_pytorch_does() -> None:
    pytest.importorskip("torch", reason="PyTorch is needed only to train")
    from benchmarks.train_layers import Rows, log_errors
    from benchmarks.train_network import train

    rng = np.random.default_rng(0)
    layers = [a_dense(*(int(v) for v in rng.integers(8, 2048, 3))) for _ in range(600)]
    gpus = ["p100" if i % 2 else "k80" for i in range(600)]
    base = np.array(
        [predict_layers([a], find_gpu(g)).seconds[0] for a, g in zip(layers[:60], gpus[:60], strict=True)]
    )
    rows = Rows(layers[:60], ["sgd"] * 60, gpus[:60], base, np.zeros(60))
    learned = train("dense", rows, epochs=400)
    # so few can be learned by heart
    assert np.median(np.abs(log_errors(learned, rows))) < 0.1
    assert learned.gpus == ("k80", "p100")
