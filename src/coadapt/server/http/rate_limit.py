"""Rate limit of requests: a token bucket per caller, refilled at a steady rate."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from coadapt.server.http.problems import Refused

#: Callers remembered; one that is forgotten begins with a full bucket.
_MOST = 20_000


class Limits:
    """The token buckets by caller."""

    def __init__(self, per_s: float, burst: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str, cost: float = 1.0) -> None:
        """Counts one request; raises Refused if the caller has made too many."""
        left = self._left(who)
        if left < cost:
            wait_s = (cost - left) / self._per_s
            raise Refused(429, f"too many requests; try again in {wait_s:.1f} s", retry_after_s=wait_s)
        self._buckets[who] = (left - cost, self._clock())
        self._buckets.move_to_end(who)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)

    def _left(self, who: str) -> float:
        left, moment = self._buckets.get(who, (self._burst, 0.0))
        return min(self._burst, left + (self._clock() - moment) * self._per_s)
