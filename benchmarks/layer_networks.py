"""Five small networks on this CPU, measured: ``python -m benchmarks.layer_networks`` answers with JSON.

One thread, CPU time of a training step (forward, backward, plain SGD), three batch sizes; random layers are profiled
in turns with the networks, so that a slow minute of the machine hits both. Memory is what PyTorch's allocator
handed out at most during a step, parameters included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.smoke import either, few
from coadapt.torch.tools.profile_layers import measure, median_seconds
from coadapt.torch.tools.trace_model import trace

BATCHES = (4, 16, 48)
ROUNDS = 3


class Residual(nn.Module):
    """Two convolutions and the way around them."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(wide, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.around = (
            nn.Identity() if wide == out and stride == 1 else nn.Conv2d(wide, out, 1, stride, bias=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See ``nn.Module``."""
        return torch.relu(self.body(x) + self.around(x))


class Last(nn.Module):
    """The last step of a sequence."""

    def forward(self, x: Any) -> torch.Tensor:
        """See ``nn.Module``."""
        sequence: torch.Tensor = x[0] if isinstance(x, tuple) else x
        return sequence[:, -1]


def vgg() -> nn.Module:
    """Plain convolutions, for 32x32."""
    layers: list[nn.Module] = []
    wide = 3
    for out in (32, 64, 128):
        layers += [
            nn.Conv2d(wide, out, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1),
            nn.ReLU(),
        ]
        layers.append(nn.MaxPool2d(2))
        wide = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, 10))


def resnet() -> nn.Module:
    """Residual blocks, for 32x32."""
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 32, 1), Residual(32, 64, 2)]
    first = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mobile() -> nn.Module:
    """Depthwise and pointwise convolutions, for 64x64."""
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU()]
    wide = 24
    for out, stride in ((48, 1), (96, 2), (96, 1), (192, 2)):
        layers += [
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
        ]
        layers += [nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        wide = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 100))


def transformer() -> nn.Module:
    """Three encoder layers over 32 tokens."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return nn.Sequential(
        nn.Embedding(1000, 128), nn.TransformerEncoder(layer, 3), Last(), nn.Linear(128, 1000)
    )


def lstm() -> nn.Module:
    """A recurrent classifier over 32 tokens."""
    return nn.Sequential(
        nn.Embedding(1000, 96), nn.LSTM(96, 128, 2, batch_first=True), Last(), nn.Linear(128, 10)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "vgg": (vgg, (3, 32, 32), torch.float32),
    "resnet": (resnet, (3, 32, 32), torch.float32),
    "mobile": (mobile, (3, 64, 64), torch.float32),
    "transformer": (transformer, (32,), torch.int64),
    "lstm": (lstm, (32,), torch.int64),
}


def _step(name: str, batch: int) -> Callable[[], None]:
    build, shape, kind = NETWORKS[name]
    model = build().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    whole = kind is torch.int64
    inputs = torch.randint(0, 1000, (batch, *shape)) if whole else torch.randn((batch, *shape))

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return step


def peak_bytes(name: str, batch: int) -> int:
    """Most bytes that PyTorch held during the second step, the model and the input included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = _step(name, batch)
        step()
        step()
    held, most = 0, 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=either(2, 240))
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    steps = {(name, batch): _step(name, batch) for name in few(tuple(NETWORKS)) for batch in few(BATCHES)}
    taken: dict[tuple[str, int], list[float]] = {key: [] for key in steps}
    layers = []
    began, index = time.monotonic(), 0
    rounds = either(1, ROUNDS)
    for turn in range(rounds):
        for key, step in steps.items():
            taken[key].append(median_seconds(step, "cpu"))
        while (
            index < given.layers * (turn + 1) / rounds
            and time.monotonic() - began < given.seconds * (turn + 1) / rounds
        ):
            layers.append(measure(index, "cpu"))
            index += 1
    networks = []
    for (name, batch), seconds in taken.items():
        build, shape, kind = NETWORKS[name]
        traced = trace(build, [(shape, kind)], batch)
        networks.append(
            {
                "name": name,
                "batch": batch,
                "seconds": statistics.median(seconds),
                "peak_bytes": peak_bytes(name, batch),
                "traced": msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(traced))),
            }
        )
    json.dump({"networks": networks, "layers": msgspec.to_builtins(layers)}, sys.stdout)


if __name__ == "__main__":
    main()
