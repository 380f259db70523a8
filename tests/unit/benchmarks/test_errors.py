from __future__ import annotations

import pytest
from benchmarks.errors import errors


def test_errors_by_hand() -> None:
    found = errors([1.0, 4.0, 3.0], [2.0, 4.0, 6.0])
    assert found.mape == pytest.approx(100 * (0.5 + 0 + 0.5) / 3)
    assert found.mre == pytest.approx(100 * 4 / 12)
    assert found.rmse == pytest.approx(100 * (10 / 3) ** 0.5 / 4)
    assert found.rank == pytest.approx(0.5)
    assert str(found) == "RMSE 46% of the mean, MAPE 33.3%, MRE 33.3%, rank 0.500"


def test_nothing_to_rank_is_no_error() -> None:
    assert errors([2.0], [2.0]).rank == 1.0
    assert errors([1.0, 2.0], [3.0, 3.0]).rank == 1.0
