"""Which jobs can be resized in place: a Python script with our agent, by the look of it.

Starting a store for a script that never asks for it would only cost; so its text is searched for our name. A script that
uses the agent behind other modules says so by ``COADAPT_IN_PLACE=1`` in its environment, one that must not by ``=0``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from coadapt.cluster.protocol import Launch

ASKED = "COADAPT_IN_PLACE"
_PYTHON = re.compile(r"python[\d.]*")
_OURS = re.compile(r"\bcoadapt\b")
_MOST_BYTES = 1 << 20
#: Options of Python that have a value of their own.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def interpreter_of(launch: Launch, envs: Mapping[str, str]) -> str | None:
    """The Python whose script has our agent; None: the job is resized by restart."""
    asked = launch.envs.get(ASKED, "")
    if asked == "0" or not launch.command:
        return None
    program, *arguments = launch.command
    if not _PYTHON.fullmatch(Path(program).name):
        return None
    if asked != "1" and not _OURS.search(_script(arguments, Path(launch.workdir or "."))):
        return None
    path = Path(launch.workdir or ".") / program if "/" in program else None
    return str(path) if path is not None else shutil.which(program, path=envs.get("PATH"))


def _script(arguments: list[str], workdir: Path) -> str:
    """The text of what the arguments run; empty if it cannot be read."""
    rest = list(arguments)
    while rest:
        first = rest.pop(0)
        if first == "-c":
            return rest[0] if rest else ""
        if first == "-m":
            module = workdir / (rest[0] if rest else "").replace(".", "/")
            return _text(module.with_suffix(".py")) or _text(module / "__main__.py")
        if first in _WITH_VALUE:
            del rest[:1]
        elif not first.startswith("-"):
            return _text(workdir / first)
    return ""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
