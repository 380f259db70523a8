"""The smoke form of benchmarks: ``python -m benchmarks.NAME --smoke`` runs on inputs as small as can be, in seconds.

It shows that a benchmark still runs, and nothing else: its figures mean nothing, so no promise is judged and nothing is kept in
``benchmarks/.cells``. Processes that a benchmark starts see it by the environment. ``make test`` runs it for every benchmark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Value = TypeVar("Value")
#: Set: the smoke form is asked for.
VARIABLE = "COADAPT_BENCHMARKS_SMOKE"
OPTION = "--smoke"
_asked = 0


def take_option() -> None:
    """Takes ``--smoke`` from the command line; the package does so before any benchmark reads it."""
    if OPTION in sys.argv[1:]:
        sys.argv.remove(OPTION)
        os.environ[VARIABLE] = "1"


def is_set() -> bool:
    """Whether the smoke form is asked for; for what all benchmarks share."""
    return bool(os.environ.get(VARIABLE))


def asked() -> int:
    """How often a benchmark has looked at its form: one that never does has no smoke form."""
    return _asked


def either(smoke: Value, full: Value) -> Value:
    """The first in the smoke form, else the second."""
    global _asked
    _asked += 1
    return smoke if is_set() else full


def few(values: Sequence[Value], count: int = 1) -> Sequence[Value]:
    """The first ``count`` in the smoke form, else all."""
    return either(values[:count], values)


def few_of(values: Mapping[str, Any], count: int = 1) -> dict[str, Any]:
    """The same of a mapping."""
    return {name: values[name] for name in few(list(values), count)}
