"""One job's training in virtual time: how far it is, how fast, and when something happens next.

``Training`` is what the simulated executor needs; ``TimedTraining`` is a job known only by its recorded
duration, ``ProfiledTraining`` (its own file) one whose behaviour is known.
"""

from __future__ import annotations

import math
from typing import Protocol

from coadapt.model import Measurement, Placement
from coadapt.simulate.interference import MEASURED_LINK, NONE, Slowdown


class Training(Protocol):
    """Advanced by the executor; all times are virtual."""

    finished: bool
    #: When something happens next if nothing is changed from outside; inf while paused.
    next_at: float
    #: Speed of the links that its synchronisation was measured over, bytes/s.
    measured_link: float

    def place(self, placement: Placement) -> None:
        """The agent learns its new placement and picks its batch size; training is still paused."""

    def resume(self, at: float) -> None:
        """Training goes on at ``at``."""

    def pause(self, at: float, *, lost: bool = False) -> None:
        """Training stops; with ``lost`` what was done since the last saved state is lost."""

    def advance(self, at: float) -> Measurement | None:
        """Brings the job to ``at``; returns a report where one is due."""

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """Interference has changed."""


class TimedTraining:
    """Work is the recorded duration at the requested size, in seconds; it reports nothing until it ends.

    Its state counts as saved when it is stopped in an orderly way, and is lost with its node.
    """

    measured_link = MEASURED_LINK

    def __init__(self, duration_s: float, *, done_s: float = 0.0) -> None:
        self.left_s = max(duration_s - done_s, 0.0)
        self.finished = False
        self.next_at = math.inf
        self._saved_s = self.left_s
        self._since: float | None = None
        self._slowdown = NONE

    def place(self, placement: Placement) -> None:
        """See ``Training``."""
        self._slowdown = NONE

    def resume(self, at: float) -> None:
        """See ``Training``."""
        self._since = at
        self.next_at = at + self.left_s / self._slowdown.rate

    def pause(self, at: float, *, lost: bool = False) -> None:
        """See ``Training``."""
        self._settle(at)
        self.left_s = self._saved_s if lost else self.left_s
        self._saved_s, self._since, self.next_at = self.left_s, None, math.inf

    def advance(self, at: float) -> Measurement | None:
        """See ``Training``."""
        if at >= self.next_at:
            self.left_s, self.finished, self.next_at = 0.0, True, math.inf
        else:
            self._settle(at)
        return None

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """See ``Training``. How much of a recorded step is synchronisation is not known: only the rate counts."""
        self._settle(at)
        self._slowdown = slowdown
        if self._since is not None:
            self.next_at = at + self.left_s / slowdown.rate

    def _settle(self, at: float) -> None:
        if self._since is not None:
            self.left_s = max(self.left_s - (at - self._since) * self._slowdown.rate, 0.0)
            self._since = at
