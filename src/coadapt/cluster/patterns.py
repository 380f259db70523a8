"""The user's regular expressions for metrics, matched so that none of them can hold the keeper up.

``re`` looks for signals while it searches; a timer that counts our own CPU time ends a search that takes too long, and the
pattern is used no more.
"""

from __future__ import annotations

import logging
import math
import re
import signal
import threading
from collections.abc import Mapping

log = logging.getLogger(__name__)
#: CPU seconds of one search, and the longest line that is searched.
_PATIENCE_S, _LONGEST = 0.02, 2000
_MOST = 64


class _TooSlowError(Exception):
    """The search has used up its time."""


class Patterns:
    """Of one job. Patterns that are none, or have no group, are left out (a submission checks them before)."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns: dict[str, re.Pattern[str]] = {}
        for name, text in list(patterns.items())[:_MOST]:
            try:
                compiled = re.compile(text)
            except (re.error, RecursionError, OverflowError) as error:
                log.warning("metric %s: %r is no pattern: %s", name, text, error)
                continue
            if compiled.groups >= 1:
                self._patterns[name] = compiled

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, line: str) -> dict[str, float]:
        """Metrics that ``line`` tells."""
        found = {}
        for name, pattern in list(self._patterns.items()):
            try:
                value = _search(pattern, line[:_LONGEST])
            except _TooSlowError:
                log.warning("metric %s: its pattern takes too long and is used no more", name)
                del self._patterns[name]
                continue
            if value is not None:
                found[name] = value
        return found


def _search(pattern: re.Pattern[str], line: str) -> float | None:
    """The number in the pattern's first group; None if there is none."""
    if threading.current_thread() is not threading.main_thread():
        raise _TooSlowError  # signals reach the main thread only: better no metric than no keeper
    before = signal.signal(signal.SIGVTALRM, _ring)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, _PATIENCE_S)
        found = pattern.search(line)
    finally:
        # ignored first: one that is already on its way must not arrive after this
        signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    try:
        value = float(found[1]) if found else math.nan
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _ring(number: int, frame: object) -> None:
    raise _TooSlowError
