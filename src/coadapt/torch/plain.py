"""Plain steps: most steps need nothing of ours, and then next to nothing of ours runs.

A step is plain if it is one backward pass with equal shares, averaged by DDP itself, with no norms to take and nothing to
decide. How many such steps lie ahead is known beforehand (``Rows.ahead``): up to the next sample, the end of the
pass, the end of the epoch. The loader makes them in a row and looks at one number after each, ``until``. Whoever
wants to be heard between two steps (a signal, a notice, a memory limit) calls ``interrupt``, from any thread:
it is heard after the step that is being made. In a training step of a millisecond every call counts: 40 calls of ours, all
of them cold in the caches by the time they come round again, were 5% of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Plain:
    """The plain steps that are being made. ``due``: the script has a plain batch and has not called ``optimizer.step()``."""

    __slots__ = ("begun", "due", "factor", "mark", "one_s", "running", "spent", "took", "until", "work")

    def __init__(self) -> None:
        self.due = self.running = False
        #: When to look around at the latest, by ``time.perf_counter``.
        self.until = 0.0
        #: When the last step was over.
        self.mark = 0.0
        #: What each step is worth, and what it multiplies learning rates by; None: the rule must be asked every time.
        self.work = 0.0
        self.factor: float | None = 1.0
        #: Seconds of each step so far; and of the first by the clock that samples are held against: one of a row is enough, and
        #: a whole row may hold more than steps.
        self.took: list[float] = []
        self.spent: Callable[[], float] = time.perf_counter
        self.begun, self.one_s = 0.0, None  # type: float, float | None

    def interrupt(self) -> None:
        """Ends the row after the present step. Only sets a number: a signal handler may call it."""
        self.until = 0.0

    def begin(self, work: float, factor: float | None, mark: float) -> None:
        """A row of steps alike begins."""
        self.running, self.work, self.factor, self.mark, self.took = True, work, factor, mark, []
        self.begun, self.one_s = self.spent(), None

    def end(self) -> list[float]:
        """It is over; what its steps took."""
        self.running = self.due = False
        return self.took
