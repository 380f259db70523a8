"""A mapping from a YAML or JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from coadapt.errors import InputError


def read_mapping(path: str, what: str = "specification") -> dict[str, Any]:
    """The file's mapping; keys are texts."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a directory; name the {what}")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{what} {path} is not a text file") from None
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
