"""One layer of a model as it is applied to one batch: what its time, memory and communication depend on.

All figures are of the *forward* pass of a whole (per-replica) batch in 32-bit numbers; what a training step
adds to them is in ``work``. FLOPs count two per multiply-accumulate.
"""

from __future__ import annotations

from typing import Literal

from coadapt.errors import UnknownNameError
from coadapt.model import Fact

Kind = Literal[
    "dense",
    "convolution",
    "pooling",
    "recurrent",
    "attention",
    "normalisation",
    "embedding",
    "activation",
    "other",
]
KINDS: tuple[Kind, ...] = (
    "dense",
    "convolution",
    "pooling",
    "recurrent",
    "attention",
    "normalisation",
    "embedding",
    "activation",
    "other",
)
#: Optimizers, and the numbers per parameter that they keep and that their update moves. "none": forward only.
OPTIMIZER_STATE = {
    "none": 0,
    "sgd": 0,
    "momentum": 1,
    "adagrad": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
    "adadelta": 2,
}
OPTIMIZER_TRAFFIC = {
    "none": 0,
    "sgd": 1,
    "momentum": 2,
    "adagrad": 2,
    "rmsprop": 2,
    "adam": 3,
    "adamw": 3,
    "adadelta": 4,
}
#: Bytes of a number by precision.
WIDTH_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


class Layer(Fact, frozen=True):
    """A layer applied to a batch."""

    name: str
    kind: Kind
    #: Examples in the batch.
    batch: int
    flops: float
    input_bytes: float
    output_bytes: float
    parameters: int = 0
    #: Kept from the forward pass until the backward pass, parameters not counted.
    saved_bytes: float = 0.0
    #: The matrix product inside: rows x depth times depth x columns (0 where there is none).
    rows: float = 0.0
    columns: float = 0.0
    depth: float = 0.0
    # convolutions and pooling
    size: float = 0.0
    out_size: float = 0.0
    kernel: float = 0.0
    stride: float = 1.0
    groups: int = 1
    channels_in: float = 0.0
    channels_out: float = 0.0
    same_padding: bool = False
    bias: bool = False
    #: Applied to the output inside the layer's own kernel: none, relu, tanh, sigmoid.
    activation: str = "none"
    #: Steps that follow one another (recurrent layers): each is launched apart.
    steps: int = 1


class Measured(Fact, frozen=True):
    """A layer's measured time: forward only (optimizer "none"), or forward, backward and update."""

    layer: Layer
    optimizer: str
    seconds: float


def check_optimizer(name: str) -> str:
    """The name of a known optimizer, or an UnknownNameError."""
    if name not in OPTIMIZER_STATE:
        raise UnknownNameError("optimizer", name, OPTIMIZER_STATE)
    return name


def check_precision(name: str) -> str:
    """The name of a known precision, or an UnknownNameError."""
    if name not in WIDTH_BYTES:
        raise UnknownNameError("precision", name, WIDTH_BYTES)
    return name
