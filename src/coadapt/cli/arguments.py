"""What the Python functions were given, checked by type: a slip is an InputError that names the parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn

from coadapt.cli.compose import cluster_of
from coadapt.errors import InputError
from coadapt.model import Cluster
from coadapt.simulate.traces import Workload


def check_trace(trace: Any) -> None:
    """A path or a workload."""
    if not isinstance(trace, str | Path | Workload):
        _refuse("trace", "the path of a file or a Workload", trace)


def check_policy(policy: Any) -> None:
    """A name, or an instance that can decide."""
    if not isinstance(policy, str) and (
        isinstance(policy, type) or not callable(getattr(policy, "decide", None))
    ):
        _refuse("policy", "a name, as 'coadapt policies' lists them, or an instance of a policy", policy)


def check_options(options: Any, policy: Any) -> None:
    """None, or a mapping; an instance has its options already."""
    if options is not None and not isinstance(options, Mapping):
        _refuse("options", "a mapping of names to values, for example {'p': -1}", options)
    for name in options or ():
        if not isinstance(name, str):
            _refuse("the name of an option", "a text", name)
    if options and not isinstance(policy, str):
        raise InputError("options are of a policy given by its name; give an instance its options yourself")


def check_flag(name: str, value: Any) -> None:
    """True or False, and nothing that merely passes for it: "no" would be a yes."""
    if not isinstance(value, bool):
        _refuse(name, "True or False", value)


def check_whole(name: str, value: Any, least: int) -> None:
    """A whole number, not below ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        _refuse(name, "a whole number", value)
    if int(value) < least:
        raise InputError(f"{name} {value} is not possible; it must be {least} or more")


def a_cluster(cluster: Any) -> Cluster:
    """A cluster, also from its shorthand."""
    if isinstance(cluster, str):
        return cluster_of(cluster)
    if not isinstance(cluster, Cluster):
        _refuse("cluster", "a Cluster or its shorthand, for example '16x4'", cluster)
    return cluster


def several(name: str, values: Any) -> list[Any]:
    """A list; a lone text is not one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        _refuse(name, "a list", values)
    return list(values)


def _refuse(name: str, expected: str, value: object) -> NoReturn:
    shown = repr(value)
    raise InputError(f"{name} must be {expected}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")
