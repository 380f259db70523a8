"""A feed-forward network as plain arrays, evaluated by numpy: nothing to unpickle, no PyTorch needed.

After Justus et al. (IEEE Big Data 2018): hidden layers of 32, 64, 128, 128, 128 and 128 rectified units over
standardised features of layer and device, categories one-hot, one output. Where we deviate: the output is the logarithm of time
over its roofline (see ``learned``) and not the time itself, and the features are those of ``features``. A feature
beyond what was learned from counts as the farthest one learned from, and so does the output: a network, unlike trees,
goes on in a straight line for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coadapt.errors import InvariantError
from coadapt.predict._base import FloatArray

#: Features whose numbers are names: one input per level, the first level is none of them.
CATEGORIES = ("optimizer", "activation")


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Weights of all layers, and what they expect."""

    names: tuple[str, ...]
    #: Per feature: levels with an input of their own; none where the feature is a number.
    levels: tuple[FloatArray, ...]
    #: Per input: mean, standard deviation and range in what was learned from.
    centre: FloatArray
    scale: FloatArray
    low: FloatArray
    high: FloatArray
    #: Inputs x outputs, and a bias each.
    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    #: Range of the targets in what was learned from.
    bounds: tuple[float, float]

    def predict(self, x: FloatArray) -> FloatArray:
        """The output for every row of ``x``, whose columns are ``names``."""
        if x.shape[1] != len(self.names):
            raise InvariantError(f"{x.shape[1]} features where the network has {len(self.names)}")
        inputs = np.clip(encode(x, self.levels), self.low, self.high)
        found = (inputs - self.centre) / self.scale
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            found = np.maximum(found @ weight + bias, 0.0)
        return np.clip((found @ last[0] + last[1])[:, 0], *self.bounds)


def levels_of(x: FloatArray, names: Sequence[str]) -> tuple[FloatArray, ...]:
    """The levels of every column that occur in ``x``, without the first."""
    return tuple(
        np.unique(x[:, i])[1:] if name in CATEGORIES else np.zeros(0) for i, name in enumerate(names)
    )


def encode(x: FloatArray, levels: Sequence[FloatArray]) -> FloatArray:
    """Numbers as they are, categories as one column of 0 and 1 per level."""
    parts = []
    for i, known in enumerate(levels):
        column = x[:, i : i + 1]
        parts.append((column == known).astype(float) if len(known) else column)
    return np.hstack(parts)


def pack(network: FeedForward) -> dict[str, npt.NDArray[Any]]:
    """As compact arrays for ``numpy.savez_compressed``."""
    found: dict[str, npt.NDArray[Any]] = {
        "names": np.array(network.names),
        "levels": np.concatenate(network.levels),
        "level_counts": np.array([len(each) for each in network.levels], dtype=np.int16),
        "inputs": np.stack([network.centre, network.scale, network.low, network.high]),
        "bounds": np.array(network.bounds),
        "depth": np.array(len(network.weights)),
    }
    for i, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        found[f"weight_{i}"], found[f"bias_{i}"] = weight.astype(np.float16), bias.astype(np.float16)
    return found


def unpack(arrays: Mapping[str, npt.NDArray[Any]]) -> FeedForward:
    """The inverse of ``pack``, but for weights rounded to 16 bits."""
    centre, scale, low, high = arrays["inputs"].astype(float)
    depth = range(int(arrays["depth"]))
    least, most = arrays["bounds"].tolist()
    return FeedForward(
        names=tuple(str(name) for name in arrays["names"]),
        levels=tuple(np.split(arrays["levels"].astype(float), np.cumsum(arrays["level_counts"])[:-1])),
        centre=centre,
        scale=scale,
        low=low,
        high=high,
        weights=tuple(arrays[f"weight_{i}"].astype(float) for i in depth),
        biases=tuple(arrays[f"bias_{i}"].astype(float) for i in depth),
        bounds=(least, most),
    )
