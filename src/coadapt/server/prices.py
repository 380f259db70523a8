"""The price of a GPU-hour by type, from the file that ``coadapt serve`` was given: a mapping in YAML or JSON, or CSV."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import yaml

from coadapt.errors import InputError


def read_prices(path: str) -> tuple[dict[str, float], str]:
    """Prices, and their unit where the file names one under ``currency``; nothing for no file."""
    if not path:
        return {}, ""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        given = _rows(text) if path.lower().endswith(".csv") else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError) as error:
        raise InputError(f"price file {path} cannot be read ({type(error).__name__})") from None
    if not isinstance(given, dict) or not given:
        raise InputError(f"price file {path} has no price; write for example 'a100: 2.5', per GPU and hour")
    currency = str(given.pop("currency", ""))[:10]
    return {str(name): _price(path, str(name), value) for name, value in given.items()}, currency


def _rows(text: str) -> dict[str, Any]:
    return {row["gpu"]: row["price"] for row in csv.DictReader(io.StringIO(text))}


def _price(path: str, name: str, value: Any) -> float:
    try:
        price = float(value)
    except (TypeError, ValueError):
        price = math.nan
    if not 0 <= price < math.inf:
        raise InputError(f"price file {path}: price of {name} is {value!r}; it must be a number, 0 or more")
    return price
