from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.errors import InputError
from coadapt.policies.tiresias import GittinsIndex


def by_definition(sample, quantum, attained):
    left = [s - attained for s in sample if s > attained]
    if not left:
        return 0.0
    finish = sum(s + attained <= attained + quantum for s in left) / len(left)
    return finish / (sum(min(s, quantum) for s in left) / len(left))


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=30),
    st.integers(1, 100),
    st.lists(st.integers(0, 220), min_size=1, max_size=10),
)
def test_index_follows_the_definition(sample, quantum, attained):
    index = GittinsIndex([float(s) for s in sample], float(quantum))
    expected = [by_definition(sample, quantum, a) for a in attained]
    np.testing.assert_allclose(index(np.array(attained)), expected, rtol=1e-9, atol=1e-12)


def test_index_by_hand():
    index = GittinsIndex([10.0, 20.0, 100.0], 10.0)
    assert index(0.0) == pytest.approx((1 / 3) / 10)  # one of three finishes, all take 10
    assert index(15.0) == pytest.approx((1 / 2) / 7.5)  # one of two finishes after 5, the other takes 10
    assert index(50.0) == 0.0  # cannot finish within a quantum
    assert index(100.0) == 0.0  # beyond all that is known
    assert index(12.0) > index(0.0) > index(50.0)


@pytest.mark.parametrize(
    ("sample", "quantum"), [([], 1.0), ([0.0, 1.0], 1.0), ([1.0, float("inf")], 1.0), ([1.0], 0.0)]
)
def test_index_refuses_what_has_no_meaning(sample, quantum):
    with pytest.raises(InputError):
        GittinsIndex(sample, quantum)
