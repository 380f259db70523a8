"""Numbers on the command line: finite ones, within the bounds of what can be meant.

``float("nan")`` and ``float("inf")`` are numbers to Python, and a NaN passes every comparison of click's own ranges.
"""

from __future__ import annotations

import math
from typing import Any

import click


class Finite(click.ParamType[float]):
    """A finite number from ``least`` (or ``above`` it) to ``most``."""

    name = "number"

    def __init__(
        self, least: float | None = None, most: float | None = None, *, above: float | None = None
    ) -> None:
        self._least, self._most, self._above = least, most, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See ``click.ParamType``."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            self.fail(f"{str(value)[:40]!r} is not a number", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{str(value)[:40]!r} is not a finite number", param, ctx)
        if self._above is not None and number <= self._above:
            self.fail(f"{number:g} is not more than {self._above:g}", param, ctx)
        if self._least is not None and number < self._least:
            self.fail(f"{number:g} is less than {self._least:g}", param, ctx)
        if self._most is not None and number > self._most:
            self.fail(f"{number:g} is more than {self._most:g}", param, ctx)
        return number


#: Any finite number.
FINITE = Finite()
#: Seconds of a measurement: up to a month.
SECONDS = Finite(most=30 * 86400.0, above=0)
