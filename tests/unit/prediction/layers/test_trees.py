"""Trees as arrays."""

from __future__ import annotations

import numpy as np
import pytest

from coadapt.errors import InvariantError
from coadapt.prediction.layers.learned import Trees, pack_trees, unpack_trees


def two_trees() -> Trees:
    """x0 <= 1 ? 10 : (x1 <= 5 ? 20 : 30), plus a tree that is a single leaf of 1."""
    ints = lambda *values: np.array(values, dtype=np.intp)  # noqa: E731
    return Trees(
        names=("x0", "x1"),
        thresholds=(np.array([1.0]), np.array([5.0])),
        feature=ints(0, 1),
        bin=ints(0, 0),
        left=ints(~0, ~1),
        right=ints(1, ~2),
        leaf=np.array([10.0, 20.0, 30.0, 1.0]),
        split_start=ints(0, 2),
        leaf_start=ints(0, 3),
    )


def test_trees_go_left_at_the_threshold() -> None:
    x = np.array([[1.0, 9.0], [1.1, 5.0], [2.0, 5.1]])
    assert two_trees().predict(x).tolist() == [11.0, 21.0, 31.0]


def test_trees_packed_and_unpacked_answer_the_same() -> None:
    x = np.random.default_rng(0).uniform(-1, 8, (50, 2))
    again = unpack_trees(pack_trees(two_trees()))
    assert again.names == ("x0", "x1")
    assert np.array_equal(again.predict(x), two_trees().predict(x))


def test_trees_refuse_another_number_of_features() -> None:
    with pytest.raises(InvariantError, match="3 features where the trees have 2"):
        two_trees().predict(np.zeros((1, 3)))


def test_trees_converted_from_lightgbm_answer_as_it_does() -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="LightGBM is needed only to train")
    from benchmarks.train_layers import convert

    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 3)).astype(np.float32).astype(float)
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    options = {"num_leaves": 15, "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5}
    model = lightgbm.train(options, lightgbm.Dataset(x, y), 20)
    ours = convert(model.dump_model(), ("a", "b", "c")).predict(x)
    # leaves are rounded to 16 bits
    assert np.abs(ours - model.predict(x)).max() < 0.01
