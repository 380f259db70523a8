"""Waiting in tests: for a condition, never for a number of seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

#: Seconds that a condition may take. It only ends tests that would wait for ever: a busy machine can stop for minutes.
DEADLINE_S = 300.0


def until(condition: Callable[[], object], what: str | Callable[[], object] = "the condition") -> None:
    """Return once ``condition()`` is true.

    ``what`` names it in the failure; a function is called for the text when the deadline has passed.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {DEADLINE_S:.0f} s: {what if isinstance(what, str) else what()}"
            )
        time.sleep(0.01)


def timer_that_waits_for(path: Path) -> Callable[[float, Callable[[], None]], threading.Timer]:
    """A replacement of ``threading.Timer`` that calls its function when the file ``path`` exists, not after a time."""
    real = threading.Timer

    def made(interval: float, function: Callable[[], None]) -> threading.Timer:
        def then() -> None:
            until(lambda: timer.finished.is_set() or path.exists(), f"no {path}")
            if not timer.finished.is_set():
                function()

        timer = real(0.0, then)
        return timer

    return made
