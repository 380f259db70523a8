"""Files of ``coadapt plan``: prices (YAML, JSON or CSV), the job's specification (YAML). Past runs: see ``past_runs``."""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coadapt.errors import InputError, UnknownNameError
from coadapt.predict.hardware import find_gpu

#: Keys of a job's specification; those that only submit needs are known, too.
SPEC_KEYS = (
    "name", "resources", "num_nodes", "workdir", "setup", "run", "envs", "epochs", "passes", "target", "batch", "priority",
    "deadline", "time_limit", "after", "preemptible", "retries", "user", "team", "data_size", "profile", "roles",
    "gpus_per_replica", "mixed", "metrics", "budget", "lr", "lr_rule",
)  # fmt: skip
BATCH_KEYS = ("initial", "max", "per_gpu", "mode")
RESOURCE_KEYS = ("accelerators", "cpus", "memory")


class Prices(NamedTuple):
    """Per GPU type and hour; the currency as the file names it."""

    by_type: dict[str, float]
    currency: str | None


def read_text(path: str, what: str) -> str:
    """All of a file."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a directory; name the {what}")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{what} {path} is not a text file") from None


def read_prices(path: str, offered: Iterable[str]) -> Prices:
    """A mapping in YAML or JSON, also with ``currency``; or CSV with the columns gpu and price."""
    text = read_text(path, "price file")
    given = _csv_prices(text, path) if path.lower().endswith(".csv") else _mapping(text, path, "price file")
    currency = given.pop("currency", None)
    offered = {name.lower() for name in offered}
    prices = {}
    for name, value in given.items():
        key = str(name).lower()
        if key not in offered:
            try:
                find_gpu(key)
            except UnknownNameError as error:
                raise InputError(f"price file {path}: {error}") from None
        try:
            price = float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"price file {path}: price of {name} is {value!r}; must be a number per GPU and hour"
            ) from None
        if not (math.isfinite(price) and price >= 0):
            raise InputError(f"price file {path}: price of {name} is {value!r}; must be 0 or more")
        prices[key] = price
    if not prices:
        raise InputError(f"price file {path} has no price; write for example 'a100: 2.5', per GPU and hour")
    return Prices(prices, None if currency is None else str(currency))


def _csv_prices(text: str, path: str) -> dict[str, Any]:
    rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {"gpu", "price"} <= set(rows[0]):
        raise InputError(f"price file {path} needs the columns gpu and price")
    return {row["gpu"]: row["price"] for row in rows}


def read_spec(path: str) -> dict[str, Any]:
    """A job's specification, its keys checked."""
    spec = _mapping(read_text(path, "specification"), path, "specification")
    _check_keys(spec, SPEC_KEYS, path, "")
    for key, known in (("batch", BATCH_KEYS), ("resources", RESOURCE_KEYS)):
        if isinstance(spec.get(key), Mapping):
            _check_keys(spec[key], known, path, f"{key}.")
    return spec


def _mapping(text: str, path: str, what: str) -> dict[str, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where is not None else ""
        raise InputError(f"{path}{line}: not YAML ({getattr(error, 'problem', error)})") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{what} {path} must be a mapping of names to values")
    return loaded


def _check_keys(given: Mapping[str, Any], known: tuple[str, ...], path: str, prefix: str) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise InputError(f"{path}: unknown key {prefix}{key}; {hint}")
