"""The batch size with the highest goodput, by ``configure.best_batch``, as the scheduler computes it for this job."""

from __future__ import annotations

import math

from msgspec.structs import replace

from coadapt.configure import SpeedModel
from coadapt.configure.best_batch import best_batch, first_batch, split_batch
from coadapt.errors import InputError
from coadapt.prediction.gradient_noise import efficiency_over
from coadapt.prediction.step_time import _base as step_time
from coadapt.prediction.step_time._base import FittedStepTime
from coadapt.torch.batches._base import Chosen, Situation
from coadapt.torch.training.step_plan import OFTEN

#: Most steps between two larger ones, and the factor by which that interval must change to be changed.
_SELDOM, _APART = 200, 1.5
#: Samples after which the budget holds. Until then every epoch has some: on a small dataset the budget allows none in several epochs.
_ENOUGH, _SOME = 30, 5


class Goodput:
    """Changes the batch size only if the predicted gain is at least ``hysteresis``: a change costs a little, and estimates are noisy.

    It grows by at most ``growth`` at a time, because predictions far beyond measured sizes are unreliable.
    """

    name = "adaptive"
    order = 10

    def __init__(self, hysteresis: float = 0.05, growth: float = 2.0) -> None:
        if not (hysteresis >= 0 and growth > 1):
            raise InputError(
                f"Goodput({hysteresis=}, {growth=}): hysteresis must be 0 or more, growth above 1"
            )
        self.hysteresis, self.growth = hysteresis, growth

    def choose(self, now: Situation) -> Chosen:
        """See ``BatchRule``."""
        atomic, accumulation = first_batch(now.replicas, now.limits)
        first = Chosen(_total(now.replicas, atomic, accumulation, now), atomic, why="nothing is measured yet")
        params = step_time.fit(now.table, gpu_type=now.gpu_type)
        if params is None or now.grad == (0.0, 0.0):
            return first
        measured_at = now.batch or now.limits.initial
        least = max(now.limits.initial, now.limits.per_gpu_min * now.replicas)
        most = min(now.limits.max, max(round(self.growth * measured_at), least))
        best = best_batch(
            params, now.grad, replace(now.limits, max=most), now.nodes, now.replicas, measured_at
        )
        if best.goodput <= 0:
            return first
        if (tried := self._untried(now, most, measured_at, best.goodput)) is not None:
            return self._with_larger_steps(tried, now, params)
        chosen = _total(now.replicas, best.atomic_batch, best.accumulation, now)
        present = self._present(now, params, measured_at)
        gain = best.goodput / present - 1 if present > 0 else float("inf")
        if gain < self.hysteresis:
            unchanged = Chosen(
                now.batch, now.atomic, why=f"{chosen} would bring {gain:.1%}, too little to change"
            )
            return self._with_larger_steps(unchanged, now, params)
        brings = f", {gain:+.1%} goodput" if present > 0 else ""
        why = f"best of all for {now.replicas} replica{'s' * (now.replicas != 1)}{brings}"
        return self._with_larger_steps(Chosen(chosen, best.atomic_batch, why=why), now, params)

    def _with_larger_steps(self, chosen: Chosen, now: Situation, params: FittedStepTime) -> Chosen:
        """``chosen`` with larger steps of two passes, where a single replica would not see the gradient noise otherwise.

        Their number follows from the budget of samples. They have twice the batch, not the same batch in halves: below the noise
        scale that wastes little, however long a pass takes, and it is four times as informative. At M0 the script's steps do not
        change: successive gradients must be enough.
        """
        limits, batch = now.limits, chosen.batch
        if now.replicas > 1 or batch <= limits.initial or chosen.atomic < batch:
            return chosen
        double = min(2 * batch, limits.max)
        if double < 2 * limits.per_gpu_min:
            return chosen
        useful = efficiency_over(*now.grad, limits.initial, now.batch or batch, [batch, double])
        usual_s, double_s = (
            float(params.step_time(1, 1, -(-size // passes), passes - 1))
            for size, passes in ((batch, 1), (double, 2))
        )
        # compared with usual steps that do the same work
        more_s = max(double_s - usual_s * double * useful[1] / (batch * useful[0]), 0.0) + now.sample_s
        budget_s = max(now.noise_budget * usual_s, more_s / _SELDOM)
        twice = max(math.ceil(more_s / budget_s), OFTEN) if budget_s > 0 else OFTEN
        if now.samples < _ENOUGH and now.length:
            # usual steps in an epoch of work
            steps = int(now.length / (batch * useful[0]))
            twice = max(min(twice, steps // _SOME), OFTEN)
        near = chosen.batch == now.batch and twice / _APART < now.twice < twice * _APART
        return chosen._replace(twice=now.twice if near else twice)

    def _untried(self, now: Situation, most: int, measured_at: int, known: float) -> Chosen | None:
        """A larger pass than the only size timed so far, if it would pay in case it takes no longer; tried once.

        Times of one size alone do not show whether larger passes take longer.
        """
        rows = [
            row
            for row in now.table.rows
            if (row.gpu_type, row.nodes, row.replicas) == (now.gpu_type, now.nodes, now.replicas)
        ]
        atomic, accumulation = split_batch(most, now.replicas, now.limits)
        if len(rows) != 1 or atomic <= rows[0].atomic_batch:
            return None
        batch = _total(now.replicas, atomic, accumulation, now)
        useful = efficiency_over(*now.grad, now.limits.initial, measured_at, [batch])[0]
        at_best = batch / (accumulation * rows[0].grad_s + rows[0].fit_step_s) * float(useful)
        if at_best < known * (1 + self.hysteresis):
            return None
        return Chosen(batch, atomic, why=f"passes of {atomic} were never timed here: tried once")

    def _present(self, now: Situation, params: FittedStepTime, measured_at: int) -> float:
        """Predicted goodput of the present batch size; 0 if it is no longer allowed."""
        limits = now.limits
        local = -(-now.batch // now.replicas)
        allowed = limits.initial <= now.batch <= limits.max and now.atomic <= limits.per_gpu_max
        if not allowed or local < limits.per_gpu_min:
            return 0.0
        accumulation = -(-local // now.atomic) - 1
        atomic = -(-local // (accumulation + 1))
        model = SpeedModel(
            step_time=params, grad=now.grad, initial_batch=limits.initial, grad_batch=measured_at
        )
        return float(model.goodput(now.nodes, now.replicas, atomic, accumulation))


def _total(replicas: int, atomic: int, accumulation: int, now: Situation) -> int:
    """Total batch size of a split; rounding up may have gone a little beyond the largest allowed."""
    total = replicas * atomic * (accumulation + 1)
    # shares may be uneven, so that M0 is M0 on any number of replicas
    if total - now.limits.initial < replicas * (accumulation + 1):
        total = now.limits.initial
    return min(total, max(now.limits.max, now.limits.initial))
