"""Which agents of a unit run, by the variables of their processes: never by an engine's word."""

from __future__ import annotations

from pathlib import Path


def guards_of(unit: str) -> int:
    """How many guards of a unit run; their agents are their business."""
    return len(_guards(unit))


def actor_of(unit: str) -> int:
    """The process that started the guard of a unit: in Ray, its actor."""
    (guard,) = _guards(unit)
    return int(Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1])


def _guards(unit: str) -> list[int]:
    return guards_in(f"COADAPT_UNIT={unit}")


def guards_in(variable: str) -> list[int]:
    """All guards with a variable, as NAME=VALUE."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "environ").read_bytes().split(b"\0")
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if variable.encode() in words and b"\0node\0join\0" in line:
                found.append(int(entry.name))
    return found
