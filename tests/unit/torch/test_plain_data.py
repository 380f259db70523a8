"""What replicas send each other: encoded and decoded without executing anything, refused by its place otherwise."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.torch.elastic import random_state
from coadapt.torch.elastic.plain_data import foreign, pack, unpack

_keys = st.one_of(
    st.text(max_size=5), st.integers(), st.booleans(), st.tuples(st.integers(), st.text(max_size=3))
)
_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=10),
    st.binary(max_size=20),
    st.complex_numbers(allow_nan=False),
)
_data = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(_keys, inner, max_size=4),
        st.dictionaries(_keys, inner, max_size=4).map(OrderedDict),
        st.frozensets(st.integers(), max_size=4),
        st.lists(inner, max_size=3).map(deque),
    ),
    max_leaves=20,
)


@given(_data)
def test_plain_data_come_back_as_they_were(value: Any) -> None:
    found = unpack(pack(value))
    assert found == value
    assert type(found) is type(value)
    assert foreign(value) == ""


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.complex64, torch.int8]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (4, 0, 2)])
def test_tensor_comes_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = torch.randn(shape).to(dtype)
    # an odd number of bytes before it
    _, found = unpack(pack([b"x", value]))
    assert found.dtype == dtype
    assert found.shape == value.shape
    assert torch.equal(found, value)


def test_part_of_a_tensor_is_sent_without_the_rest() -> None:
    large = torch.zeros(1_000_000)
    assert pack(large[:4]).numel() < 200
    assert torch.equal(unpack(pack(large[::500_000])), large[::500_000])


def test_state_of_a_training_comes_back() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "generators": [random_state.generators()],
        "more": (np.float64(1.5), np.arange(4, dtype=np.uint32), Counter("aab"), defaultdict(list, a=[1])),
        "kinds": [torch.float16, torch.device("cpu"), torch.Size([2, 3])],
    }
    found = unpack(pack(state))
    assert type(found["model"]) is OrderedDict
    assert found["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    assert found["schedule"] == state["schedule"]
    assert found["more"][0] == 1.5
    assert type(found["more"][0]) is np.float64
    assert found["more"][2:] == state["more"][2:]
    assert found["kinds"] == state["kinds"]
    random_state.restore(found["generators"][0])


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_foreign_object_is_refused_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\['parts'\]\['mine'\]\[0\] is a .*Evil"):
        pack({"parts": {"mine": [Evil(tmp_path)]}})
    assert "Evil" in foreign([Evil(tmp_path)])
    with pytest.raises(InputError, match="a key is a"):
        pack({object: 1})
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InputError, match="deep"):
        pack(deep)


def test_pickle_is_not_executed(tmp_path: Path) -> None:
    data = pickle.dumps(Evil(tmp_path / "made"))
    for prefix in (b"", len(data).to_bytes(8, "big")):
        with pytest.raises(InputError, match="cannot be decoded"):
            unpack(torch.frombuffer(bytearray(prefix + data), dtype=torch.uint8))
    assert not (tmp_path / "made").exists()


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else(noise: bytes) -> None:
    data = (
        torch.frombuffer(bytearray(noise), dtype=torch.uint8) if noise else torch.empty(0, dtype=torch.uint8)
    )
    with suppress(InputError):
        unpack(data)


@given(st.integers(min_value=0), st.binary(min_size=1, max_size=1))
def test_changed_byte_is_refused_or_another_value(position: int, byte: bytes) -> None:
    data = pack({"a": [1, torch.ones(3), "b"], "c": np.arange(3)})
    data[position % data.numel()] = byte[0]
    with suppress(InputError):
        unpack(data)
