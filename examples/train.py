"""A small network, for ``coadapt predict examples/train.py:build_model --input 3x32x32 --batch 128 --gpu t4``."""

from torch import nn


def build_model() -> nn.Module:
    """Three convolutions and a classifier."""
    layers: list[nn.Module] = []
    for inner, outer in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 4 * 4, 10))
