"""``coadapt.predict(...)``: how long a model will train, before anything has run.

The model is built and traced in the interpreter of the training code; step time, memory and communication follow from its
layers, the GPU's datasheet or measured layers, and the network.

Measured layers are in a file with one line per layer, which ``coadapt profile layers`` writes (``measure_layers``) and
``coadapt predict --layer-times`` reads (``read_measured``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coadapt.errors import InputError, UnknownNameError
from coadapt.model.hardware import Gpu, find_gpu
from coadapt.model.interval import Interval
from coadapt.planning import torch_tools
from coadapt.prediction.communication import METHODS, Link, Network
from coadapt.prediction.layers import (
    LEARNERS,
    Layer,
    Learner,
    Memory,
    StepPrediction,
    memory,
    predict_step,
)
from coadapt.prediction.layers.layer import check_optimizer, check_precision
from coadapt.spec.input_shape import check_batch
from coadapt.store.prediction_ledger import Kept
from coadapt.wire.tool_messages import Traced

if TYPE_CHECKING:
    from coadapt.prediction.layers import Measured


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """Layers measured on one device, "cpu" or as its driver calls it."""

    name: str
    device: str
    layers: tuple[Measured, ...]


def read_measured(name: str) -> MeasuredFile:
    """Read a file of measured layers; raises an InputError if it has another format, is empty, or mixes devices."""
    import msgspec

    from coadapt.prediction.layers import Measured
    from coadapt.wire.tool_messages import LayerMeasured, decode

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


def measure_layers(
    name: str,
    *,
    count: int = 240,
    seconds: float = 180.0,
    device: str | None = None,
    python: str | None = None,
) -> MeasuredFile:
    """Times random small layers, one thread, and adds them to the file ``name``; a second call continues where the first stopped.

    Args:
        count: Layers that the file shall hold.
        seconds: Stop after this long; the file then holds fewer.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``; None: a GPU if there is one.
        python: Interpreter with PyTorch; None: the one that runs this.
    """
    from coadapt.planning.torch_tools import answers
    from coadapt.progress import Bars
    from coadapt.wire.tool_messages import LayerMeasured, encode

    if device is not None and not re.fullmatch(r"cpu|cuda(:[0-9]{1,4})?", device):
        raise InputError(f"--device {device!r} is neither cpu nor cuda (or one of several: cuda:1)")
    path = Path(name)
    new = not path.exists()
    before = read_measured(name) if path.exists() and path.stat().st_size else None
    done = len(before.layers) if before else 0
    if done < count:
        arguments = ["--from", str(done), "--count", str(count - done), "--seconds", str(seconds)]
        arguments += ["--device", device] if device else []
        try:
            with path.open("ab") as stream, Bars() as bars:
                for answer in answers("profile_layers", arguments, python=python):
                    assert isinstance(answer, LayerMeasured)
                    check_device(name, before.device if before else answer.device, answer.device)
                    stream.write(encode(answer) + b"\n")
                    stream.flush()
                    done += 1
                    bars.update("layers", done, count)
        except OSError as error:
            raise InputError(f"cannot write {name}: {error.strerror}") from None
        finally:
            # a file in which nothing was measured is not left behind
            if new and path.exists() and not path.stat().st_size:
                path.unlink()
        if not done:
            raise InputError(f"no layer was measured within --seconds {seconds:g}; give a larger number")
    return read_measured(name)


def check_device(name: str, device: str, other: str) -> None:
    """Raise an InputError if the file ``name`` would mix two devices."""
    if device != other:
        raise InputError(f"{name} was measured on {device}, not on {other}; write one file per device")


def notes(file: MeasuredFile, layers: Sequence[Layer], gpu: Gpu) -> list[str]:
    """Remarks on how far the measured layers apply; raises an InputError if they do not apply to ``gpu``."""
    from coadapt.model.hardware import find_gpu
    from coadapt.prediction.layers.layer_time import MIN_MEASURED

    if (file.device == "cpu") != (gpu.name == "cpu"):
        raise InputError(f"{file.name} was measured on {file.device} and cannot be used for --gpu {gpu.name}")
    found = []
    try:
        same = find_gpu(file.device).name == gpu.name
    except InputError:
        # drivers have names of their own ("Tesla V100-SXM2-16GB")
        same = gpu.name.replace("-", "") in file.device.lower().replace("-", "").replace(" ", "")
    if not same:
        found.append(
            f"the layers measured on {file.device} correct the figures of {gpu.name}; this is valid if {gpu.name} is the most similar device"
        )
    counts = {kind: sum(each.layer.kind == kind for each in file.layers) for kind in {x.kind for x in layers}}
    few = [f"{kind} ({count})" for kind, count in sorted(counts.items()) if count < MIN_MEASURED]
    if few:
        found.append(
            f"fewer than {MIN_MEASURED} layers measured of {', '.join(few)}: they are ignored and intervals are wide; "
            "run 'coadapt profile layers' again with a larger --count"
        )
    return found


#: Between nodes, Gbit/s, where nothing else is said.
NETWORK_GBIT_S = 25.0
_INSIDE_LATENCY_S, _BETWEEN_LATENCY_S = 1e-5, 3e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrediction:
    """Predicted time and memory of a model on ``replicas`` GPUs; every time has its 80% interval."""

    #: FILE:FUNCTION, as it was given.
    model: str
    gpu: Gpu
    #: Examples per replica and step.
    batch: int
    replicas: int
    layers: tuple[Layer, ...]
    parameters: int
    step: StepPrediction
    memory: Memory
    #: What the layer times of dense layers and convolutions were learned by.
    learner: Learner
    #: None where the number of examples in a pass is not known.
    steps_per_pass: int | None
    passes: float | None
    #: The first layer that could not be traced: all figures are lower bounds then.
    failed_layer: str | None
    #: What the user should know about the figures.
    notes: tuple[str, ...]
    #: Number of the total in the ledger of predictions; None if it was not recorded.
    prediction_id: int | None = None

    @property
    def lower_bound(self) -> bool:
        """Whether a layer could not be traced, so that everything takes at least what is said."""
        return self.failed_layer is not None

    @property
    def step_s(self) -> Interval:
        """One optimizer step, waiting for gradients included."""
        return self.step.step_s

    @property
    def pass_s(self) -> Interval | None:
        """One pass over the data; None without its size."""
        return None if self.steps_per_pass is None else self.step_s.scaled(self.steps_per_pass)

    @property
    def total_s(self) -> Interval | None:
        """All passes; None without their number or the size of the data."""
        if self.steps_per_pass is None or self.passes is None:
            return None
        return self.step_s.scaled(self.steps_per_pass * self.passes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys: ``coadapt predict --json``."""
        return {
            "gpu": self.gpu.name,
            "replicas": self.replicas,
            "batch_per_replica": self.batch,
            "layers": len(self.layers),
            "parameters": self.parameters,
            "forward_flops": sum(layer.flops for layer in self.layers),
            "lower_bound": self.lower_bound,
            "step_s": _plain(self.step.step_s),
            "compute_s": _plain(self.step.compute_s),
            "sync_s": _plain(self.step.sync_s),
            "communication_share": self.step.communication_share,
            "steps_per_pass": self.steps_per_pass,
            "pass_s": _plain(self.pass_s),
            "total_s": _plain(self.total_s),
            "peak_memory_bytes": _plain(self.memory.peak),
            "memory_bytes": self.gpu.memory_bytes,
            "largest_batch": None if self.lower_bound else self.memory.largest_batch,
            "by_kind_s": self.step.by_kind,
            "methods": self.step.methods,
            "notes": list(self.notes),
            "layers_by": self.learner,
            "prediction_id": self.prediction_id,
        }

    def __repr__(self) -> str:
        """One line: the model's dozens of layers would fill a page."""
        bound = ", lower bound" if self.lower_bound else ""
        return (
            f"<ModelPrediction {self.model}: {len(self.layers)} layers, batch {self.batch} on each of {self.replicas} "
            f"{self.gpu.name}, step {self.step_s.value:.3g} s{bound}>"
        )


def predict(
    model: str,
    *,
    inputs: str | Sequence[str],
    batch: int,
    gpu: str | Gpu,
    replicas: int = 1,
    data_size: int | None = None,
    passes: float | None = None,
    optimizer: str = "sgd",
    precision: str = "fp32",
    sync: str = "ring",
    gpus_per_node: int = 8,
    network: float | Network | None = None,
    overlap: float = 0.7,
    measured: str | Path | MeasuredFile | None = None,
    learner: Learner = "trees",
    python: str | None = None,
    timeout_s: float = 300.0,
    keep: bool = True,
) -> ModelPrediction:
    """Step time, pass time, memory and communication of a model, before anything has run.

        predicted = coadapt.predict("train.py:build_model", inputs="3x224x224", batch=64, gpu="v100", replicas=4,
                                    data_size=1281167, passes=90)
        predicted.total_s.low, predicted.total_s.upper

    The model is built and traced in another process, with the interpreter of the training code: this one needs no PyTorch.

    Args:
        model: FILE:FUNCTION; the function takes no arguments and returns a ``torch.nn.Module``.
        inputs: The shape of one example, ``"3x224x224"`` or ``"128:int"``; several for a model with several inputs.
        batch: Examples per replica and step.
        gpu: Name of a GPU whose datasheet is known (``"v100"``, ``"cpu"``), or a ``Gpu``.
        replicas: GPUs, one replica each.
        data_size: Examples in one pass; without it nothing is said about passes.
        passes: Passes over the data, for the total; needs ``data_size``.
        optimizer: ``"sgd"``, ``"adam"``, ...; ``"none"``: forward only.
        precision: ``"fp32"``, ``"tf32"``, ``"bf16"`` or ``"fp16"``.
        sync: How gradients travel: ``"ring"``, ``"tree"``, ``"hierarchical"``, ``"central"`` or ``"parameter-server"``.
        gpus_per_node: GPUs of a node.
        network: Gbit/s between nodes, 25 if None; or a whole ``Network``, which has its own GPUs per node.
        overlap: Share of the backward pass behind which an exchange of gradients can hide, 0 to 1.
        measured: Layers measured on this device: the file that ``coadapt profile layers`` wrote, or what was read from it.
        learner: What predicts dense layers and convolutions: ``"trees"`` or ``"network"``.
        python: Interpreter of the training code; None: the one that runs this.
        timeout_s: How long the model may take to be built and traced.
        keep: Keep a predicted total in the user's ledger, to be compared with what happens (``coadapt calibration``).

    Raises an ``InputError`` where something given is wrong or the model cannot be built, a ``ToolError`` where tracing breaks.
    """
    # everything that can be wrong without looking at the model, first
    device = gpu if isinstance(gpu, Gpu) else _device(gpu)
    check_optimizer(optimizer)
    check_precision(precision)
    _check_known("synchronisation method", sync, METHODS)
    _check_known("learner", learner, LEARNERS)
    for name, whole in (("batch", batch), ("replicas", replicas), ("gpus_per_node", gpus_per_node)):
        _check_whole(name, whole)
    if data_size is not None:
        _check_whole("data_size", data_size)
    for name, number, most in (("passes", passes, math.inf), ("timeout_s", timeout_s, math.inf)):
        _check_number(name, number, 0.0, most, open_end=True)
    _check_number("overlap", overlap, 0.0, 1.0)
    if passes is not None and data_size is None:
        raise InputError("--epochs needs --data-size, the number of examples in one epoch")
    known = read_measured(str(measured)) if isinstance(measured, str | Path) else measured
    shapes = [inputs] if isinstance(inputs, str) else list(inputs)
    if not shapes:
        raise InputError("no inputs: give the shape of one example, for example '3x224x224'")
    check_batch(shapes, batch)
    between = network if isinstance(network, Network) else _network(device, network, gpus_per_node)
    traced = _traced(model, shapes, batch, python, timeout_s)
    layers = layers_of(traced, batch)
    said = notes(known, layers, device) if known else []
    step = predict_step(
        layers,
        traced.parameters,
        device,
        between,
        replicas=replicas,
        optimizer=optimizer,
        precision=precision,
        sync=sync,
        overlap=overlap,
        measured=known.layers if known else (),
        learner=learner,
    )
    held = memory(
        layers, traced.parameters, traced.input_bytes, batch, device, optimizer=optimizer, precision=precision
    )
    found = ModelPrediction(
        model=model,
        gpu=device,
        batch=batch,
        replicas=replicas,
        layers=tuple(layers),
        parameters=traced.parameters,
        step=step,
        memory=held,
        learner=learner,
        steps_per_pass=None if data_size is None else -(-data_size // (batch * replicas)),
        passes=passes,
        failed_layer=traced.failed_layer,
        notes=(*said, *_notes(traced, device, step, held, batch)),
    )
    return replace(found, prediction_id=keep_total(found)) if keep else found


def keep_total(found: ModelPrediction) -> int | None:
    """Keeps the predicted total, to be compared with what happens, and gives its id; a bound alone predicts nothing."""
    if found.total_s is None or found.lower_bound:
        return None
    methods = found.step.methods
    # how most layers were predicted
    method = max(methods, key=lambda name: (methods[name], name), default="")
    subject = f"{found.model} on {found.replicas} {found.gpu.name}, batch {found.batch}"
    return Kept("predict").keep(subject, method, found.total_s, done=0.0)


def layers_of(traced: Traced, batch: int) -> list[Layer]:
    """The traced layers; those never reached as one dense layer that uses every parameter once: a lower bound."""
    layers = [msgspec.json.decode(raw, type=Layer) for raw in traced.layers]
    if traced.unreached_parameters:
        count = traced.unreached_parameters
        flops = 2.0 * batch * count
        layers.append(
            Layer(
                name="(not reached)",
                kind="other",
                batch=batch,
                flops=flops,
                input_bytes=0.0,
                output_bytes=0.0,
                parameters=count,
            )
        )
    return layers


def _traced(model: str, shapes: Sequence[str], batch: int, python: str | None, timeout_s: float) -> Traced:
    options = [part for text in shapes for part in ("--input", text)]
    # a file's name may begin like an option
    named = f"./{model}" if model.startswith("-") else model
    traced = torch_tools.one_answer(
        "trace_model", [named, *options, "--batch", str(batch)], python=python, timeout_s=timeout_s
    )
    assert isinstance(traced, Traced)
    return traced


def _device(name: str) -> Gpu:
    try:
        return find_gpu(name)
    except UnknownNameError as error:
        plain = str(UnknownNameError(error.kind, error.name, error.known))
        raise InputError(
            f"{plain}{'' if plain.endswith('?') else ';'} for a device that is not listed, give the most similar one and "
            "--layer-times FILE, written by 'coadapt profile layers -o FILE' on the device itself"
        ) from None


def _network(gpu: Gpu, gbit_s: float | None, per_node: int) -> Network:
    _check_number("network", gbit_s, 0.0, math.inf, open_end=True)
    inside = Link(bytes_s=gpu.link_bytes_s, latency_s=_INSIDE_LATENCY_S)
    between = Link(bytes_s=(gbit_s or NETWORK_GBIT_S) * 1e9 / 8, latency_s=_BETWEEN_LATENCY_S)
    return Network(inside=inside, between=between, per_node=per_node)


def _notes(traced: Traced, gpu: Gpu, step: StepPrediction, held: Memory, batch: int) -> list[str]:
    found = list(traced.notes)
    if gpu.memory_bytes and held.peak.low > gpu.memory_bytes:
        found.append(
            f"batch {batch} does not fit into the memory of {gpu.name}: the times assume a GPU with more memory"
        )
    elif gpu.memory_bytes and held.peak.value > gpu.memory_bytes:
        found.append(f"batch {batch} probably does not fit into the memory of {gpu.name}")
    if traced.failed_layer is not None:
        found.append(
            f"layer {traced.failed_layer!r} cannot be traced ({traced.reason}); the figures are lower bounds: "
            "they count the layers before it and use every later parameter once"
        )
    if "analytic" in step.methods or "projected" in step.methods:
        found.append(
            f"no measurements on {gpu.name} for {_unmeasured(step)}; intervals are wide. "
            "To narrow them, run 'coadapt profile layers' on such a device and give its file with --layer-times"
        )
    return found + [f"{gpu.name}: {text}" for text in gpu.unsure]


def _unmeasured(step: StepPrediction) -> str:
    count = step.methods.get("analytic", 0) + step.methods.get("projected", 0)
    return f"{count} of {sum(step.methods.values())} layers"


def _plain(estimate: Interval | None) -> dict[str, Any] | None:
    return None if estimate is None else msgspec.structs.asdict(estimate)


def _check_known(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UnknownNameError(kind, name, known)


def _check_whole(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of 1 or more, not {value!r}")


def _check_number(
    name: str, value: float | None, least: float, most: float, *, open_end: bool = False
) -> None:
    """None, or from ``least`` (``open_end``: more than it) to ``most``; NaN is refused."""
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not least <= value <= most or (open_end and value == least):
        limits = f"more than {least:g}" if open_end else f"from {least:g} to {most:g}"
        raise InputError(f"{name} must be a number, {limits}, not {value!r}")
