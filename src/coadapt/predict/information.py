"""How much a column says about another: entropies in bits of values sorted into equal-frequency bins.

    H(Y) = -sum P(y) log2 P(y)      MI(X; Y) = H(X) + H(Y) - H(X, Y)  (= H(Y) - H(Y | X))

Ten bins (the publication names no number; it samples ten batch sizes), and never more than sqrt(rows): with a bin
per row every column would seem to tell everything. Bins go by rank, equal values share one, so that any
strictly rising change of units leaves every entropy as it is: this is also the publication's normalisation.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from coadapt.predict._base import FloatArray

BINS = 10


def binned(values: FloatArray) -> npt.NDArray[np.int64]:
    """Number of the bin of each value."""
    rows = len(values)
    bins = max(min(BINS, math.isqrt(rows)), 1)
    share = (rankdata(values) - 0.5) / rows
    return np.minimum((share * bins).astype(np.int64), bins - 1)


def entropy(*columns: npt.NDArray[np.int64]) -> float:
    """Joint entropy of columns of bins."""
    _, count = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    share = count / count.sum()
    return float(-(share * np.log2(share)).sum())


def mutual_information(x: FloatArray, y: FloatArray) -> float:
    """Bits that x and y share; 0 where one of them is constant."""
    a, b = binned(x), binned(y)
    return max(entropy(a) + entropy(b) - entropy(a, b), 0.0)


def weights(columns: list[FloatArray], target: FloatArray) -> tuple[float, ...]:
    """m / sum(m), m = 1 - 1/(MI + 1), per column; equal ones where no column says anything."""
    said = [1 - 1 / (mutual_information(column, target) + 1) for column in columns]
    total = sum(said)
    if total <= 1e-12:
        return (1 / len(columns),) * len(columns)
    return tuple(m / total for m in said)
