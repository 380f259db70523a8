"""Files that are shipped for the operation of a cluster: a unit for systemd, and alert rules for Prometheus."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path

from coadapt.errors import InputError

_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
#: What systemd takes for something else: specifiers, quotes, escapes, and what separates words.
_PLAIN = re.compile(r"/[A-Za-z0-9_./+@:,=-]*")


def systemd_unit(home: Path, *, user: str, standby: bool = False) -> str:
    """Returns the unit that serves the cluster in ``home``; InputError for values that systemd would misread.

    Args:
        home: Home directory of the cluster.
        user: User of the machine who runs it.
        standby: The unit of a standby, which takes over if the controller of the first unit ends or hangs.
    """
    if not _PLAIN.fullmatch(str(home)):
        raise InputError(
            f"the home directory {str(home)!r} has characters that systemd reads otherwise; "
            "use letters, digits and _./+@:,=-"
        )
    if not _USER.fullmatch(user):
        raise InputError(f"{user[:80]!r} is not the name of a user; write for example coadapt")
    values = {
        "NAME": "coadapt-standby" if standby else "coadapt",
        "HOME": str(home),
        "USER": user,
        "COMMAND": _command(),
        "WHAT": " (standby)" if standby else "",
        "OPTION": " --standby" if standby else "",
        "AFTER": " coadapt.service" if standby else "",
    }
    return re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], _text("coadapt.service"))


def alert_rules() -> str:
    """Returns the alert rules."""
    return _text("prometheus-rules.yml")


def _text(name: str) -> str:
    return (files("coadapt.live") / "files" / name).read_text(encoding="utf-8")


def _command() -> str:
    script = Path(sys.executable).with_name("coadapt")
    return str(script) if script.exists() else f"{sys.executable} -m coadapt.cli.main"
