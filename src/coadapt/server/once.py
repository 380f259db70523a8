"""Links that sign the local administrator in: each good for one use within five minutes.

A code is random; a file in ``HOME/once`` named by its hash says until when it is good. Whoever removes the file has used the
code: of two that try at once only one can, and nothing has to be remembered after a restart.
"""

from __future__ import annotations

import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from coadapt.cluster.home import Home, write_private
from coadapt.store.tokens import token_hash

GOOD_S = 300.0
_CODE = re.compile(r"[A-Za-z0-9_-]{43}")


def make_code(home: Home, *, now: float | None = None) -> str:
    """A new code; those that were never used and are over go away."""
    now = time.time() if now is None else now
    place = home.path / "once"
    place.mkdir(mode=0o700, exist_ok=True)
    for file in place.iterdir():
        if _good_until(file) <= now:
            file.unlink(missing_ok=True)
    code = secrets.token_urlsafe(32)
    write_private(place / token_hash(code), f"{now + GOOD_S}\n".encode())
    return code


def use_code(home: Home, code: str, *, now: float) -> bool:
    """Whether it was good; it is no more."""
    if not _CODE.fullmatch(code):
        return False
    file = home.path / "once" / token_hash(code)
    until = _good_until(file)
    try:
        file.unlink()
    except OSError:
        return False
    return now < until <= now + GOOD_S


def link(home: Home) -> str:
    """The address of the dashboard with a new code."""
    return f"{home.address.read_text().strip()}/sign-in?once={make_code(home)}"


def _good_until(file: Path) -> float:
    with suppress(OSError, ValueError):
        return float(file.read_text())
    return 0.0
