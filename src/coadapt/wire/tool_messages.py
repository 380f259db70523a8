"""Answers of the tools of ``coadapt.torch``: JSON lines on standard output, read by the command that started the tool.

Layers are ``coadapt.prediction.layers.Layer`` and measured ones ``Measured``; they pass through here undecoded
(``wire`` and ``prediction`` do not import each other).
"""

from __future__ import annotations

import msgspec

VERSION = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of the answers: tagged by name, with the version of the writer."""

    version: int = VERSION


class Traced(Message, frozen=True):
    """The layers of a model, in the order they run."""

    layers: tuple[msgspec.Raw, ...]
    parameters: int
    #: Bytes of one batch of input.
    input_bytes: float
    #: "meta": nothing was computed; "run": a small batch really ran, because of control flow on values.
    how: str = "meta"
    #: Where and why tracing ended early; the layers are then those before it.
    failed_layer: str | None = None
    reason: str | None = None
    #: Parameters of modules that were never reached.
    unreached_parameters: int = 0
    notes: tuple[str, ...] = ()


class Refused(Message, frozen=True):
    """The request cannot be met; one line for the user."""

    reason: str


class LayerMeasured(Message, frozen=True):
    """One random layer was measured; ``index`` is its number in the fixed random order."""

    index: int
    device: str
    measured: msgspec.Raw


class OperationShare(msgspec.Struct, frozen=True, kw_only=True):
    """Time spent in one type of operation, itself only."""

    name: str
    seconds: float
    calls: int


class RunProfiled(Message, frozen=True):
    """Where the time of a run went."""

    operations: tuple[OperationShare, ...]
    wall_s: float
    device: str
    #: True if the run was ended at the time limit.
    cut: bool = False


class LinkMeasured(Message, frozen=True):
    """Time to all-reduce messages between two processes: latency + bytes / bandwidth."""

    bytes_s: float
    latency_s: float
    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    backend: str


class Disturbed(Message, frozen=True):
    """A rehearsal has stopped, killed or resized the script after a step; it goes on with so many replicas."""

    step: int
    kind: str
    replicas: int


class Rehearsed(Message, frozen=True):
    """A disturbed run beside an undisturbed one."""

    steps: int
    disturbances: int
    #: Steps made again after a kill.
    repeated: int
    #: Whether the committed steps took the same examples in the same order: each once in a pass.
    same_examples: bool
    #: Relative difference of the parameters' fingerprints: the largest at any step, and at the end.
    largest_jump: float
    final_difference: float
    tolerance: float
    #: The same after the first step, which nothing had disturbed yet.
    first_difference: float = 0.0

    @property
    def safe(self) -> bool:
        """Whether nothing was lost, repeated or changed by what was done to it."""
        return self.disturbances > 0 and self.same_examples and self.largest_jump <= self.tolerance


Answer = Traced | Refused | LayerMeasured | RunProfiled | LinkMeasured | Disturbed | Rehearsed


def encode(message: Answer) -> bytes:
    """Encodes an answer as one line."""
    return msgspec.json.encode(message)


def decode(line: bytes | str) -> Answer:
    """Decodes an answer; msgspec.DecodeError if it is not one."""
    answer: Answer = msgspec.json.decode(line, type=Answer)
    return answer
