"""``python -m coadapt.torch.profile_layers --from 0 --count 200 --seconds 120``: time of random layers, in JSON lines.

A measured time is one forward and backward pass and a plain SGD update, the median of a few, on one thread: CPU
time on the CPU, elapsed time between synchronisations on a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import cache

import msgspec
import torch
from torch import nn

from coadapt.predict.layers.layer import Layer, Measured
from coadapt.torch.random_layers import draw
from coadapt.torch.recorder import recording
from coadapt.wire.trace import LayerMeasured, Refused, encode

_LEAST_S, _MOST_REPEATS, _LEAST_REPEATS = 0.03, 30, 3
_RATE = 1e-6


def main() -> None:
    """See the module."""
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
    """As the driver calls it."""
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
