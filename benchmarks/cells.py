"""Saved results: a benchmark's cell is computed once and reused until a source it depends on changes.

A cell is known by its name, its arguments and a hash of the source files it depends on; it is written as one
JSON file under benchmarks/.cells, atomically, so that a benchmark may be stopped and taken up again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CELLS = ROOT / "benchmarks" / ".cells"


def source_hash(patterns: Iterable[str], *, setting: Iterable[str] = ()) -> str:
    """Hash of all files under src/coadapt that match a pattern, of the named benchmark files, and of the libraries."""
    digest = hashlib.sha256(f"numpy {version('numpy')}, scipy {version('scipy')}".encode())
    for name in setting:
        digest.update((ROOT / "benchmarks" / name).read_bytes())
    base = ROOT / "src" / "coadapt"
    for path in sorted({p for pattern in patterns for p in base.glob(pattern) if p.is_file()}):
        digest.update(str(path.relative_to(base)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cell(
    name: str, arguments: dict[str, Any], sources: str, compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The saved result, or ``compute()`` saved."""
    key = hashlib.sha256(json.dumps([name, arguments, sources], sort_keys=True).encode()).hexdigest()[:24]
    path = CELLS / f"{name}-{key}.json"
    if path.exists():
        saved: dict[str, Any] = json.loads(path.read_text())
        return saved
    result = compute()
    CELLS.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(
        json.dumps({**result, "name": name, "arguments": arguments, "sources": sources}, indent=1)
    )
    scratch.replace(path)
    return result
