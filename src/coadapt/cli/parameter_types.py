"""Types of command-line parameters (finite numbers, durations), and options that many commands share.

``float("nan")`` and ``float("inf")`` are numbers to Python, and a NaN passes every comparison of click's own ranges.
"""

from __future__ import annotations

import math
import re
from typing import Any

import click

from coadapt.errors import InputError
from coadapt.units import parse_duration


class Finite(click.ParamType[float]):
    """A finite number, at least ``least`` or greater than ``above``, and at most ``most``."""

    name = "number"

    def __init__(
        self, least: float | None = None, most: float | None = None, *, above: float | None = None
    ) -> None:
        self._least, self._most, self._above = least, most, above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse and check the value."""
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


class Duration(click.ParamType[float]):
    """A duration such as 90, 90s, 15m or 1h30m, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse and check the value."""
        if isinstance(value, int | float):
            return float(value)
        if re.fullmatch(r"[\d.]+[eE][+-]?\d+", str(value).strip()):
            self.fail(
                f"{value!r} is not a duration; write plain numbers without exponent, for example 90s, 15m, 1.5h or 2d",
                param,
                ctx,
            )
        try:
            return parse_duration(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON with stable keys and nothing else."
)
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, help="Seed of the random numbers."
)
python_option = click.option(
    "--python", metavar="PATH", help="Python interpreter of the training code. Default: this one."
)
