"""How long steps take, by configuration: what a ``Measurement`` says about time.

A step without accumulation is timed from the end of the step before, loading included; an accumulation pass likewise.
What synchronisation adds is what a step takes over one whose gradient stayed at home: accumulation passes and the computing
part of sampled steps are such.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from coadapt.model import Configuration, Measurement


@dataclass(slots=True)
class Spread:
    """Count, mean and variance of what was added."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """Welford's update."""
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self._squares += delta * (value - self.mean)

    def add_all(self, values: Sequence[float]) -> None:
        """Many at once."""
        if not values:
            return
        count = self.count + len(values)
        mean = math.fsum(values) / len(values)
        delta = mean - self.mean
        self._squares += math.fsum((v - mean) ** 2 for v in values)
        self._squares += delta * delta * self.count * len(values) / count
        self.count, self.mean = count, self.mean + delta * len(values) / count

    @property
    def variance(self) -> float:
        """0 for fewer than two values."""
        return self._squares / self.count if self.count > 1 else 0.0


@dataclass(slots=True)
class Times:
    """Of one configuration, since the last report."""

    step: Spread = field(default_factory=Spread)
    #: Steps that were sampled, norms taken off: used where there are no others.
    sampled: Spread = field(default_factory=Spread)
    #: One backward pass and its share of the update, without synchronisation.
    compute: Spread = field(default_factory=Spread)

    def measurement(self, config: Configuration) -> Measurement | None:
        """What is known; None before the first step."""
        step = self.step if self.step.count else self.sampled
        if not step.count or not math.isfinite(step.mean) or step.mean <= 0:
            return None
        alone = config.replicas == 1
        sync = 0.0 if alone or not self.compute.count else max(step.mean - self.compute.mean, 0.0)
        return Measurement(
            config=config,
            count=step.count,
            step_s=step.mean,
            step_var=step.variance,
            sync_s=sync,
            sync_var=0.0 if alone else step.variance + self.compute.variance,
        )
