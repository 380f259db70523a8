"""Reads files that users write: a text, or a mapping in YAML or JSON.

Two rules of YAML 1.1 are disabled, because they silently change the meaning: ``9:00`` is a text, not 540, and
``2026-11-17`` is a text, not a date. ``1e-3`` is a number, as it is in JSON.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from coadapt.errors import InputError

_TAG = "tag:yaml.org,2002:"
_OURS = (f"{_TAG}timestamp", f"{_TAG}int", f"{_TAG}float")


class _Loader(yaml.SafeLoader):
    """YAML without clock times and dates among its numbers."""

    yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in forms if tag not in _OURS]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that is given twice: YAML would take the last one silently."""
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name and name != "<<" and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name[:80]!r} is given twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    f"{_TAG}int", re.compile(r"(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def read_text(path: str, what: str) -> str:
    """Read a whole file; ``what`` it is, for messages."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a directory, not a {what}")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise InputError(f"{what} {path} is not a text file") from None
        raise InputError(
            f"cannot read {what} {path!s}: {getattr(error, 'strerror', None) or error}"
        ) from None


def read_mapping(path: str, what: str) -> dict[str, Any]:
    """Read the mapping in a file; its keys are texts. ``what`` the file is, for messages."""
    return parse_mapping(read_text(path, what), path, what)


def parse_mapping(text: str, path: str, what: str) -> dict[str, Any]:
    """Parse the mapping in ``text``, which was read from ``path``; ``what`` it is, for messages."""
    try:
        found = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise InputError(
            f"{path}{line}: not YAML ({getattr(error, 'problem', None) or 'syntax error'})"
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"{what} {path} must be a mapping of names to values")
    return {str(key): value for key, value in found.items()}
