"""``python -m coadapt.torch.tools.profile_layers --from 0 --count 200 --seconds 120``: times of random layers, in JSON lines.

Layers are of every kind, in sizes that real networks have. Layer i is drawn from a generator seeded by i and so the same on every
machine: a measurement can be interrupted and resumed, and two devices can be compared. A measured time is one forward and backward
pass and a plain SGD update, the median of a few, on one thread: CPU time on the CPU, elapsed time between synchronisations on a GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import time
from collections.abc import Callable
from functools import cache

import msgspec
import torch
from torch import nn

from coadapt.prediction.layers.layer import Layer, Measured
from coadapt.torch.tools.layer_recorder import recording
from coadapt.wire.tool_messages import LayerMeasured, Refused, encode

_LEAST_S, _MOST_REPEATS, _LEAST_REPEATS = 0.03, 30, 3
_RATE = 1e-6


def main() -> None:
    """Measure the layers that the arguments ask for and print them as JSON lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    if missing := _missing(given.device):
        answers.write(encode(Refused(reason=missing)) + b"\n")
        answers.flush()
        return
    began = time.monotonic()
    for index in range(given.first, given.first + given.count):
        if time.monotonic() - began > given.seconds:
            break
        measured = measure(index, given.device)
        raw = msgspec.Raw(msgspec.json.encode(measured))
        answers.write(
            encode(LayerMeasured(index=index, device=device_name(given.device), measured=raw)) + b"\n"
        )
        answers.flush()


def _missing(device: str) -> str:
    """Why the device cannot be used; "" if it can."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA asserts
        return f"--device {device}: {' '.join(str(error).split())[:200]}"
    return ""


def device_name(device: str) -> str:
    """The name of the device, as the driver reports it."""
    return torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"


def measure(index: int, device: str) -> Measured:
    """The ``index``-th random layer."""
    torch.manual_seed(index)
    module, shapes, whole = draw(index)
    module = module.to(device).train()
    inputs = [
        torch.randint(0, 1000, shape, device=device)
        if whole
        else torch.randn(shape, device=device, requires_grad=True)
        for shape in shapes
    ]
    layer = describe(module, inputs)
    taken = step_seconds(module, inputs, device)
    # a network starts its backward pass once, not once per layer
    seconds = max(taken - start_seconds(device), taken / 5)
    return Measured(layer=layer, optimizer="sgd", seconds=seconds)


@cache
def start_seconds(device: str) -> float:
    """What a step of one tiny operation costs beyond the operation: found from chains of one and of nine."""

    class Chain(nn.Module):
        def __init__(self, length: int) -> None:
            super().__init__()
            self.length = length

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.length):
                x = x * 1.5
            return x

    inputs = [torch.ones(4, device=device, requires_grad=True)]
    # the first steps of a process are slow: the least of a few
    short, long = (min(step_seconds(Chain(length), inputs, device) for _ in range(5)) for length in (1, 9))
    return max(short - (long - short) / 8, 0.0)


def describe(module: nn.Module, inputs: list[torch.Tensor]) -> Layer:
    """The layer that the predictor would see; the largest operation where there are several."""
    with recording(module, inputs[0].shape[0]) as recorder:
        module(*inputs)
    return max(recorder.layers, key=lambda layer: (layer.flops, layer.output_bytes))


def step_seconds(module: nn.Module, inputs: list[torch.Tensor], device: str) -> float:
    """One training step of the module, the median of several."""
    gradient: list[torch.Tensor] = []

    def step() -> None:
        out = module(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        if not gradient:
            gradient.append(torch.ones_like(out))
        out.backward(gradient[0])
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-_RATE)
                    parameter.grad = None
        for each in inputs:
            each.grad = None

    return median_seconds(step, device)


def median_seconds(step: Callable[[], None], device: str) -> float:
    """After one step to warm up."""
    clock = _clock(device)
    step()
    taken: list[float] = []
    while len(taken) < _LEAST_REPEATS or (sum(taken) < _LEAST_S and len(taken) < _MOST_REPEATS):
        began = clock()
        step()
        taken.append(clock() - began)
    return max(statistics.median(taken), 1e-7)


def _clock(device: str) -> Callable[[], float]:
    if not device.startswith("cuda"):
        return time.process_time

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return synchronised


if __name__ == "__main__":
    main()

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
