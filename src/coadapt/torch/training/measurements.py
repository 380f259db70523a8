"""Reports and TensorBoard scalars from measurements: every few seconds, at every epoch and at the end, never inside a step."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.model import Measurement
from coadapt.torch.elastic.coordinator import Coordinator
from coadapt.torch.elastic.training_state import TrainingState
from coadapt.torch.rates._base import Progress
from coadapt.torch.training.batch_decisions import BatchDecisions
from coadapt.torch.training.decision_history import STATISTICS
from coadapt.torch.training.replica_training import ReplicaTraining
from coadapt.torch.training.report_client import Reporter


class TensorBoard:
    """Scalars by optimizer steps. ``where`` is a directory, or a writer of the script: anything with ``add_scalar(name, value, step)``."""

    def __init__(self, where: Any) -> None:
        self._own = isinstance(where, (str, os.PathLike))
        if not self._own and not callable(getattr(where, "add_scalar", None)):
            raise InputError(
                f"tensorboard={where!r:.60}: it must be a directory, or a writer with add_scalar (torch.utils.tensorboard.SummaryWriter)"
            )
        if self._own:
            summary_writer()  # a missing package is an error at the start
        self._where, self._writer = where, None if self._own else where

    def write(
        self,
        step: int,
        *,
        values: dict[str, float | None],
        metrics: dict[str, float],
        found: Sequence[Measurement],
    ) -> None:
        """Write scalars for ``step``; called on the first replica only.

        ``values`` are our own (None: unknown), ``metrics`` the script's, ``found`` the measurements since the last call.
        """
        writer = self._open()
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(f"coadapt/{name}", value, step)
        steps = [(each.step_s, each.count, each.config) for each in found if each.count]
        if steps:
            took, _, config = steps[-1]
            writer.add_scalar("coadapt/step_s", took, step)
            if config.accumulation == 0:
                writer.add_scalar("coadapt/examples_per_s", config.batch / took, step)
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush; a writer of the script stays open."""
        if self._writer is not None:
            self._writer.flush()
            if self._own:
                self._writer.close()
                self._writer = None

    def _open(self) -> Any:
        # opened late, on the first replica only: a directory has one writer
        if self._writer is None:
            self._writer = summary_writer()(os.fspath(self._where))
        return self._writer


def summary_writer() -> Any:
    """PyTorch's SummaryWriter class; an error if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            f"tensorboard= needs the package tensorboard: pip install tensorboard ({error})"
        ) from error
    return SummaryWriter


_EVERY_S = 10.0


def process_age_s() -> float:
    """Seconds since this process started; 0 where the system does not show it."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf(
            "SC_CLK_TCK"
        )
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, AttributeError, IndexError):
        return 0.0


class Measurements:
    """Owns the reports of a job. All replicas take their times, the first one reports them. Called between steps and at epochs."""

    def __init__(
        self,
        training: ReplicaTraining,
        decisions: BatchDecisions,
        coordinator: Coordinator,
        state: TrainingState,
    ) -> None:
        """``training`` is measured, ``decisions`` learns from it; overheads are the ``coordinator``'s, metrics are in ``state``."""
        self._training, self._decisions = training, decisions
        self._coordinator, self._state = coordinator, state
        self._reporter = Reporter(training.group.place)
        self._due = time.monotonic() + _EVERY_S
        #: Decisions before this step were reported.
        self._reported_to = 0
        self.board: TensorBoard | None = None

    def report_if_due(self) -> None:
        """Report if the last report was long enough ago."""
        if time.monotonic() >= self._due:
            self.flush()

    @property
    def idle_s(self) -> float:
        """Seconds until the next report."""
        return self._due - time.monotonic()

    def flush(self, *, last: bool = False) -> None:
        """Report everything measured since the last call; ``last``: wait a moment for it to be sent."""
        training = self._training
        self._due = time.monotonic() + _EVERY_S
        found = [m for c, t in training.take_times().items() if (m := t.measurement(c)) is not None]
        self._decisions.observe(found)
        if training.group.place.first and self.board is not None:
            self._write_scalars(self.board, found)
            if last:
                self.board.close()
        if training.group.place.first and self._reporter.listening:
            if training.decided:  # else there is nothing to report yet
                self._reporter.put(self._complete(found), self._new_decisions())
            if last:
                self._reporter.flush()

    def _write_scalars(self, board: TensorBoard, found: list[Measurement]) -> None:
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
        """All replicas call it together before some leave: the next first replica continues the reports of the present one."""
        group = self._training.group
        own = self._reporter.number, self._reported_to
        self._reporter.number, self._reported_to = group.from_first(own)

    def _complete(self, found: list[Measurement]) -> tuple[Measurement, ...]:
        """The measurements; the last one also has the progress of training."""
        training = self._training
        if not found:
            found = [Measurement(config=training.configuration, count=0)]
        sqr, var = training.noise.grad
        known = training.noise.known
        overheads, self._coordinator.overheads_s = dict(self._coordinator.overheads_s), {}
        if "setup" in overheads:
            # everything the process did besides its steps: a restart costs imports and first calls, not only our init
            stepped_s = sum(each.count * each.step_s for each in found)
            overheads["setup"] = max(process_age_s() - stepped_s, overheads["setup"])
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

    def _new_decisions(self) -> tuple[str, ...]:
        entries = self._training.history.entries
        fresh = [e for e in entries if e.step >= self._reported_to and e.why != STATISTICS]
        self._reported_to = self._training.ledger.step + 1
        return tuple(f"step {e.step}: batch {e.batch} on {e.replicas}: {e.why}" for e in fresh)


def _share(training: ReplicaTraining) -> float | None:
    """The share of the script's epochs or passes that is done; None before its loop over them."""
    if not training.epochs_requested or not training.length:
        return None
    epochs = training.ledger.work / training.length
    return min((training.ledger.epoch if training.whole_passes else epochs) / training.epochs_requested, 1.0)
