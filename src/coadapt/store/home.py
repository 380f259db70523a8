"""Where coadapt keeps what it remembers of a user: ``$COADAPT_HOME``, else the user's data directory.

The latter as the XDG base directory specification has it: ``$XDG_DATA_HOME/coadapt``, which must be absolute to
count, else ``~/.local/share/coadapt``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from coadapt.errors import InputError


def home(environment: Mapping[str, str] | None = None) -> Path:
    """The directory; it need not exist yet, but nothing else may stand in its place."""
    path = _named(environment)
    there = next((each for each in (path, *path.parents) if os.path.exists(each)), path)  # noqa: PTH110 - never raises
    if there.exists() and not there.is_dir():
        raise InputError(f"{there} is no directory; say where to keep things by COADAPT_HOME")
    return path


def _named(environment: Mapping[str, str] | None) -> Path:
    environment = os.environ if environment is None else environment
    if ours := environment.get("COADAPT_HOME"):
        return Path(ours)
    data = environment.get("XDG_DATA_HOME", "")
    if Path(data).is_absolute():
        return Path(data) / "coadapt"
    try:
        return Path("~/.local/share/coadapt").expanduser()
    except RuntimeError:
        raise InputError("there is no home directory; say where to keep things by COADAPT_HOME") from None
