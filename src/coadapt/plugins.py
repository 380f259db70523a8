"""Plug-in families: every name a user may type, the class behind it, and the options it takes.

A family is a package. Each of its modules and sub-packages, unless its name begins with ``_``, may hold members: classes
that say their own ``name``. There is no table of names: a new file in the package is a new member. Third parties add
members by the entry-point group of the family.

Optional attributes of a class, besides ``name``:

``aliases``       other names
``presets``       further names, each a mapping of options: ``{"gittins": {"gittins": True}}``
``help``          one line; without it the first paragraph of its module, or of the class
``option_help``   one line per option, an option being a keyword parameter of ``__init__``
``order``         its place in lists, and of trace formats the order in which they are tried; then by name

A plug-in that cannot be imported, lacks a method of its family, or takes a name that exists is left out with one line in
the log, which without a configured log is standard error; everything else goes on.

Options are keyword parameters of the class; their annotations say what a text (``--policy-option``) or a value from Python must be,
and all of them are checked before anything runs.
"""

from __future__ import annotations

import inspect
import logging
import math
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from coadapt.errors import InputError, UnknownNameError
from coadapt.units import parse_duration

_log = logging.getLogger(__name__)
#: Place in lists of a class that does not say one.
_LAST = 1000


@dataclass(frozen=True, slots=True)
class Member:
    """One name of a family and the class behind it."""

    name: str
    cls: type
    #: Options that the name stands for besides its class.
    preset: Mapping[str, Any] = field(default_factory=dict)
    #: The name that this one is another word for; empty for names of their own.
    alias_of: str = ""


class Family:
    """One family of plug-ins.

    ``kind`` is its name in messages, ``package`` holds our members, ``group`` is the entry-point group of third parties,
    ``requires`` the methods that every member has, ``parts`` modules of the package that hold no member.
    """

    def __init__(
        self, kind: str, *, package: str, group: str, requires: Sequence[str], parts: Sequence[str] = ()
    ) -> None:
        self.kind, self.package, self.group = kind, package, group
        self.requires, self.parts = tuple(requires), frozenset(parts)
        self._own: dict[str, Member] | None = None
        #: Members found by the name of their file.
        self._by_file: dict[str, Member] = {}
        self._said: set[str] = set()

    def __repr__(self) -> str:
        return f"Family({self.kind!r}, package={self.package!r}, group={self.group!r})"

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def names(self) -> list[str]:
        """All names: our members in their order, then their aliases, then members of third parties."""
        return list(self._all())

    def members(self) -> list[Member]:
        """All members in order, without aliases."""
        return [member for member in self._all().values() if not member.alias_of]

    def classes(self) -> list[type]:
        """The classes of all members, in order, each once."""
        return list(dict.fromkeys(member.cls for member in self._all().values()))

    def aliases(self, name: str) -> list[str]:
        """Other names for a member."""
        return [each.name for each in self._all().values() if each.alias_of == name]

    def load(self, name: str) -> Any:
        """The class called ``name``; raises an UnknownNameError with a suggestion if there is none."""
        return self.member(name).cls

    def make(self, name: str, **options: Any) -> Any:
        """Make an instance of the member called ``name`` with its preset, overridden by ``options``."""
        member = self.member(name)
        return member.cls(**{**member.preset, **options})

    def member(self, name: str) -> Member:
        """The member called ``name``: first the module of that name, then all of ours, then third parties'."""
        found = self._in_file_named(name) or self._ours().get(name) or self._all().get(name)
        if found is not None:
            return found
        for entry in entry_points(group=self.group):
            if entry.name == name:
                self._entry_member(entry, strict=True)
        raise UnknownNameError(self.kind, name, self.names())

    def exported(self, name: str, package: str) -> type:
        """The member class called ``name`` in Python: the ``__getattr__`` of a family's package."""
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower().split("-")
        if not name.startswith("_") and name[:1].isupper():
            # FairSharePolicy is looked for in fair_share before all are imported
            for count in range(len(words), 0, -1):
                for cls in self._declared_in_file("-".join(words[:count])):
                    if cls.__name__ == name:
                        return cls
            for cls in self.classes():
                if cls.__name__ == name:
                    return cls
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    # -- ours ----------------------------------------------------------------------------------------

    def _in_file_named(self, name: str) -> Member | None:
        """The member declared in the module of this name, without importing other modules."""
        if self._own is not None:
            return self._own.get(name)
        if name not in self._by_file:
            found: dict[str, Member] = {}
            for cls in self._declared_in_file(name):
                found |= _members_of(cls, cls.__dict__["name"])
            if name not in found:
                return None
            self._by_file[name] = found[name]
            for entry in entry_points(group=self.group, name=name):
                self._leave_out(entry.value, f"the name {name!r} exists already")
        return self._by_file[name]

    def _declared_in_file(self, name: str) -> list[type]:
        stem = name.replace("-", "_")
        if not stem.isidentifier() or stem.startswith("_") or find_spec(f"{self.package}.{stem}") is None:
            return []
        return self._declared_in(f"{self.package}.{stem}")

    def _ours(self) -> dict[str, Member]:
        if self._own is None:
            package = import_module(self.package)
            found = [
                cls
                for each in pkgutil.iter_modules(package.__path__)
                if not each.name.startswith("_") and each.name not in self.parts
                for cls in self._declared_in(f"{self.package}.{each.name}")
            ]
            found.sort(key=lambda cls: (getattr(cls, "order", _LAST), cls.__dict__["name"]))
            own: dict[str, Member] = {}
            for cls in found:
                self._add(own, _members_of(cls, cls.__dict__["name"]), f"{cls.__module__}:{cls.__name__}")
            self._own = _aliases_last(own)
        return self._own

    def _declared_in(self, module_name: str) -> list[type]:
        """The members declared in a module, or in a package and its modules."""
        try:
            module = import_module(module_name)
        except (Exception, SystemExit) as error:
            self._leave_out(module_name, f"it does not import ({_one_line(error)})")
            return []
        found = []
        for cls in vars(module).values():
            if not inspect.isclass(cls) or cls.__module__ != module_name:
                continue
            # its own attribute: a subclass does not inherit membership
            if isinstance(cls.__dict__.get("name"), str) and self._is_whole(cls, module_name):
                found.append(cls)
        for each in pkgutil.iter_modules(getattr(module, "__path__", ())):
            if not each.name.startswith("_"):
                found += self._declared_in(f"{module_name}.{each.name}")
        return found

    # -- third parties' ------------------------------------------------------------------------------

    def _all(self) -> dict[str, Member]:
        found = dict(self._ours())
        for entry in sorted(entry_points(group=self.group), key=lambda each: (each.name, each.value)):
            if entry.name in found:
                self._leave_out(entry.value, f"the name {entry.name!r} exists already")
                continue
            member = self._entry_member(entry)
            if member is not None:
                self._add(found, _members_of(member.cls, entry.name), entry.value)
        return found

    def _entry_member(self, entry: EntryPoint, *, strict: bool = False) -> Member | None:
        """Load the member of an entry point; a problem is logged, or with ``strict`` raised as an InputError."""
        try:
            cls = entry.load()
        except (Exception, SystemExit) as error:
            problem = f"it does not import ({_one_line(error)})"
            if strict:
                raise InputError(f"{self.kind} {entry.name!r} ({entry.value}): {problem}") from error
            self._leave_out(entry.value, problem)
            return None
        problem = self._lack(cls)
        if problem and strict:
            raise InputError(f"{self.kind} {entry.name!r} ({entry.value}): {problem}")
        if problem:
            self._leave_out(entry.value, problem)
            return None
        return Member(entry.name, cls)

    # -- both ----------------------------------------------------------------------------------------

    def _add(self, known: dict[str, Member], new: Mapping[str, Member], where: str) -> None:
        for name, member in new.items():
            if name in known:
                self._leave_out(where, f"the name {name!r} exists already")
            else:
                known[name] = member

    def _is_whole(self, cls: type, where: str) -> bool:
        problem = self._lack(cls)
        if problem:
            self._leave_out(f"{where}:{cls.__name__}", problem)
        return not problem

    def _lack(self, cls: Any) -> str:
        if not inspect.isclass(cls):
            return f"it is not a class but {type(cls).__name__}"
        missing = [name for name in self.requires if not callable(getattr(cls, name, None))]
        missing += sorted(getattr(cls, "__abstractmethods__", frozenset()) - set(missing))
        return f"it has no method {missing[0]!r}" if missing else ""

    def _leave_out(self, where: str, why: str) -> None:
        line = f"{self.kind} plug-in {where} is left out: {why}"
        if line not in self._said:
            self._said.add(line)
            _log.warning(line)


def _members_of(cls: type, name: str) -> dict[str, Member]:
    """The names that a class has: ``name``, then its presets and aliases."""
    members = [Member(name, cls)]
    members += [Member(each, cls, preset) for each, preset in getattr(cls, "presets", {}).items()]
    members += [Member(alias, cls, alias_of=name) for alias in getattr(cls, "aliases", ())]
    return {member.name: member for member in members}


def _aliases_last(members: Mapping[str, Member]) -> dict[str, Member]:
    return dict(sorted(members.items(), key=lambda item: bool(item[1].alias_of)))


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


POLICIES = Family("policy", package="coadapt.policies", group="coadapt.policies", requires=("decide",))
PLACERS = Family("placement", package="coadapt.placement", group="coadapt.placements", requires=("place",))
STEP_TIME_MODELS = Family(
    "step-time model",
    package="coadapt.prediction.step_time",
    group="coadapt.step_time_models",
    requires=("fit", "fit_many"),
)
PLANNERS = Family(
    "planner", package="coadapt.planning.planners", group="coadapt.planners", requires=("plan",)
)
FORMATS = Family(
    "trace format", package="coadapt.simulation.traces", group="coadapt.formats", requires=("sniff", "read")
)
LOG_FORMATS = Family(
    "log format",
    package="coadapt.prediction.training_log.formats",
    group="coadapt.log_formats",
    requires=("parse",),
)
BATCH_RULES = Family(
    "batch rule", package="coadapt.torch.batches", group="coadapt.batch_rules", requires=("choose",)
)
RATE_RULES = Family(
    "learning-rate rule", package="coadapt.torch.rates", group="coadapt.rate_rules", requires=("factor",)
)
PRICE_SOURCES = Family(
    "price source", package="coadapt.spec.price_sources", group="coadapt.price_sources", requires=("prices",)
)
EXECUTORS = Family(
    "executor",
    package="coadapt.executors",
    group="coadapt.executors",
    requires=("apply", "inventory", "take", "acknowledge", "connect"),
    parts=("gang", "node", "job_source"),
)
FAMILIES = (
    POLICIES,
    PLACERS,
    STEP_TIME_MODELS,
    PLANNERS,
    FORMATS,
    LOG_FORMATS,
    BATCH_RULES,
    RATE_RULES,
    PRICE_SOURCES,
    EXECUTORS,
)


def help_of(cls: type) -> str:
    """Description of a plug-in: the class's ``help``, else the first paragraph of the docstring of its module or class."""
    declared = getattr(cls, "help", None)
    if isinstance(declared, str) and declared:
        return declared
    text = inspect.getdoc(inspect.getmodule(cls)) or inspect.getdoc(cls) or ""
    return " ".join(text.split("\n\n")[0].split())


def option_help_of(cls: type) -> dict[str, str]:
    """Descriptions of a plug-in's options, by name."""
    return dict(getattr(cls, "option_help", {}))


_LISTS = (tuple, list, Sequence, Iterable, Collection)
_MAPS = (dict, Mapping)
#: Options that must not be negative; further rules are checked by the policies.
NON_NEGATIVE = frozenset(
    ("min_run_s", "restart_s", "every_s", "quantum_gpu_s", "promote_after", "patience", "tolerance")
)


def is_list(kind: Any) -> bool:
    """Whether the annotation is a list, tuple or any other collection."""
    return typing.get_origin(kind) in _LISTS or kind in _LISTS


def is_map(kind: Any) -> bool:
    """Whether the annotation is a mapping."""
    return typing.get_origin(kind) in _MAPS or kind in _MAPS


def checked(value: Any, kind: Any, name: str) -> Any:
    """Convert ``value`` to its annotation ``kind``; raises a ValueError that says what it should be."""
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
    problem = ValueError(f"{value!r} has an unexpected type")
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
    """Raise a ValueError unless a number is finite and, where the option requires it, not negative."""
    try:
        finite = math.isfinite(value)
    except OverflowError:
        raise ValueError("the number is too large") from None
    if not finite:
        raise ValueError(f"{value:g} is not a finite number")
    if name in NON_NEGATIVE and value < 0:
        raise ValueError(f"{value:g} is less than 0")


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
        """Parse the value in ``text``; raises a ValueError that says what it should be."""
        return _parse(text.strip(), self.type, self.name)

    def check(self, value: Any) -> Any:
        """Check a value from Python; raises a ValueError that says what it should be."""
        return checked(value, self.type, self.name)


def options_of(cls: type) -> dict[str, Option]:
    """The options of a policy's class by name."""
    make = inspect.getattr_static(cls, "__init__")
    if make is object.__init__:
        return {}
    try:
        hints = typing.get_type_hints(make)
    except NameError:
        # an annotation that exists for type checkers only
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
    """The policy called ``name`` with options as texts (``--policy-option``) or as values (from Python)."""
    member = POLICIES.member(name)
    cls, known = member.cls, options_of(member.cls)
    chosen: dict[str, Any] = dict(member.preset)
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
        # some policies begin their messages with their own name
        raise InputError(f"policy {name!r}: {str(error).removeprefix(f'{name}: ')}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"policy {name!r}: invalid options: {error}") from error


def has_option(policy: str, option: str) -> bool:
    """Whether the policy has an option of this name."""
    return option in options_of(POLICIES.load(policy))


def _check(policy: str, option: str, known: Mapping[str, Option]) -> None:
    if option not in known:
        if not known:
            raise InputError(f"unknown {policy} option {option!r}; {policy} has no options")
        raise UnknownNameError(f"{policy} option", option, known)


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """Parse ``name=value`` texts into a mapping; the last value of a name counts."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--policy-option {text!r} is not NAME=VALUE, for example --policy-option p=-1")
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
