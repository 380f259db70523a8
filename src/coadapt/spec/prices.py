"""Parses amounts of money and price files (price per GPU-hour by type, in YAML, JSON or CSV)."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coadapt.errors import InputError, UnknownNameError
from coadapt.model.hardware import find_gpu
from coadapt.plugins import PRICE_SOURCES
from coadapt.spec.gpus import ANY_GPU, gpu_name
from coadapt.spec.yaml_file import parse_mapping, read_text

_LONGEST_CURRENCY = 10


class Prices(NamedTuple):
    """Prices per GPU type (by ``gpu_name``) and hour; the currency as the file names it."""

    by_type: dict[str, float]
    currency: str | None = None

    def of(self, gpu_type: str) -> float | None:
        """The price of a GPU type in any spelling; None if there is none."""
        return self.by_type.get(gpu_name(gpu_type))


NO_PRICES = Prices({})


def parse_money(text: str) -> float:
    """Parse an amount of money: ``40``, ``$40``, ``1,200.50``."""
    cleaned = text.strip().lstrip("$€£").replace(",", "")
    try:
        value = float(cleaned)
    except ValueError:
        raise InputError(f"budget {text!r} is not an amount; write for example 40 or $40") from None
    if not 0 < value < float("inf"):
        raise InputError(f"budget {text!r} must be more than 0")
    return value


def currency_in(text: str) -> str | None:
    """The currency sign before an amount."""
    found = re.match(r"\s*([$€£])", text)
    return found[1] if found else None


def read_prices(given: str, offered: Iterable[str] | None = None) -> Prices:
    """Read prices from the value of ``--prices``: a price file, or a price source (``NAME`` or ``NAME:OPTION=VALUE,...``).

    ``offered``: see ``read_price_file``. An empty text means no prices.
    """
    name, _, options = given.partition(":")
    if name == "file" or name not in PRICE_SOURCES.names() or Path(given).exists():
        return read_price_file(given, offered)
    source = PRICE_SOURCES.make(name, **_options(options, name))
    return Prices(checked_prices(source.prices(), offered, f"price source {name}"))


def _options(text: str, name: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"price source {name}: {part!r} is not OPTION=VALUE")
        found[key.strip()] = value.strip()
    return found


def read_price_file(path: str, offered: Iterable[str] | None = None) -> Prices:
    """Read a price file: a mapping in YAML or JSON, optionally with ``currency``, or CSV with the columns gpu and price.

    An empty ``path`` means no prices. ``offered``: GPU types besides those with datasheets; other names are refused, with a
    suggestion. None: the names were checked before.
    """
    if not path:
        return NO_PRICES
    text = read_text(path, "price file")
    given = (
        _csv_rows(text, path) if path.lower().endswith(".csv") else parse_mapping(text, path, "price file")
    )
    currency = given.pop("currency", None)
    prices = checked_prices(given, offered, f"price file {path}")
    if not prices:
        raise InputError(
            f"price file {path} contains no price; write for example 'a100: 2.5', the price per GPU-hour"
        )
    return Prices(prices, None if currency is None else str(currency)[:_LONGEST_CURRENCY])


def checked_prices(
    given: Mapping[str, Any], offered: Iterable[str] | None, where: str = "prices"
) -> dict[str, float]:
    """Check prices and return them by ``gpu_name``; each must be a number of 0 or more."""
    known = None if offered is None else {ANY_GPU, *map(gpu_name, offered)}
    prices: dict[str, float] = {}
    for name, value in given.items():
        key = gpu_name(str(name))
        if known is not None and key not in known:
            try:
                find_gpu(key)
            except UnknownNameError as error:
                raise InputError(f"{where}: {error}") from None
        try:
            price = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            price = math.nan
        if not 0 <= price < math.inf:
            raise InputError(
                f"{where}: price of {name} is {value!r}; it must be a number, 0 or more, the price per GPU-hour"
            )
        if prices.get(key, price) != price:
            raise InputError(f"{where}: {key} has two prices, {prices[key]:g} and {price:g}")
        prices[key] = price
    return prices


def _csv_rows(text: str, path: str) -> dict[str, Any]:
    rows = list(csv.DictReader(io.StringIO(text), skipinitialspace=True))
    if not rows or not {"gpu", "price"} <= set(rows[0]):
        raise InputError(f"price file {path} needs the columns gpu and price")
    return {str(row["gpu"]): row["price"] for row in rows}
