"""The file that ``coadapt profile layers`` writes and ``coadapt predict --measured`` reads: a line per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.predict.hardware import Gpu
    from coadapt.predict.layers import Layer, Measured


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """Layers measured on one device, "cpu" or as its driver calls it."""

    name: str
    device: str
    layers: tuple[Measured, ...]


def read_measured(name: str) -> MeasuredFile:
    """The whole file; InputError where it is not ours, is empty, or mixes devices."""
    import msgspec

    from coadapt.predict.layers import Measured
    from coadapt.wire.trace import LayerMeasured, decode

    try:
        lines = Path(name).read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None
    found: list[Measured] = []
    device = ""
    for number, line in enumerate(lines, 1):
        try:
            message = decode(line)
            if not isinstance(message, LayerMeasured):
                raise msgspec.DecodeError("another message of ours")
            found.append(msgspec.json.decode(message.measured, type=Measured))
        except msgspec.DecodeError:
            raise InputError(f"{name}:{number} is not a line of 'coadapt profile layers'") from None
        check_device(name, device or message.device, message.device)
        device = message.device
    if not found:
        raise InputError(f"{name} holds no measured layers; write one by 'coadapt profile layers -o {name}'")
    return MeasuredFile(name, device, tuple(found))


def check_device(name: str, device: str, other: str) -> None:
    """InputError where a file would mix two devices."""
    if device != other:
        raise InputError(f"{name} was measured on {device}, not on {other}; write one file per device")


def notes(file: MeasuredFile, layers: Sequence[Layer], gpu: Gpu) -> list[str]:
    """What the user should know before these layers are believed; InputError where they say nothing about ``gpu``."""
    from coadapt.predict.hardware import find_gpu
    from coadapt.predict.layers.predictor import MIN_MEASURED

    if (file.device == "cpu") != (gpu.name == "cpu"):
        raise InputError(f"{file.name} was measured on {file.device}: it says nothing about --gpu {gpu.name}")
    found = []
    try:
        same = find_gpu(file.device).name == gpu.name
    except InputError:
        # drivers have names of their own ("Tesla V100-SXM2-16GB")
        same = gpu.name.replace("-", "") in file.device.lower().replace("-", "").replace(" ", "")
    if not same:
        found.append(
            f"layers of {file.device} correct the figures of {gpu.name}: right if it is the nearest device"
        )
    counts = {kind: sum(each.layer.kind == kind for each in file.layers) for kind in {x.kind for x in layers}}
    few = [f"{kind} ({count})" for kind, count in sorted(counts.items()) if count < MIN_MEASURED]
    if few:
        found.append(
            f"fewer than {MIN_MEASURED} layers measured of {', '.join(few)}: as if none were, with wide intervals; "
            "run 'coadapt profile layers' again with a larger --count"
        )
    return found
