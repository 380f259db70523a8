"""Training of a job whose step rates were measured, alone and beside others (``truth.rate_table``).

The job trains at the rate of its GPU type and number of GPUs, beside a partner at the rate of the pair. With ``round_s``
it trains as in the simulator published with Gavel: whole steps, as many as fit ``round_s`` seconds, and then it waits until
all jobs are through their round; the executor begins the next one for all of them at once.
"""

from __future__ import annotations

import math

from coadapt.errors import InputError
from coadapt.model import Configuration, JobSpec, Measurement, Placement
from coadapt.simulation.engine.interference import MEASURED_LINK, NONE, Slowdown
from coadapt.simulation.engine.training_model import TrainingOptions
from coadapt.simulation.truth.rate_table import RateTruth


def steps_in_round(rate: float, left: float, round_s: float) -> float:
    """Whole steps of a round, at least one; the last round of a job may end with a part of a step."""
    return min(float(max(math.floor(rate * round_s), 1)), left)


class SteppedTraining:
    """Implements ``Training`` from a ``RateTruth``.

    Args:
        spec: Specification of the job; its epochs are steps.
        truth: Rates of its model.
        options: Intervals between reports.
        done: Steps done at the beginning.
        round_s: Seconds of a round; None: it trains on without rounds.
    """

    measured_link = MEASURED_LINK

    def __init__(
        self,
        spec: JobSpec,
        truth: RateTruth,
        options: TrainingOptions,
        *,
        done: float = 0.0,
        round_s: float | None = None,
    ) -> None:
        if spec.epochs is None or spec.requested_batch is None:
            raise InputError(
                f"job {spec.name!r} with the rates of {truth.model!r} must say its number of steps"
            )
        self._spec, self._truth, self._options, self._round_s = spec, truth, options, round_s
        self._batch = spec.requested_batch
        self._total = spec.epochs
        #: Steps done; what is left is always total - done, which a policy computes from reports in the same way.
        self.done = self._saved = min(done, self._total)
        self.finished = False
        #: True from the end of a round until the next one begins.
        self.waits = False
        self.next_at = math.inf
        self._placement = Placement()
        self._rate = 0.0
        self._slowdown = NONE
        self._since: float | None = None
        self._steps = 0.0
        self._end_at = self._report_at = math.inf
        self._unreported = False

    @property
    def left(self) -> float:
        """Steps to the end."""
        return self._total - self.done

    def place(self, placement: Placement) -> None:
        """Sets the placement; nobody is on its GPUs until the executor says so."""
        self._placement, self._slowdown, self._unreported = placement, NONE, True
        self._rate = self._rate_beside("")
        if not self._rate:
            raise InputError(
                f"job {self._spec.name!r}: {self._truth.model!r} cannot run on {placement.replicas} GPUs "
                f"of type {placement.gpu_type!r}: its rate there is 0"
            )

    def resume(self, at: float) -> None:
        """Continues training at time ``at``; with rounds, a new one begins."""
        self._since, self.waits = at, False
        if self._unreported and self._round_s is None:
            self._report_at = self._options.next_report(at)
        self._plan(at)

    def pause(self, at: float, *, lost: bool = False) -> None:
        """Stops training at time ``at``; with ``lost`` it falls back to the last saved state."""
        self._settle(at)
        self.done = self._saved if lost else self.done
        self._saved = self.done
        self._since, self.waits = None, False
        self._end_at = self._report_at = self.next_at = math.inf

    def advance(self, at: float) -> Measurement | None:
        """Advances the job to time ``at``; it reports at the end of a round, without rounds once per placement."""
        if at >= self._end_at:
            self.finished = self._steps >= self.left
            self.done += self._steps
            self._since = None
            self._end_at = self._report_at = self.next_at = math.inf
            if self.finished:
                return None
            self.waits, self._saved = True, self.done
            return self._measurement()
        self._settle(at)
        report = None
        if self._report_at <= at:
            self._report_at, self._unreported = math.inf, False
            report = self._measurement()
        self._plan(at)
        return report

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """Sets who else is on its GPUs; a pair that was never measured goes at the rate of ``slowdown``."""
        if slowdown == self._slowdown:
            return
        self._settle(at)
        self._slowdown = slowdown
        rate = self._rate_beside(slowdown.partner)
        self._rate = rate if rate else self._rate_beside("") * slowdown.rate
        if self._since is not None:
            self._plan(at)

    def hold_until(self, at: float) -> None:
        """Its round ends together with that of its partner, if that is later."""
        if self._since is not None and self._round_s is not None:
            self._end_at = max(self._end_at, at)
            self.next_at = min(self._end_at, self._report_at)

    def _rate_beside(self, partner: str) -> float:
        return self._truth.rate(self._placement.gpu_type, self._placement.replicas, partner)

    def _plan(self, at: float) -> None:
        self._steps = self.left
        if self._round_s is not None:
            self._steps = steps_in_round(self._rate, self.left, self._round_s)
        self._end_at = at + self._steps / self._rate
        self.next_at = min(self._end_at, self._report_at)

    def _settle(self, at: float) -> None:
        if self._since is not None:
            self.done = min(self.done + (at - self._since) * self._rate, self._total)
            self._since = at

    def _measurement(self) -> Measurement:
        config = Configuration(
            nodes=self._placement.nodes,
            replicas=self._placement.replicas,
            atomic_batch=max(self._batch // self._placement.replicas, 1),
            gpu_type=self._placement.gpu_type,
        )
        done = self.done
        return Measurement(config=config, step_s=1.0 / self._rate, work=done * self._batch, epoch=done)
