"""Plain data and tensors as bytes and back, for what replicas send each other. Decoding executes nothing of the sender's.

Unlike pickle, the format names a fixed set of types: None, booleans, numbers, text, bytes, lists, tuples, dictionaries
(ordered, counting and defaulting ones too), sets, deques; tensors, arrays and scalars of numpy; shapes, types and devices
of PyTorch. Anything else is refused when it is encoded, by its place in the data.

    8 bytes: length of the header | header: MessagePack, values as [TAG, ...] | the bytes of tensors and arrays
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from coadapt.errors import InputError

_LENGTH_BYTES, _DEEPEST = 8, 64
_LARGEST_INT, _LEAST_INT = (1 << 64) - 1, -(1 << 63)
_FACTORIES: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "set": set,
    "int": int,
    "float": float,
}
_MAPS: dict[type, str] = {dict: "d", OrderedDict: "o", Counter: "n"}
_SEQUENCES: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "f", torch.Size: "z"}
_FROM_MAP = {tag: kind for kind, tag in _MAPS.items()}
_FROM_SEQUENCE = {tag: kind for kind, tag in _SEQUENCES.items()}
_DTYPES = {
    str(each).removeprefix("torch."): each
    for each in vars(torch).values()
    if isinstance(each, torch.dtype) and not str(each).startswith(("torch.q", "torch.bits"))
}


def pack(value: Any) -> Tensor:
    """Encodes ``value`` as a tensor of bytes; InputError if something in it is neither plain data nor a tensor."""
    encoding = _Encoding()
    header = msgspec.msgpack.encode(encoding.node(value, (), 0))
    prefix = len(header).to_bytes(_LENGTH_BYTES, "big") + header
    found = torch.empty(len(prefix) + encoding.size, dtype=torch.uint8)
    found[: len(prefix)] = torch.frombuffer(bytearray(prefix), dtype=torch.uint8)
    begin = len(prefix)
    for part in encoding.parts:
        found[begin : begin + part.numel()] = part
        begin += part.numel()
    return found


def unpack(data: Tensor) -> Any:
    """Decodes what ``pack`` has encoded; InputError for anything else."""
    try:
        length = int.from_bytes(data[:_LENGTH_BYTES].numpy().tobytes(), "big")
        begin = _LENGTH_BYTES + length
        if length > data.numel():
            raise ValueError("the header is longer than the data")
        header = msgspec.msgpack.decode(data[_LENGTH_BYTES:begin].numpy().tobytes())
        return _Decoding(data[begin:]).value(header, 0)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise InputError(f"data of another replica cannot be decoded: {error}") from None


def foreign(value: Any) -> str:
    """Returns what keeps ``value`` from being packed, and where; empty: nothing."""
    try:
        _Encoding().node(value, (), 0)
    except InputError as error:
        return str(error)
    return ""


class _Encoding:
    """Makes the header, and collects the bytes that follow it."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        self.size = 0

    def node(self, value: Any, where: tuple[str, ...], depth: int) -> Any:
        kind = type(value)
        if depth > _DEEPEST:
            raise InputError(f"{_place(where)} is nested more than {_DEEPEST} deep")
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            return value if _LEAST_INT <= value <= _LARGEST_INT else ["i", hex(value)]
        if kind is complex:
            return ["c", value.real, value.imag]
        if kind is bytes:
            return [
                "b",
                self._add(torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else _NOTHING),
            ]
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], self._all(value, where, depth)]
        if kind is deque:
            return ["q", value.maxlen, self._all(value, where, depth)]
        if kind in _MAPS:
            return [_MAPS[kind], self._items(value, where, depth)]
        if kind is defaultdict and (
            value.default_factory is None or value.default_factory in _FACTORIES.values()
        ):
            factory = None if value.default_factory is None else value.default_factory.__name__
            return ["e", factory, self._items(value, where, depth)]
        return self._array(value, where)

    def _array(self, value: Any, where: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized:
            whole = value.detach().cpu().contiguous().reshape(-1)
            kind = str(value.dtype).removeprefix("torch.")
            if kind in _DTYPES:
                return ["T", kind, list(value.shape), self._add(whole.view(torch.uint8))]
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcUS":
            array = np.ascontiguousarray(value)
            data = (
                torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8) if array.nbytes else _NOTHING
            )
            tag = "N" if isinstance(value, np.generic) else "A"
            return [tag, value.dtype.str, list(value.shape), self._add(data)]
        if isinstance(value, torch.dtype):
            return ["y", str(value).removeprefix("torch.")]
        if isinstance(value, torch.device):
            return ["v", str(value)]
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        raise InputError(
            f"{_place(where)} is a {name}: replicas send each other tensors and plain data only; have state_dict return those"
        )

    def _all(self, values: Iterable[Any], where: tuple[str, ...], depth: int) -> list[Any]:
        return [self.node(each, (*where, f"[{n}]"), depth + 1) for n, each in enumerate(values)]

    def _items(self, values: dict[Any, Any], where: tuple[str, ...], depth: int) -> list[Any]:
        return [
            [self.node(key, (*where, "a key"), depth + 1), self.node(each, (*where, f"[{key!r}]"), depth + 1)]
            for key, each in values.items()
        ]

    def _add(self, data: Tensor) -> list[int]:
        begin = self.size
        self.parts.append(data)
        self.size += data.numel()
        return [begin, self.size]


_NOTHING = torch.empty(0, dtype=torch.uint8)


def _place(where: tuple[str, ...]) -> str:
    return "".join(where)[:200] or "the value"


class _Decoding:
    """Reads a header; ``data`` is what follows it."""

    def __init__(self, data: Tensor) -> None:
        self._data = data

    def value(self, node: Any, depth: int) -> Any:
        if not isinstance(node, list):
            if isinstance(node, (dict, bytes)):
                raise ValueError("a value without a tag")
            return node
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
        match node:
            case [str(tag), list(items)] if tag in _FROM_SEQUENCE:
                return _FROM_SEQUENCE[tag](self.value(each, depth + 1) for each in items)
            case [str(tag), list(items)] if tag in _FROM_MAP:
                return _FROM_MAP[tag](self._items(items, depth))
            case ["e", factory, list(items)]:
                return defaultdict(
                    None if factory is None else _FACTORIES[factory], self._items(items, depth)
                )
            case ["q", limit, list(items)]:
                return deque((self.value(each, depth + 1) for each in items), maxlen=limit)
            case ["i", str(text)]:
                return int(text, 16)
            case ["c", float(real), float(imaginary)]:
                return complex(real, imaginary)
            case ["b", span]:
                return self._bytes(span).numpy().tobytes()
            case ["T", str(kind), list(shape), span]:
                return self._tensor(_DTYPES[kind], shape, span)
            case [("A" | "N") as tag, str(kind), list(shape), span]:
                dtype = np.dtype(kind)
                if dtype.kind not in "biufcUS":
                    raise ValueError(f"arrays of {kind} are not sent")
                array = np.frombuffer(self._bytes(span).numpy().tobytes(), dtype=dtype).reshape(shape).copy()
                return array if tag == "A" else array[()]
            case ["y", str(kind)]:
                return _DTYPES[kind]
            case ["v", str(name)]:
                return torch.device(name)
        raise ValueError(f"the tag {node[0]!r:.40} is unknown" if node else "an empty value")

    def _items(self, items: list[Any], depth: int) -> dict[Any, Any]:
        return {self.value(key, depth + 1): self.value(each, depth + 1) for key, each in items}

    def _bytes(self, span: Any) -> Tensor:
        begin, end = span
        if not 0 <= begin <= end <= self._data.numel():
            raise ValueError("a part lies outside of the data")
        return self._data[begin:end]

    def _tensor(self, dtype: torch.dtype, shape: list[int], span: Any) -> Tensor:
        # a copy, since a part need not begin where a number of this type may
        return self._bytes(span).clone().view(dtype).reshape(shape)
