"""``python -m coadapt.torch.tools.trace_model FILE:FUNCTION --input 3x224x224 --batch 64``: a model as layers, in JSON.

The function is called without arguments and returns a ``torch.nn.Module``. The model is built and applied on the meta device. If its
code reads values, which the meta device does not have, a batch of two runs on the CPU and is scaled up; if that fails too, the
response names the module and has the layers before it. A model that got the wrong input is an error: bounds of another model
would be meaningless.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import torch
from msgspec.structs import replace
from torch.nn.parameter import UninitializedParameter

from coadapt.errors import InputError, suggestion
from coadapt.prediction.layers.layer import Layer
from coadapt.spec.input_shape import parse_shape
from coadapt.torch.tools.layer_recorder import Recorder, recording
from coadapt.wire.tool_messages import Answer, Refused, Traced, encode

_RUN_BATCH = 2
_TYPES = {"float": torch.float32, "int": torch.int64, "long": torch.int64, "bool": torch.bool}
#: Messages of PyTorch and Python for inputs of a wrong shape, type or number.
_WRONG_INPUT = re.compile(
    r"shape|size|dimension|channels|scalar type|dtype|same type|input type|positional argument|index out of range"
    r"|not enough values",
    re.IGNORECASE,
)
_SCALED = ("batch", "flops", "input_bytes", "output_bytes", "saved_bytes", "rows")


class RefusedError(Exception):
    """An error message of one line for the user."""


def main() -> None:
    """Trace the model in the arguments and print its layers as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--input", action="append", required=True)
    parser.add_argument("--batch", type=int, required=True)
    given = parser.parse_args()
    # the user's code may print: standard output is for our message
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer: Answer
    try:
        answer = trace_target(given.target, given.input, given.batch)
    except RefusedError as refused:
        answer = Refused(reason=str(refused))
    answers.write(encode(answer) + b"\n")
    answers.flush()


def trace_target(target: str, inputs: list[str], batch: int) -> Traced:
    """The layers of the model that ``FILE:FUNCTION`` builds."""
    build = find(target)
    shapes = [parse_input(text) for text in inputs]
    return trace(lambda: _built(build, target), shapes, batch)


def find(target: str) -> Callable[[], object]:
    """The function named by ``train.py:build_model`` or ``package.module:build_model``."""
    place, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise RefusedError(f"{target!r} is not FILE:FUNCTION, for example train.py:build_model")
    sys.path.insert(0, str(Path(place).resolve().parent) if place.endswith(".py") else str(Path.cwd()))
    try:
        module = _load(place)
    except RefusedError:
        raise
    except (Exception, SystemExit) as error:
        raise RefusedError(f"{place} does not import: {_line(error)}") from error
    found = getattr(module, name, None)
    if callable(found):
        return found
    names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    raise RefusedError(f"{place} has no function {name!r}; {suggestion(name, names)}")


def _load(place: str) -> object:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise RefusedError(f"there is no file {place}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def parse_input(text: str) -> tuple[tuple[int, ...], torch.dtype]:
    """``3x224x224``, or with a type ``128:int``: one example, without the batch."""
    try:
        sizes, kind = parse_shape(text)
    except InputError as error:
        raise RefusedError(str(error)) from None
    return sizes, _TYPES[kind]


def _built(build: Callable[[], object], target: str) -> torch.nn.Module:
    required = [
        p.name
        for p in inspect.signature(build).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if required:
        raise RefusedError(f"{target} needs arguments ({', '.join(required)}); name a function without any")
    try:
        model = build()
    except (Exception, SystemExit) as error:
        raise RefusedError(f"{target} fails: {_line(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise RefusedError(f"{target} returns {type(model).__name__}, not a torch.nn.Module")
    return model


def trace(
    build: Callable[[], torch.nn.Module], shapes: Iterable[tuple[tuple[int, ...], torch.dtype]], batch: int
) -> Traced:
    """The layers of a model applied to a batch."""
    shapes = list(shapes)
    try:
        with torch.device("meta"):
            model = build()
    except RefusedError:
        # initialisation that looks at values; a second failure is the user's to see
        model = build()
    model = model.to("meta").train()
    recorder, first = _watch(model, shapes, batch, "meta")
    if first is None:
        return _answer(model, recorder.layers, shapes, batch)
    where, looks = recorder.where, _needs_values(first)
    real, second = _watch(build().train(), shapes, _RUN_BATCH, "cpu")
    if second is None:
        note = (
            f"layer {where!r} looks at values ({_line(first)}): one path of it was taken, with random input"
        )
        layers = [scaled(each, batch) for each in real.layers]
        return _answer(model, layers, shapes, batch, how="run", notes=(note,))
    if looks or not _WRONG_INPUT.search(str(second)):
        return _partial(model, recorder, shapes, batch, where, second)
    given = ", ".join("x".join(map(str, sizes)) or "a number" for sizes, _ in shapes)
    raise RefusedError(f"the model fails on --input {given} in layer {real.where!r}: {_line(second)}")


def _watch(
    model: torch.nn.Module, shapes: list[tuple[tuple[int, ...], torch.dtype]], batch: int, device: str
) -> tuple[Recorder, BaseException | None]:
    try:
        # an example may be too large for the CPU, or have more dimensions than PyTorch knows
        inputs = [
            torch.zeros((batch, *sizes), dtype=kind, device=device)
            if kind is not torch.float32
            else torch.randn((batch, *sizes), device=device)
            for sizes, kind in shapes
        ]
        if any(isinstance(each, UninitializedParameter) for each in model.parameters()):
            # lazy modules learn their shapes from the first input
            with torch.no_grad():
                model(*inputs)
    except (Exception, SystemExit) as error:
        return Recorder(torch.nn.Module(), batch), error
    with recording(model, batch) as recorder:
        try:
            model(*inputs)
        except (Exception, SystemExit) as error:
            return recorder, error
    return recorder, None


def _needs_values(error: BaseException) -> bool:
    return "meta" in str(error).lower() or isinstance(error, NotImplementedError)


def _answer(
    model: torch.nn.Module,
    layers: list[Layer],
    shapes: list[tuple[tuple[int, ...], torch.dtype]],
    batch: int,
    *,
    how: str = "meta",
    notes: tuple[str, ...] = (),
) -> Traced:
    numbers = sum(torch.Size(sizes).numel() * kind.itemsize for sizes, kind in shapes)
    return Traced(
        layers=tuple(msgspec.Raw(msgspec.json.encode(layer)) for layer in layers),
        parameters=sum(p.numel() for p in model.parameters()),
        input_bytes=float(batch * numbers),
        how=how,
        notes=notes,
    )


def _partial(
    model: torch.nn.Module,
    recorder: Recorder,
    shapes: list[tuple[tuple[int, ...], torch.dtype]],
    batch: int,
    where: str,
    error: BaseException,
) -> Traced:
    missed = [m for name, m in model.named_modules() if name and name not in recorder.reached]
    left = {id(p): p.numel() for module in missed for p in module.parameters(recurse=False)}
    if not recorder.layers and not left:
        raise RefusedError(
            f"layer {where!r} cannot be traced ({_line(error)}), and nothing comes before or after"
        )
    return msgspec.structs.replace(
        _answer(model, recorder.layers, shapes, batch),
        failed_layer=where,
        reason=_line(error),
        unreached_parameters=sum(left.values()),
    )


def scaled(layer: Layer, batch: int) -> Layer:
    """A layer traced with the small batch as it is with another."""
    factor = batch / _RUN_BATCH
    changes = {name: getattr(layer, name) * factor for name in _SCALED}
    return replace(layer, **{**changes, "batch": round(changes["batch"])})


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text[:200]}"


if __name__ == "__main__":
    main()
