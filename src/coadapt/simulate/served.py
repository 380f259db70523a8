"""Training of a job with parameter servers: steps by the Optimus formula (``parameter_server.py``).

A step takes its time from the placement of workers and servers; the job is done when declared epochs x data
size examples have been seen. It reports once per placement, and its progress with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from coadapt.errors import InputError
from coadapt.model import SERVER, WORKER, Configuration, JobSpec, Measurement, Placement
from coadapt.simulate.interference import NONE, Slowdown
from coadapt.simulate.parameter_server import TEN_GIGABIT, ParameterServerTruth
from coadapt.simulate.profiled import TrainingOptions


class ServedTraining:
    """Implements ``Training`` from a ``ParameterServerTruth`` per GPU type."""

    #: What the shipped constants assume.
    measured_link = TEN_GIGABIT

    def __init__(
        self,
        spec: JobSpec,
        truth_on: Callable[[str], ParameterServerTruth],
        options: TrainingOptions,
        *,
        work: float = 0.0,
    ) -> None:
        if spec.epochs is None or spec.data_size is None or spec.requested_batch is None:
            raise InputError(
                f"job {spec.name!r} with parameter servers must declare epochs, data_size and batch"
            )
        self._truth_on, self._options = truth_on, options
        self._batch = spec.requested_batch
        self._total = spec.epochs * spec.data_size
        self.work = self._saved = work
        self.finished = False
        self.next_at = math.inf
        self._config = Configuration(nodes=1, replicas=1, atomic_batch=1)
        self._step_s = math.inf
        self._steps_per_s = 0.0
        self._slowdown = NONE
        self._since: float | None = None
        self._report_at = math.inf
        self._unreported = False

    def place(self, placement: Placement) -> None:
        """See ``Training``."""
        nodes = list(dict.fromkeys(slot.node for slot in placement.slots))
        workers, servers = [0] * len(nodes), [0] * len(nodes)
        for slot in placement.slots:
            shape = workers if slot.role == WORKER else servers
            shape[nodes.index(slot.node)] += slot.replicas
        count = placement.count(WORKER)
        self._config = Configuration(
            nodes=placement.nodes,
            replicas=count,
            atomic_batch=math.ceil(self._batch / count),
            gpu_type=placement.gpu_type,
            servers=placement.count(SERVER),
        )
        truth = self._truth_on(placement.gpu_type)
        self._step_s = truth.step(workers, servers, self._batch)
        self._steps_per_s = truth.steps_per_s(workers, servers, self._batch)
        self._slowdown = NONE
        self._unreported = True

    def resume(self, at: float) -> None:
        """See ``Training``."""
        self._since = at
        if self._unreported:
            self._report_at = self._options.next_report(at)
        self._plan(at)

    def pause(self, at: float, *, lost: bool = False) -> None:
        """See ``Training``."""
        self._settle(at)
        if lost:
            self.work = self._saved
        self._saved = self.work
        self._since = None
        self._report_at = self.next_at = math.inf

    def advance(self, at: float) -> Measurement | None:
        """See ``Training``."""
        self._settle(at)
        if self.work >= self._total * (1 - 1e-12):
            self.finished, self._since, self.next_at = True, None, math.inf
            return None
        report = None
        if self._report_at <= at:
            self._report_at, self._unreported = math.inf, False
            report = Measurement(config=self._config, step_s=self._step_s, work=self.work)
        self._plan(at)
        return report

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """See ``Training``. The whole step is slowed; links faster than assumed are not credited: compute gains nothing."""
        self._settle(at)
        self._slowdown = slowdown
        if self._since is not None:
            self._plan(at)

    @property
    def _rate(self) -> float:
        return self._steps_per_s * self._batch * self._slowdown.rate / max(self._slowdown.sync, 1.0)

    def _plan(self, at: float) -> None:
        self.next_at = min(at + (self._total - self.work) / self._rate, self._report_at)

    def _settle(self, at: float) -> None:
        if self._since is not None:
            self.work = min(self.work + self._rate * (at - self._since), self._total)
            self._since = at
