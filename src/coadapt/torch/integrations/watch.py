"""What can be seen of a foreign training loop from its hooks: times, gradients, metrics; and when it is to stop.

One replica's optimizer steps are timed from hook to hook, as ``stopwatch`` does it in a loop of ours. The noise scale comes from
successive gradients, the only ones that hooks see (its bias: ``coadapt.torch.noise``). SIGTERM sets a flag; the flags are summed
over replicas after every step, so that all stop after the same one.
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
from coadapt.torch.elastic import SAVED_AND_LEFT
from coadapt.torch.group import gpu_type, pick_device
from coadapt.torch.noise import Sample, estimate
from coadapt.torch.noise_filter import NoiseFilter
from coadapt.torch.norms import Norms
from coadapt.torch.place import here
from coadapt.torch.reporting import Reporter
from coadapt.torch.sampling import Sampling
from coadapt.torch.steps import even_split, plan
from coadapt.torch.timing import Times

_EVERY_S = 10.0
#: Steps after a start whose time says nothing yet.
_WARM_UP = 2


class Watch:
    """Of one run of a trainer in one replica. ``batch`` is what a replica computes in one backward pass.

    ``examples``: those of a pass; None for a stream that does not say.
    """

    def __init__(
        self, *, batch: int, accumulation: int = 0, examples: int | None = None, noise_budget: float = 0.02
    ) -> None:
        self.place, device = here(), pick_device(here())
        #: By which clock samples are held against steps: see ``Loop.take``.
        self._spent = time.process_time if device.type == "cpu" else time.perf_counter
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
        #: Seconds of what is not training, by kind, since the last report.
        self.overheads_s: dict[str, float] = {}
        self.reporter = Reporter(self.place)
        self._times, self._fresh = Times(), _WARM_UP
        self._mark, self._spent_mark = time.perf_counter(), self._spent()
        self._due = time.monotonic() + _EVERY_S
        self._norms, self._noise, self._sampling = Norms(), NoiseFilter(), Sampling(noise_budget)
        total, self._examples = self.configuration.batch, examples
        if examples:
            self._noise.steps_per_epoch = -(-examples // total)
        self._step, self._cost_s = plan(even_split(total, 1, total), 0, total), 0.0
        self._sampled = False
        self._told, self._before = False, None  # type: bool, Any

    # -- signals -----------------------------------------------------------------------------------------

    def listen(self) -> None:
        """From now on SIGTERM means: after this step, save and leave."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._tell)

    def deafen(self) -> None:
        """SIGTERM means what it meant before."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _tell(self, number: int, frame: object) -> None:
        self._told = True

    def stopping(self) -> bool:
        """Whether any replica was told to stop; all ask after the same step, and get the same answer."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return self._told
        flag = torch.tensor([float(self._told)], device=self._device)
        dist.all_reduce(flag)
        return bool(flag.item() > 0)

    def leave(self, *, epoch: float | None, work: float | None) -> None:
        """Ends this process as one whose state is saved."""
        self.flush(epoch=epoch, work=work, last=True)
        sys.stdout.flush()
        sys.exit(SAVED_AND_LEFT)

    # -- steps -------------------------------------------------------------------------------------------

    def interrupted(self) -> None:
        """What follows was not training (validation, a checkpoint): the next step's time is not counted."""
        self._fresh = max(self._fresh, 1)

    def passed(self) -> None:
        """An accumulation pass is over."""
        now = time.perf_counter()
        if not self._fresh:
            self._times.compute.add(now - self._mark)
        self._mark = now

    def gradient(self, parameters: Callable[[], Iterable[Tensor]]) -> None:
        """The gradient of the step is whole, and the optimizer has not used it yet."""
        self._sampled = self.reporter.listening and self.place.first and self._sampling.now()
        if not self._sampled:
            return
        began = self._spent()
        gradients = [p.grad for p in parameters() if p.grad is not None]
        if not gradients or any(type(each) is not Tensor or each.is_sparse for each in gradients):
            # sharded or sparse: not the gradient that the formulas are about
            self._sampling.off = True
            return
        self._norms.finish(self._step, gradients, None, 1.0)
        self._cost_s = self._spent() - began

    def stepped(self, *, epoch: float | None, work: float | None) -> None:
        """The optimizer has made a step; reports if it is time."""
        now = time.perf_counter()
        took, self._mark = now - self._mark, now
        if self._sampled:
            self._observe(took)
        elif not self._fresh:
            self._times.step.add(took)
            self._sampling.plain.append(self._spent() - self._spent_mark)
        self._fresh = max(self._fresh - 1, 0)
        if time.monotonic() >= self._due:
            self.flush(epoch=epoch, work=work)
        self._spent_mark = self._spent()

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

    def saw(self, metrics: Mapping[str, Any]) -> None:
        """Keeps what is a number among the framework's metrics."""
        for name, value in metrics.items():
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self.metrics[name] = float(value)

    def flush(self, *, epoch: float | None, work: float | None, last: bool = False) -> None:
        """Reports what was measured since the last time, and where training stands."""
        self._due = time.monotonic() + _EVERY_S
        if not (self.place.first and self.reporter.listening):
            return
        found = self._times.measurement(self.configuration) or Measurement(config=self.configuration, count=0)
        self._times = Times()
        sqr, var = self._noise.grad
        known = self._noise.known
        overheads, self.overheads_s = self.overheads_s, {}
        told = replace(
            found,
            grad_sqr=sqr if known else None,
            grad_var=var if known else None,
            work=work,
            epoch=epoch,
            metrics=dict(self.metrics),
            overheads_s=overheads,
        )
        self.reporter.put((told,))
        if last:
            self.reporter.flush()
