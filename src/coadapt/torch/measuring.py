"""What was measured, made into reports: every few seconds, at every epoch, and at the end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec.structs import replace

from coadapt.model import Measurement
from coadapt.torch.adaptation import Adaptation
from coadapt.torch.board import Board
from coadapt.torch.elastic import Elastic
from coadapt.torch.history import STATISTICS
from coadapt.torch.rates import Progress
from coadapt.torch.reporting import Reporter
from coadapt.torch.state import State
from coadapt.torch.training import Training

_EVERY_S = 10.0


def age_s() -> float:
    """Seconds since this process started; 0 where the system does not tell."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf(
            "SC_CLK_TCK"
        )
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, AttributeError, IndexError):
        return 0.0


class Measuring:
    """Of the first replica; the others keep times only to forget them."""

    def __init__(self, training: Training, adaptation: Adaptation, elastic: Elastic, state: State) -> None:
        self._training, self._adaptation, self._elastic, self._state = training, adaptation, elastic, state
        self._reporter = Reporter(training.group.place)
        self._due = time.monotonic() + _EVERY_S
        self._told = 0
        self.board: Board | None = None

    def step(self) -> None:
        """After every step: reports if it is time."""
        if time.monotonic() >= self._due:
            self.flush()

    @property
    def calm_s(self) -> float:
        """Seconds until the next report."""
        return self._due - time.monotonic()

    def flush(self, *, last: bool = False) -> None:
        """Takes everything into the table and reports it; what was told is told once."""
        training = self._training
        self._due = time.monotonic() + _EVERY_S
        found = [m for c, t in training.watch.take().items() if (m := t.measurement(c)) is not None]
        self._adaptation.observe(found)
        if training.group.place.first and self.board is not None:
            self._show(self.board, found)
            if last:
                self.board.close()
        if training.group.place.first and self._reporter.listening:
            if training.divided:  # or there is nothing to tell yet
                self._reporter.put(self._complete(found), self._decisions())
            if last:
                self._reporter.flush()

    def _show(self, board: Board, found: list[Measurement]) -> None:
        training, now = self._training, self._training.history.now
        if now is None or training.limits is None or training.rule is None:
            return  # nothing was decided yet
        epoch, scale = training.ledger.work / training.length, now.batch / training.limits.initial
        sqr, var = training.noise.grad
        values = {
            "batch": float(now.batch),
            "replicas": float(now.replicas),
            "epoch": epoch,
            "rate_factor": training.rule.factor(Progress(scale, now.grad, epoch)),
            "noise_scale": training.limits.initial * var / sqr if sqr > 0 else None,
        }
        board.write(training.ledger.step, values=values, metrics=self._state.metrics, found=found)

    def hand_over(self) -> None:
        """All replicas call it together before some leave: whoever is first next goes on where the first one stopped."""
        group = self._training.group
        self._reporter.number, self._told = group.from_first((self._reporter.number, self._told))

    def _complete(self, found: list[Measurement]) -> tuple[Measurement, ...]:
        """The last one also says where training stands."""
        training = self._training
        if not found:
            found = [Measurement(config=training.watch.configuration(), count=0)]
        sqr, var = training.noise.grad
        known = training.noise.known
        overheads, self._elastic.overheads_s = dict(self._elastic.overheads_s), {}
        if "setup" in overheads:
            # all that the process did beside its steps so far: what a restart costs is imports and first calls, not our init alone
            stepped_s = sum(each.count * each.step_s for each in found)
            overheads["setup"] = max(age_s() - stepped_s, overheads["setup"])
        found[-1] = replace(
            found[-1],
            grad_sqr=sqr if known else None,
            grad_var=var if known else None,
            work=training.ledger.work,
            epoch=training.ledger.work / training.length if training.length else None,
            share=_share(training),
            metrics=dict(self._state.metrics),
            overheads_s=overheads,
        )
        return tuple(found)

    def _decisions(self) -> tuple[str, ...]:
        entries = self._training.history.entries
        fresh = [e for e in entries if e.step >= self._told and e.why != STATISTICS]
        self._told = self._training.ledger.step + 1
        return tuple(f"step {e.step}: batch {e.batch} on {e.replicas}: {e.why}" for e in fresh)


def _share(training: Training) -> float | None:
    """Of the epochs or passes that the script asked for; None before it did."""
    if not training.bodies or not training.length:
        return None
    epochs = training.ledger.work / training.length
    return min((training.ledger.epoch if training.whole_passes else epochs) / training.bodies, 1.0)
