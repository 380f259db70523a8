"""Boosted regression trees as plain arrays, evaluated by numpy: nothing to unpickle, no LightGBM needed.

A file holds, for all trees one after the other: per split the feature's number, the number of its threshold
among that feature's thresholds, and two children (>= 0 a split of the same tree, < 0 the leaf ~child); per leaf
a value. A value goes left when it is not above the threshold. Thresholds are few (255 per feature), so every
feature is first replaced by the number of thresholds below it, and a split then compares two small integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coadapt.errors import InvariantError
from coadapt.predict._base import FloatArray

IntArray = npt.NDArray[np.intp]
#: Rows times trees walked together: enough to be fast, few enough to stay in the cache's neighbourhood.
_AT_ONCE = 400_000


@dataclass(frozen=True, slots=True)
class Trees:
    """The sum of many trees."""

    names: tuple[str, ...]
    #: Thresholds of each feature, ascending.
    thresholds: tuple[FloatArray, ...]
    feature: IntArray
    bin: IntArray
    left: IntArray
    right: IntArray
    leaf: FloatArray
    #: Where each tree's splits and leaves begin.
    split_start: IntArray
    leaf_start: IntArray

    def predict(self, x: FloatArray) -> FloatArray:
        """The sum of the trees for every row of ``x``, whose columns are ``names``."""
        if x.shape[1] != len(self.names):
            raise InvariantError(f"{x.shape[1]} features where the trees have {len(self.names)}")
        bins = np.column_stack([np.searchsorted(t, x[:, i]) for i, t in enumerate(self.thresholds)])
        step = max(1, _AT_ONCE // max(len(self.split_start), 1))
        parts = [self.leaf[self._leaves(bins[at : at + step])].sum(axis=1) for at in range(0, len(x), step)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _leaves(self, bins: IntArray) -> IntArray:
        """The leaf that every row (first axis) reaches in every tree (second)."""
        trees = len(self.split_start)
        counts = np.diff(np.append(self.split_start, len(self.feature)))
        of_split = np.repeat(np.arange(trees), counts)
        # children as numbers among all splits, or ~number among all leaves
        left, right = (
            np.where(child >= 0, child + self.split_start[of_split], child - self.leaf_start[of_split])
            for child in (self.left, self.right)
        )
        roots = np.where(counts > 0, self.split_start, ~self.leaf_start)
        at = np.tile(roots, len(bins))
        row = np.repeat(np.arange(len(bins)), trees)
        walking = np.flatnonzero(at >= 0)
        while len(walking):
            split = at[walking]
            goes_left = bins[row[walking], self.feature[split]] <= self.bin[split]
            at[walking] = np.where(goes_left, left[split], right[split])
            walking = walking[at[walking] >= 0]
        return (~at).reshape(len(bins), trees)


def pack(trees: Trees) -> dict[str, npt.NDArray[Any]]:
    """As compact arrays for ``numpy.savez_compressed``."""
    return {
        "names": np.array(trees.names),
        "thresholds": np.concatenate(trees.thresholds).astype(np.float32),
        "threshold_counts": np.array([len(t) for t in trees.thresholds], dtype=np.int16),
        "feature": trees.feature.astype(np.uint8),
        "bin": trees.bin.astype(np.uint8),
        "left": trees.left.astype(np.int8 if trees.left.size == 0 or _small(trees) else np.int16),
        "right": trees.right.astype(np.int8 if trees.right.size == 0 or _small(trees) else np.int16),
        "leaf": trees.leaf.astype(np.float16),
        "split_counts": np.diff(np.append(trees.split_start, len(trees.feature))).astype(np.int16),
    }


def _small(trees: Trees) -> bool:
    children = np.concatenate([trees.left, trees.right])
    return bool(children.min() >= -128 and children.max() < 128)


def unpack(arrays: Mapping[str, npt.NDArray[Any]]) -> Trees:
    """The inverse of ``pack``."""
    counts = arrays["split_counts"].astype(np.intp)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
    cuts = np.cumsum(arrays["threshold_counts"].astype(np.intp))[:-1]
    return Trees(
        names=tuple(str(name) for name in arrays["names"]),
        thresholds=tuple(np.split(arrays["thresholds"].astype(float), cuts)),
        feature=arrays["feature"].astype(np.intp),
        bin=arrays["bin"].astype(np.intp),
        left=arrays["left"].astype(np.intp),
        right=arrays["right"].astype(np.intp),
        leaf=arrays["leaf"].astype(float),
        split_start=starts,
        # a tree has one leaf more than splits
        leaf_start=starts + np.arange(len(starts)),
    )
