"""Lines that hold a mapping, as JSON or as Python prints it: shared by the formats that write such lines."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from coadapt.prediction.training_log.patterns import NOT_METRICS, number, value_of

#: A loss that Python prints as it is, which is no literal of Python's.
_BARE = re.compile(r"([:,\[]\s{0,4})(-?(?:nan|inf))(?=\s{0,4}[,}\]])")
#: Longer mappings are configurations, which take long to parse.
_LONGEST = 4000


def mapping(line: str) -> Mapping[str, Any] | None:
    """The mapping that a line ends with; None if there is none."""
    begin = line.find("{")
    if begin < 0 or not line.endswith("}") or len(line) - begin > _LONGEST:
        return None
    text = line[begin:]
    found = _read(text)
    if found is None:
        found = _read(_BARE.sub(r'\1"\2"', text))
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else None


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if "'" not in text:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def first(said: Mapping[str, Any], *names: str) -> float | None:
    """The first of several values that is a number."""
    for name in names:
        if (found := number(said.get(name))) is not None:
            return found
    return None


def whole(said: Mapping[str, Any], *names: str) -> int | None:
    """As ``first``, as a whole number."""
    found = first(said, *names)
    return None if found is None or abs(found) > 1e18 else int(found)


def numbers(said: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a mapping."""
    found = ((key, value_of(value)) for key, value in list(said.items())[:80])
    return {key: value for key, value in found if value is not None and key.lower() not in NOT_METRICS}
