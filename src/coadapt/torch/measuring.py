"""What was measured, made into reports: every few seconds, at every epoch, and at the end."""

from __future__ import annotations

import time

from msgspec.structs import replace

from coadapt.model import Measurement
from coadapt.torch.adaptation import Adaptation
from coadapt.torch.elastic import Elastic
from coadapt.torch.history import STATISTICS
from coadapt.torch.reporting import Reporter
from coadapt.torch.state import State
from coadapt.torch.training import Training

_EVERY_S = 10.0


class Measuring:
    """Of the first replica; the others keep times only to forget them."""

    def __init__(self, training: Training, adaptation: Adaptation, elastic: Elastic, state: State) -> None:
        self._training, self._adaptation, self._elastic, self._state = training, adaptation, elastic, state
        self._reporter = Reporter(training.group.place)
        self._due = time.monotonic() + _EVERY_S
        self._told = 0

    def step(self) -> None:
        """After every step: reports if it is time."""
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Takes everything into the table and reports it; what was told is told once."""
        training = self._training
        self._due = time.monotonic() + _EVERY_S
        found = [m for c, t in training.take_times().items() if (m := t.measurement(c)) is not None]
        self._adaptation.observe(found)
        if training.group.place.first and self._reporter.listening:
            self._reporter.put(self._complete(found), self._decisions())
            if last:
                self._reporter.flush()

    def _complete(self, found: list[Measurement]) -> tuple[Measurement, ...]:
        """The last one also says where training stands."""
        training = self._training
        if not found:
            found = [Measurement(config=training.configuration(), count=0)]
        sqr, var = training.noise.grad
        known = training.noise.known
        overheads, self._elastic.overheads_s = dict(self._elastic.overheads_s), {}
        found[-1] = replace(
            found[-1],
            grad_sqr=sqr if known else None,
            grad_var=var if known else None,
            work=training.ledger.work,
            epoch=training.ledger.work / training.length if training.length else None,
            metrics=dict(self._state.metrics),
            overheads_s=overheads,
        )
        return tuple(found)

    def _decisions(self) -> tuple[str, ...]:
        entries = self._training.history.entries
        fresh = [e for e in entries if e.step >= self._told and e.why != STATISTICS]
        self._told = self._training.ledger.step + 1
        return tuple(f"step {e.step}: batch {e.batch} on {e.replicas}: {e.why}" for e in fresh)
