"""Parses targets: ``val_acc>=0.93``, ``wer < 25``, ``top-1 acc>=92%``.

One grammar for ``plan``, ``submit``, the API, job files and predictions::

    METRIC SIGN NUMBER[%]

METRIC is any text without ``<``, ``>`` and ``=``; SIGN is ``>=``, ``>`` or ``=>`` (more is better), ``<=``, ``<`` or ``=<`` (less is);
``92%`` means 0.92. A metric is measured with a tolerance, so that ``>`` means the same as ``>=``.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from coadapt.errors import InputError

_LONGEST = 200
_TARGET = re.compile(r"([^<>=]*[^<>=\s])\s*(>=|<=|=>|=<|>|<)\s*([^<>=%\s]+)\s*(%?)")


class Target(NamedTuple):
    """A target such as ``val_acc>=0.93``: the metric's name, whether higher is better, and the value."""

    name: str
    higher_is_better: bool
    value: float

    def __str__(self) -> str:
        return f"{self.name}{'>=' if self.higher_is_better else '<='}{self.value!r}"


def parse_target(text: str) -> Target:
    """Parse a target; raises an InputError if it is not valid."""
    if len(text) > _LONGEST or not text.isprintable():
        raise InputError(f"target must be at most {_LONGEST} printable characters, not {text[:40]!r}...")
    match = _TARGET.fullmatch(text.strip())
    if not match:
        raise InputError(f'target {text!r} is not valid; write for example "val_acc>=0.93" or "wer<=25"')
    try:
        value = float(match[3])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"target {text!r}: {match[3]!r} is not a number")
    return Target(match[1], ">" in match[2], value / 100 if match[4] else value)


def stored_target(text: str) -> Target | None:
    """Parse the target of a job in a log of any version; None if it cannot be read. Never raises: a fold must not stop.

    Earlier versions took any text before the first ``>=`` (else ``<=``) for the metric's name.
    """
    try:
        return parse_target(text)
    except InputError:
        pass
    for sign in (">=", "<="):
        name, found, number = text.partition(sign)
        try:
            value = float(number) if found and name.strip() else math.nan
        except ValueError:
            return None
        if math.isfinite(value):
            return Target(name.strip(), sign == ">=", value)
    return None
