"""Giving back all room of a cluster when it goes down, for any engine."""

from __future__ import annotations

import time

from coadapt.executors.engines._base import Engine, EngineSilentError

_PAUSE_S = 0.2


def give_back_all(engine: Engine, *, within_s: float, what: str, remedy: str) -> int:
    """Releases every unit, and waits until the engine says that all have ended; returns how many there were.

    Args:
        engine: of this cluster.
        within_s: EngineSilentError if some are left then.
        what: how the engine calls its units.
        remedy: where to look if some are left.
    """
    until = time.monotonic() + within_s
    count = 0
    while True:
        left = sorted({unit.name for unit in engine.units() if unit.state != "ended"})
        if not left:
            return count
        if not count:
            count = len(left)
            engine.release(left)
        if time.monotonic() > until:
            raise EngineSilentError(f"{what} have not ended: {', '.join(left)}; {remedy}")
        time.sleep(_PAUSE_S)
