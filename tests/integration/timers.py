"""Time that is up when something has happened, instead of after so many seconds: a busy machine takes longer than any number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path


def timer_that_waits_for(path: Path) -> Callable[[float, Callable[[], None]], threading.Timer]:
    """In the place of ``threading.Timer``: its function is called once there is a file ``path``."""
    real = threading.Timer

    def made(interval: float, function: Callable[[], None]) -> threading.Timer:
        def then() -> None:
            while not timer.finished.is_set() and not path.exists():
                time.sleep(0.01)
            if not timer.finished.is_set():
                function()

        timer = real(0.0, then)
        return timer

    return made
