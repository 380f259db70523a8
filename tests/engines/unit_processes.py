"""Which agents of a unit run, by the variables of their processes: never by an engine's word."""

from __future__ import annotations

from pathlib import Path


def guards_of(unit: str) -> int:
    """How many guards of a unit run; their agents are their business."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "environ").read_bytes().split(b"\0")
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            found += f"COADAPT_UNIT={unit}".encode() in words and b"coadapt.cli.main" in line
    return found
