"""Options of a policy, as Python values (and those of a scenario): each is what its annotation says, and every number is finite."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

_LISTS = (tuple, list, Sequence, Iterable, Collection)
_MAPS = (dict, Mapping)
#: Options of ours that are no less than 0; what else a policy asks of them, it says itself.
NON_NEGATIVE = frozenset(
    ("min_run_s", "restart_s", "every_s", "quantum_gpu_s", "promote_after", "patience", "tolerance")
)


def is_list(kind: Any) -> bool:
    """True if the annotation is of a list, tuple or any other collection."""
    return typing.get_origin(kind) in _LISTS or kind in _LISTS


def is_map(kind: Any) -> bool:
    """True if the annotation is of a mapping."""
    return typing.get_origin(kind) in _MAPS or kind in _MAPS


def checked(value: Any, kind: Any, name: str) -> Any:
    """The value as its annotation ``kind`` has it; ValueError says what it should be."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        if value is None and len(rest) < len(arguments):
            return None
        if len(rest) > 1:
            return _one_of(value, rest, name)
        return checked(value, rest[0], name)
    if typing.get_origin(kind) is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{value!r} is not one of {', '.join(map(str, arguments))}")
        return value
    if is_list(kind):
        if isinstance(value, str | Mapping) or not isinstance(value, Collection):
            raise ValueError(f"{value!r} is not a list")
        return tuple(checked(each, arguments[0] if arguments else float, name) for each in value)
    if is_map(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is not a mapping, for example {{'prod': 2}}")
        item = arguments[1] if arguments else float
        return {key: checked(each, item, name) for key, each in value.items()}
    return _plain(value, kind, name)


def _one_of(value: Any, kinds: Sequence[Any], name: str) -> Any:
    problem = ValueError(f"{value!r} is of no type that is expected here")
    for kind in kinds:
        try:
            return checked(value, kind, name)
        except ValueError as error:
            problem = error
    raise problem


def _plain(value: Any, kind: Any, name: str) -> Any:
    if kind is bool and not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither True nor False")
    if kind is str and not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    if kind is int and (not isinstance(value, Integral) or isinstance(value, bool)):
        raise ValueError(f"{value!r} is not a whole number")
    if kind is float and (not isinstance(value, Real) or isinstance(value, bool)):
        raise ValueError(f"{value!r} is not a number")
    if kind is Path and not isinstance(value, Path):
        raise ValueError(f"{value!r} is not a path")
    if kind in (int, float):
        in_range(value, name)
    return value


def in_range(value: float, name: str) -> None:
    """ValueError unless a number is finite and, where the option asks for it, not negative."""
    try:
        finite = math.isfinite(value)
    except OverflowError:
        raise ValueError("the number is too large") from None
    if not finite:
        raise ValueError(f"{value:g} is not a finite number")
    if name in NON_NEGATIVE and value < 0:
        raise ValueError(f"{value:g} is less than 0")
