"""Real time for the loop: unix seconds that pass at the rate of the monotonic clock."""

from __future__ import annotations

import time


class SteadyClock:
    """Starts at the wall clock, or at ``not_before`` if that is later, and never jumps.

    ``not_before`` is the time of the log's last record. Merely clamping a wall clock that was set back
    would not do: the clock would stand still, and every timer wait, until it has caught up.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._offset_s = max(time.time(), not_before) - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._offset_s
