"""Options of a policy, from text or from Python: what its constructor takes, checked before anything runs.

A policy's options are the keyword parameters of its class; their annotations say what a text must be.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coadapt.cli.families import POLICIES, PRESETS
from coadapt.cli.option_values import checked, in_range, is_list, is_map
from coadapt.errors import InputError, UnknownNameError
from coadapt.units import parse_duration

_YES_NO = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, its type and its default."""

    name: str
    type: Any
    default: Any

    def parse(self, text: str) -> Any:
        """The value in ``text``; ValueError says what it should be."""
        return _parse(text.strip(), self.type, self.name)

    def check(self, value: Any) -> Any:
        """A value from Python as the policy takes it; ValueError says what it should be."""
        return checked(value, self.type, self.name)


def options_of(cls: type) -> dict[str, Option]:
    """The options of a policy's class by name."""
    make = inspect.getattr_static(cls, "__init__")
    if make is object.__init__:
        return {}
    try:
        hints = typing.get_type_hints(make)
    except NameError:
        # a third party's annotation that exists for type checkers only
        hints = {}
    found = {}
    for name, parameter in list(inspect.signature(make).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = None if parameter.default is parameter.empty else parameter.default
        found[name] = Option(name, hints.get(name, type(default) if default is not None else str), default)
    return found


def make_policy(
    name: str, texts: Mapping[str, str] | None = None, values: Mapping[str, Any] | None = None
) -> Any:
    """The policy called ``name`` with options as texts (``--set``) or as values (from Python)."""
    cls = POLICIES.load(name)
    known = options_of(cls)
    chosen: dict[str, Any] = dict(PRESETS.get(name, {}))
    for given, read in ((values or {}, Option.check), (texts or {}, Option.parse)):
        if not isinstance(given, Mapping):
            raise InputError(f"options must be a mapping of names to values, not {given!r}")
        for option, value in given.items():
            _check(name, option, known)
            try:
                chosen[option] = read(known[option], value)
            except ValueError as error:
                raise InputError(f"{name} option {option!r}: {error}") from None
    try:
        return cls(**chosen)
    except InputError as error:
        # policies begin with their own name, which for one of them is the name of the command
        raise InputError(f"policy {name!r}: {str(error).removeprefix(f'{name}: ')}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be made with these options: {error}") from error


def has_option(policy: str, option: str) -> bool:
    """True if the policy knows an option of this name."""
    return option in options_of(POLICIES.load(policy))


def _check(policy: str, option: str, known: Mapping[str, Option]) -> None:
    if option not in known:
        if not known:
            raise InputError(f"unknown {policy} option {option!r}; {policy} has no options")
        raise UnknownNameError(f"{policy} option", option, known)


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """``name=value`` texts as a mapping; the last of a name counts."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set {text!r} is not NAME=VALUE, for example --set p=-1")
        found[name.strip().replace("-", "_")] = value
    return found


def _parse(text: str, kind: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        if len(rest) < len(arguments) and text.lower() in ("none", ""):
            return None
        return _parse(text, rest[0], name)
    if origin is typing.Literal:
        if text not in arguments:
            raise ValueError(f"{text!r} is not one of {', '.join(map(str, arguments))}")
        return text
    if is_list(kind):
        item = arguments[0] if arguments else float
        return tuple(
            _parse(part.strip(), item, name) for part in text.strip("()[]").split(",") if part.strip()
        )
    if is_map(kind):
        return _parse_map(text, arguments[1] if arguments else float, name)
    return _PARSERS.get(kind, _as_text)(text, name)


def _parse_map(text: str, item: Any, name: str) -> dict[str, Any]:
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, colon, value = part.rpartition(":")
        if not colon:
            raise ValueError(f"{part!r} is not KEY:VALUE, for example prod:2,research:1")
        if key in found:
            raise ValueError(f"{key!r} is given twice")
        found[key] = _parse(value, item, name)
    return found


def _as_bool(text: str, name: str) -> bool:
    if text.lower() not in _YES_NO:
        raise ValueError(f"{text!r} is neither true nor false")
    return _YES_NO[text.lower()]


def _as_int(text: str, name: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    in_range(value, name)
    return value


def _as_float(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        if not name.endswith("_s"):
            raise ValueError(f"{text!r} is not a number") from None
        try:
            value = parse_duration(text)
        except InputError as error:
            raise ValueError(str(error)) from None
    in_range(value, name)
    return value


def _as_text(text: str, name: str) -> str:
    return text


_PARSERS: dict[Any, Callable[[str, str], Any]] = {
    bool: _as_bool,
    int: _as_int,
    float: _as_float,
    str: _as_text,
}
