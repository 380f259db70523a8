"""How much faster a job gets as its gradients get noisier: larger batches then cost less (McCandlish et al., 2018).

    phi(work) = phi now x (course of past jobs like it, else work^0.4) x (work / work now)^slope

The course is ``FittedCurve.phi_ahead``, which the policy's own forecasts follow; ``slope`` is how one draw departs from it. The
speed is that of the curve on the same GPUs with the later noise scale in place of the present one.
"""

from __future__ import annotations

import math

import msgspec

from coadapt.configure import FittedCurve
from coadapt.configure.best_batch import best_batch, best_goodput
from coadapt.model import Placement
from coadapt.predict.noise import carried


class Growth:
    """Of one job from where it stands: ``done`` work done, about ``left`` left."""

    def __init__(self, curve: FittedCurve, done: float, left: float, slope: float = 0.0) -> None:
        self._curve, self._done, self._left, self._slope = curve, done, left, slope

    def phi(self, work: float) -> float | None:
        """The noise scale when so much work is done; None: not known."""
        phi = self._curve.phi_ahead(work, self._left)
        if phi is None:
            return None
        # what was done in the first hundredth says nothing about a slope yet
        begun = max(self._done, 0.01 * (self._done + self._left))
        return phi * (max(work, begun) / begun) ** self._slope if begun > 0 else phi

    def gradients(self, work: float) -> tuple[float, float] | None:
        """(grad_sqr, grad_var) for M0, on the scale of grad_sqr = 1."""
        phi = self.phi(work)
        return None if phi is None else (1.0, phi / self._curve.limits().initial)

    def measured(self, work: float, batch: int, gpu_type: str) -> tuple[float, float] | None:
        """The same as an agent would measure them at a batch size: phi rises with it (``predict.noise``)."""
        phi, model = self.phi(work), self._curve.model(gpu_type)
        if phi is None or model is None:
            return None
        if model.grad_batch:
            phi = math.exp(float(carried(math.log(phi), model.grad_batch, batch)))
        return 1.0, phi / model.initial_batch

    def quicker(self, work: float, placement: Placement) -> float:
        """How many times as fast as its curve says the job is there once so much work is done."""
        gpu_type, place = placement.gpu_type, (len(placement.shape), sum(placement.shape))
        model, then = self._curve.model(gpu_type), self.gradients(work)
        if model is None or then is None or not place[1]:
            return 1.0
        now = float(self._curve.goodput(*place, gpu_type))
        later = msgspec.structs.replace(model, grad=then)
        goodput = best_goodput(
            later, self._curve.limits(gpu_type), (place[0],), (place[1],), fixed=self._curve.fixed
        )
        found = float(goodput[0]) / now if now > 0 else 1.0
        return found if 0 < found < math.inf else 1.0

    def split(self, work: float, placement: Placement) -> tuple[int, int]:
        """(examples per GPU and pass, extra passes) that the agent will choose there once so much work is done."""
        gpu_type, nodes, replicas = placement.gpu_type, len(placement.shape), sum(placement.shape)
        model, then = self._curve.model(gpu_type), self.gradients(work)
        if model is None or then is None or self._curve.fixed is not None:
            choice = self._curve.config(nodes, replicas, gpu_type)
        else:
            limits = self._curve.limits(gpu_type)
            choice = best_batch(model.step_time, then, limits, nodes, replicas, model.grad_batch)
        return choice.atomic_batch, choice.accumulation
