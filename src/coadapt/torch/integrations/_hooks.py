"""Measures the training loop of another framework through its hooks: times, gradients, metrics; and stops it on SIGTERM.

Optimizer steps are timed from hook to hook. The noise scale comes from successive gradients, the only ones that hooks see (for
their bias see ``coadapt.torch.training.noise_scale``). SIGTERM sets a flag; the flags are summed over replicas after every
step, so that all stop after the same one.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor

from coadapt.model import Configuration, Measurement
from coadapt.torch.elastic.process_group import gpu_type, here, pick_device
from coadapt.torch.training.gradients import NormCollector
from coadapt.torch.training.noise_scale import NoiseFilter, Sample, SampleSchedule, estimate
from coadapt.torch.training.replica_training import StepTimes
from coadapt.torch.training.report_client import Reporter
from coadapt.torch.training.step_plan import even_split, plan
from coadapt.wire.agent import SAVED_AND_LEFT

_EVERY_S = 10.0
#: Steps after a start whose times are not recorded.
_WARM_UP = 2


class TrainerMonitor:
    """Owns the measurements of one run of a trainer in one replica. The framework's callback calls it from its hooks."""

    def __init__(
        self, *, batch: int, accumulation: int = 0, examples: int | None = None, noise_budget: float = 0.02
    ) -> None:
        """Begin to measure.

        Args:
            batch: Examples in one backward pass of one replica.
            accumulation: Backward passes of a step beyond the first.
            examples: Examples in a pass through the data; None for a stream of unknown length.
            noise_budget: Share of step time for gradient statistics.
        """
        self.place, device = here(), pick_device(here())
        #: The clock of costs: see ``TrainingLoop.attach``.
        self._cost_clock = time.process_time if device.type == "cpu" else time.perf_counter
        self._device = (
            device if dist.is_initialized() and dist.get_backend() == "nccl" else torch.device("cpu")
        )
        self.configuration = Configuration(
            nodes=self.place.nodes,
            replicas=self.place.replicas,
            atomic_batch=batch,
            accumulation=accumulation,
            gpu_type=gpu_type(device),
        )
        self.metrics: dict[str, float] = {}
        #: Seconds spent on other things than training, by kind, since the last report.
        self.overheads_s: dict[str, float] = {}
        self.reporter = Reporter(self.place)
        self._times, self._fresh = StepTimes(), _WARM_UP
        self._mark, self._cost_mark = time.perf_counter(), self._cost_clock()
        self._due = time.monotonic() + _EVERY_S
        self._norms, self._noise, self._sampling = (
            NormCollector(),
            NoiseFilter(),
            SampleSchedule(noise_budget),
        )
        total, self._examples = self.configuration.batch, examples
        if examples:
            self._noise.steps_per_epoch = -(-examples // total)
        self._step, self._cost_s = plan(even_split(total, 1, total), 0, total), 0.0
        self._sampled = False
        self._terminated, self._previous_handler = False, None  # type: bool, Any

    # -- signals -----------------------------------------------------------------------------------------

    def install_signal_handler(self) -> None:
        """On SIGTERM save and exit after the present step."""
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)

    def restore_signal_handler(self) -> None:
        """Restore the handler of SIGTERM."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None

    def _on_sigterm(self, number: int, frame: object) -> None:
        self._terminated = True

    def stopping(self) -> bool:
        """Whether any replica got SIGTERM; all replicas call it after the same step, with the same result."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return self._terminated
        flag = torch.tensor([float(self._terminated)], device=self._device)
        dist.all_reduce(flag)
        return bool(flag.item() > 0)

    def leave(self, *, epoch: float | None, work: float | None) -> None:
        """Exit with the code of a replica that has saved its state."""
        self.flush(epoch=epoch, work=work, last=True)
        sys.stdout.flush()
        sys.exit(SAVED_AND_LEFT)

    # -- steps -------------------------------------------------------------------------------------------

    def interrupted(self) -> None:
        """Something else than training ran (validation, a checkpoint): the next step's time is not recorded."""
        self._fresh = max(self._fresh, 1)

    def passed(self) -> None:
        """An accumulation pass has ended."""
        now = time.perf_counter()
        if not self._fresh:
            self._times.compute.add(now - self._mark)
        self._mark = now

    def gradient(self, parameters: Callable[[], Iterable[Tensor]]) -> None:
        """The gradient of the step is complete, and the optimizer has not used it yet."""
        self._sampled = self.reporter.listening and self.place.first and self._sampling.now()
        if not self._sampled:
            return
        began = self._cost_clock()
        gradients = [p.grad for p in parameters() if p.grad is not None]
        if not gradients or any(type(each) is not Tensor or each.is_sparse for each in gradients):
            # sharded or sparse: the formulas do not apply
            self._sampling.off = True
            return
        self._norms.finish(self._step, gradients, None, 1.0)
        self._cost_s = self._cost_clock() - began

    def stepped(self, *, epoch: float | None, work: float | None) -> None:
        """The optimizer has made a step; reports if the last report was long enough ago."""
        now = time.perf_counter()
        took, self._mark = now - self._mark, now
        if self._sampled:
            self._observe(took)
        elif not self._fresh:
            self._times.step.add(took)
            self._sampling.plain.append(self._cost_clock() - self._cost_mark)
        self._fresh = max(self._fresh - 1, 0)
        if time.monotonic() >= self._due:
            self.flush(epoch=epoch, work=work)
        self._cost_mark = self._cost_clock()

    def _observe(self, took: float) -> None:
        if not self._fresh:
            self._times.sampled.add(took - self._cost_s)
            self._sampling.cost.append(self._cost_s)
        observed = self._norms.take()
        if observed is None:
            self._sampling.again()
            return
        pair = estimate(
            observed.sum_sqr / observed.parts,
            observed.total_sqr,
            batch=observed.batch,
            mean_inverse=observed.mean_inverse,
            initial_batch=self.configuration.batch,
            population=self._examples or math.inf,
        )
        if pair is not None:
            self._noise.add(Sample(*pair, observed.successive), 1.0, self._sampling.interval)
        self._sampling.settle(*self._sampling.times(), pair=True)

    # -- reports -----------------------------------------------------------------------------------------

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Store the numbers among the framework's metrics for the next report."""
        for name, value in metrics.items():
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self.metrics[name] = float(value)

    def flush(self, *, epoch: float | None, work: float | None, last: bool = False) -> None:
        """Report the measurements since the last report, and the progress of training; ``last``: wait a moment for it to be sent."""
        self._due = time.monotonic() + _EVERY_S
        if not (self.place.first and self.reporter.listening):
            return
        found = self._times.measurement(self.configuration) or Measurement(config=self.configuration, count=0)
        self._times = StepTimes()
        sqr, var = self._noise.grad
        known = self._noise.known
        overheads, self.overheads_s = self.overheads_s, {}
        measured = replace(
            found,
            grad_sqr=sqr if known else None,
            grad_var=var if known else None,
            work=work,
            epoch=epoch,
            metrics=dict(self.metrics),
            overheads_s=overheads,
        )
        self.reporter.put((measured,))
        if last:
            self.reporter.flush()
