"""Saved results: a benchmark's cell is computed once and reused until a source it depends on changes.

A cell is known by its name, its arguments and a hash of the source files it depends on; it is written as one
JSON file under benchmarks/.cells, atomically, so that a benchmark may be stopped and taken up again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.smoke import is_set

ROOT = Path(__file__).resolve().parent.parent
CELLS = ROOT / "benchmarks" / ".cells"


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="coadapt-cells-")


def directory() -> Path:
    """Where cells are kept: of the smoke form, only while this process lives."""
    return Path(_scratch().name) if is_set() else CELLS


def source_hash(patterns: Iterable[str], *, setting: Iterable[str] = ()) -> str:
    """Hash of all files under src/coadapt that match a pattern, of the named benchmark files, and of the libraries.

    Of Python files the code counts: a result does not change with comments, docstrings and layout.
    """
    digest = hashlib.sha256(f"numpy {version('numpy')}, scipy {version('scipy')}".encode())
    for name in setting:
        digest.update(_code(ROOT / "benchmarks" / name))
    base = ROOT / "src" / "coadapt"
    found: set[Path] = set()
    for pattern in patterns:
        there = {path for path in base.glob(pattern) if path.is_file()}
        if not there:
            raise ValueError(f"no source file matches {pattern!r}: was it moved?")
        found |= there
    for path in sorted(found):
        digest.update(str(path.relative_to(base)).encode() + b"\0" + _code(path) + b"\0")
    return digest.hexdigest()[:16]


def _code(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".py":
        return content
    tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ) and ast.get_docstring(node, clean=False):
            del node.body[0]
    return ast.dump(tree).encode()


def cell(
    name: str, arguments: dict[str, Any], sources: str, compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The saved result, or ``compute()`` saved."""
    key = hashlib.sha256(json.dumps([name, arguments, sources], sort_keys=True).encode()).hexdigest()[:24]
    path = directory() / f"{name}-{key}.json"
    if path.exists():
        saved: dict[str, Any] = json.loads(path.read_text())
        return saved
    result = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(
        json.dumps({**result, "name": name, "arguments": arguments, "sources": sources}, indent=1)
    )
    scratch.replace(path)
    return result
