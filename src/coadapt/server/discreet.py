"""Sentences without names that are not the reader's to know."""

from __future__ import annotations

import re
from collections.abc import Callable

#: What a job is called: a name and a number.
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*-\d+")


def discreet(text: str, exists: Callable[[str], bool], visible: Callable[[str], bool]) -> str:
    """The text with other people's jobs unnamed."""

    def shown(match: re.Match[str]) -> str:
        name = match[0]
        return "another's job" if exists(name) and not visible(name) else name

    return _JOB.sub(shown, text)
