"""One thing ``coadapt doctor`` found."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """``verdict`` of one subject; ``remedy``: what to do. ``fatal``: nothing more can be looked at."""

    subject: str
    verdict: Literal["ok", "warn", "bad"]
    text: str
    remedy: str = ""
    fatal: bool = False


def ok(subject: str, text: str) -> Finding:
    """As it should be."""
    return Finding(subject, "ok", text)


def warn(subject: str, text: str, remedy: str = "") -> Finding:
    """It works, and may not go on doing so."""
    return Finding(subject, "warn", text, remedy)


def bad(subject: str, text: str, remedy: str = "", *, fatal: bool = False) -> Finding:
    """It does not work."""
    return Finding(subject, "bad", text, remedy, fatal)
