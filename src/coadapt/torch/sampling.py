"""Which steps are sampled for gradient statistics: all at first, then as many as a budget of time allows.

A sampled step gives up overlap and takes norms; on a small network that costs a tenth of a step or more. What it costs is
measured where it arises (the difference between sampled and plain steps would drown in the noise of a busy machine), and the
interval between samples is chosen so that the cost stays below ``budget``, a share of step time. The little that a step costs
without a sample counts too. The choice rests on times averaged over replicas, so all make the same.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

#: Steps sampled at the start, then left alone to learn what a plain step takes.
_FIRST, _PLAIN = 10, 10
#: Longest interval, in steps: a noise scale that is never looked at is none.
_LONGEST = 200
_KEPT = 64
#: What hooks and the autograd engine's callbacks cost besides: it cannot be timed from inside.
_HOOKS_S = 2e-4
#: What a plain step costs over one without us, and the share of the budget that is left for samples in any case.
_STEP_S, _LEFT = 2.5e-5, 0.25


class Sampling:
    """Decides step by step. ``every`` fixes the interval instead."""

    def __init__(self, budget: float = 0.02, every: int | None = None) -> None:
        self.budget, self.every = budget, every
        self.off = False
        self.interval = every or 1
        #: What a sample has cost, and what a step without one takes, in seconds.
        self.cost: deque[float] = deque(maxlen=_KEPT)
        self.plain: deque[float] = deque(maxlen=_KEPT)
        self._step = 0
        self._next = 0

    def now(self) -> bool:
        """Whether this step is sampled; asked once per step."""
        self._step += 1
        return not self.off and self._step > self._next

    @property
    def ahead(self) -> int:
        """Steps until the next that is sampled."""
        return _LONGEST if self.off else self._next - self._step

    def passed(self, steps: int, one_s: float | None) -> None:
        """Steps were made without asking; one of them took so many seconds."""
        self._step += steps
        if one_s is not None:
            self.plain.append(one_s)

    @property
    def always(self) -> bool:
        """Whether every step is sampled."""
        return self.interval == 1

    def again(self) -> None:
        """The next step is sampled as well: the other half of a pair."""
        self._next = self._step

    def times(self) -> tuple[float, float]:
        """Seconds that a sample costs and that a plain step takes here; 0 where not known.

        The median of costs, the lower quartile of steps: on a busy machine steps are held up more often than the short stretches
        that a sample adds, which would look cheaper than it is.
        """
        cost = statistics.median(self.cost) if self.cost else 0.0
        plain = sorted(self.plain)[len(self.plain) // 4] if self.plain else 0.0
        return cost, plain

    def settle(self, cost_s: float, plain_s: float, *, pair: bool) -> None:
        """After a sample: when the next one is due, given what steps take on average over replicas."""
        if self.every is not None:
            self._next = self._step + self.every - 1
        elif self._step < _FIRST:
            self._next = self._step
        elif plain_s <= 0:
            self._next = self._step + _PLAIN
        else:
            cost_s += _HOOKS_S
            whole_s = self.budget * plain_s
            left_s = max(whole_s - _STEP_S, _LEFT * whole_s)
            # where every step can be sampled, each is a pair with the one before: two samples per pair only where not
            pair = pair and cost_s > left_s
            self.interval = min(max(math.ceil(cost_s * (1 + pair) / left_s), 1), _LONGEST)
            self._next = self._step + self.interval - (2 if pair else 1)
            self._next = max(self._next, self._step)

    def restart(self) -> None:
        """The batch size or the replicas have changed: what was measured no longer holds."""
        self.cost.clear()
        self.plain.clear()
        self._step = self._next = 0
