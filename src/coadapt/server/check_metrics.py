r"""Whether regular expressions for metrics may be run on a job's output by the keeper, which serves all jobs.

Python's ``re`` backtracks: ``(a+)+b`` takes exponential time on "aaaa...". So a repetition inside a
repetition, and more than a few open ones in a row, are refused; what is left takes polynomial time on the short lines that the keeper looks at.
"""

from __future__ import annotations

import re
import re._constants as constants  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from coadapt.errors import InputError

#: Open repetitions in one expression.
_MOST_REPEATS = 6
_REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,62}")


def check_metrics(metrics: Mapping[str, str]) -> None:
    """InputError with the first expression that may not be used."""
    if len(metrics) > 32:
        raise InputError(f"metrics has {len(metrics)} entries; at most 32 are read")
    for name, pattern in metrics.items():
        if not _NAME.fullmatch(name):
            raise InputError(
                f"metrics: {name[:80]!r} is no name of a metric; letters, digits, '_', '.', '/' and '-'"
            )
        _check_pattern(name, pattern)


def _check_pattern(name: str, pattern: str) -> None:
    if len(pattern) > 300:
        raise InputError(f"metrics: the expression for {name} is longer than 300 characters")
    try:
        with warnings.catch_warnings(action="ignore"):
            tree, groups = parser.parse(pattern), re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        raise InputError(f"metrics: the expression for {name} is none ({str(error)[:80]})") from None
    if groups != 1:
        raise InputError(
            f"metrics: the expression for {name} must have one group, the value; it has {groups}"
        )
    if _repeats(tree, inside=False) > _MOST_REPEATS:
        raise InputError(f"metrics: the expression for {name} has more than {_MOST_REPEATS} repetitions")


def _repeats(tree: Iterable[Any], *, inside: bool) -> int:
    """How many open repetitions there are; InputError for one inside another, or a reference back."""
    count = 0
    for code, value in tree:
        if code in (constants.GROUPREF, constants.GROUPREF_EXISTS):
            raise InputError("metrics: references back to a group are not allowed")
        is_open = code in _REPEATS and value[1] > 16
        if is_open and inside:
            raise InputError("metrics: a repetition inside a repetition may take for ever; write it without")
        count += is_open
        for part in _parts(value):
            count += _repeats(part, inside=inside or is_open)
    return count


def _parts(value: Any) -> Iterable[Iterable[Any]]:
    if isinstance(value, parser.SubPattern):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _parts(each)
