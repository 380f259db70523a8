"""Random layers of every kind, in sizes that real networks have, as modules to be measured.

The i-th layer is the same on every machine: it is drawn from a generator seeded by i, so that a measurement can be
stopped and taken up again, and two devices can be compared.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import nn

_FLOPS_LIMIT = 3e9
_NUMBERS_LIMIT = 2**22
Drawn = tuple[nn.Module, tuple[tuple[int, ...], ...], bool]


class Product(nn.Module):
    """A batched matrix product, the heart of attention."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See ``nn.Module``."""
        return torch.bmm(a, b)


class Sum(nn.Module):
    """A residual connection."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See ``nn.Module``."""
        return a + b


def draw(index: int) -> Drawn:
    """The layer, the shapes of its inputs (with batch), and whether they are whole numbers below 1000."""
    rng = random.Random(index)
    # half of all layers are convolutions and dense layers, where most time goes
    make = _MAKERS[index % len(_MAKERS)]
    while True:
        drawn, flops = make(rng)
        if flops <= _FLOPS_LIMIT and all(math.prod(shape) <= _NUMBERS_LIMIT for shape in drawn[1]):
            return drawn


def _log(rng: random.Random, low: float, high: float) -> int:
    return max(1, round(math.exp(rng.uniform(math.log(low), math.log(high)))))


def _image(rng: random.Random) -> tuple[int, int, int]:
    """Batch, channels, side: as in networks, wide where small."""
    side = rng.choice((1, 2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112))
    channels = rng.choice((3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512))
    return _log(rng, 1, 64), channels, side


def _convolution(rng: random.Random) -> tuple[Drawn, float]:
    batch, channels, side = _image(rng)
    out = rng.choice((8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512))
    kernel, stride = rng.choice((1, 1, 3, 3, 3, 5, 7)), rng.choice((1, 1, 2))
    side = max(side, kernel)
    groups = channels if rng.random() < 0.15 and kernel > 1 else 1
    out = channels if groups > 1 else out
    layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=rng.random() < 0.5)
    flops = 6.0 * batch * (side / stride) ** 2 * out * channels / groups * kernel**2
    return (layer, ((batch, channels, side, side),), False), flops


def _dense(rng: random.Random) -> tuple[Drawn, float]:
    rows, wide, out = _log(rng, 1, 4096), _log(rng, 16, 4096), _log(rng, 10, 4096)
    return (nn.Linear(wide, out), ((rows, wide),), False), 6.0 * rows * wide * out


def _pooling(rng: random.Random) -> tuple[Drawn, float]:
    batch, channels, side = _image(rng)
    side = max(side, 4)
    layer = rng.choice((nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)))
    return (layer, ((batch, channels, side, side),), False), 0.0


def _normalisation(rng: random.Random) -> tuple[Drawn, float]:
    if rng.random() < 0.6:
        batch, channels, side = _image(rng)
        return (
            nn.BatchNorm2d(channels),
            ((max(batch, 2), channels, max(side, 2), max(side, 2)),),
            False,
        ), 0.0
    wide = _log(rng, 32, 1024)
    return (nn.LayerNorm(wide), ((_log(rng, 1, 64), _log(rng, 8, 256), wide),), False), 0.0


def _activation(rng: random.Random) -> tuple[Drawn, float]:
    batch, channels, side = _image(rng)
    layer = rng.choice((nn.ReLU(), nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Softmax(dim=-1)))
    return (layer, ((batch, channels, side, side),), False), 0.0


def _other(rng: random.Random) -> tuple[Drawn, float]:
    batch, channels, side = _image(rng)
    shape = (batch, channels, side, side)
    return (Sum(), (shape, shape), False), 0.0


def _attention(rng: random.Random) -> tuple[Drawn, float]:
    many, rows, depth = _log(rng, 1, 256), _log(rng, 8, 256), rng.choice((16, 32, 64, 128))
    columns = rows if rng.random() < 0.5 else depth
    inner = depth if columns == rows else rows
    return (
        Product(),
        ((many, rows, inner), (many, inner, columns)),
        False,
    ), 6.0 * many * rows * inner * columns


def _embedding(rng: random.Random) -> tuple[Drawn, float]:
    layer = nn.Embedding(rng.choice((1000, 5000, 20000)), rng.choice((32, 64, 128, 256)))
    return (layer, ((_log(rng, 1, 64), _log(rng, 4, 128)),), True), 0.0


def _recurrent(rng: random.Random) -> tuple[Drawn, float]:
    batch, steps, wide, hidden = _log(rng, 1, 64), _log(rng, 4, 64), _log(rng, 16, 256), _log(rng, 16, 256)
    layer = rng.choice((nn.LSTM, nn.GRU))(wide, hidden, batch_first=True)
    return (layer, ((batch, steps, wide),), False), 24.0 * batch * steps * hidden * (wide + hidden)


_MAKERS: tuple[Callable[[random.Random], tuple[Drawn, float]], ...] = (
    _convolution,
    _dense,
    _convolution,
    _normalisation,
    _activation,
    _dense,
    _convolution,
    _pooling,
    _other,
    _attention,
    _recurrent,
    _embedding,
)
