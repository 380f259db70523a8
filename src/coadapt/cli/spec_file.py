"""A mapping from a YAML or JSON file."""

from __future__ import annotations

from typing import Any

import yaml

from coadapt.cli.plan_files import read_text
from coadapt.errors import InputError


def read_mapping(path: str, what: str = "specification") -> dict[str, Any]:
    """The file's mapping; keys are texts."""
    text = read_text(path, what)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark is not None else ""
        problem = getattr(error, "problem", None) or "not understood"
        raise InputError(f"{what} {path}:{line} {problem}") from None
    if not isinstance(found, dict):
        raise InputError(f"{what} {path} must be a mapping, for example 'run: python train.py'")
    return {str(key): value for key, value in found.items()}
