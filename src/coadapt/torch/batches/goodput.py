"""The batch size with the highest goodput, by ``configure.best_batch``: what the scheduler believes of this job too."""

from __future__ import annotations

import math

from msgspec.structs import replace

from coadapt.configure import SpeedModel
from coadapt.configure.best_batch import best_batch, first_batch, split_batch
from coadapt.errors import InputError
from coadapt.predict import step_time
from coadapt.predict.noise import efficiency_over
from coadapt.torch.batches._base import Chosen, Situation
from coadapt.torch.steps import OFTEN

#: Most steps between two that are larger: a noise scale that is never looked at is none. What their number must change by to be changed.
_SELDOM, _APART = 200, 1.5
#: Samples after which the budget holds; until then there are some in every epoch, for on a small set it allows none in several.
_ENOUGH, _SOME = 30, 5


class Goodput:
    """Changes only where the predicted gain is at least ``hysteresis``: every change costs a little, and noise is noise.

    Grows by ``growth`` at a time: what lies beyond is a guess until it was tried.
    """

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
            return self._seen(tried, now, params)
        chosen = _total(now.replicas, best.atomic_batch, best.accumulation, now)
        present = self._present(now, params, measured_at)
        gain = best.goodput / present - 1 if present > 0 else float("inf")
        if gain < self.hysteresis:
            kept = Chosen(now.batch, now.atomic, why=f"{chosen} would bring {gain:.1%}, too little to change")
            return self._seen(kept, now, params)
        brings = f", {gain:+.1%} goodput" if present > 0 else ""
        why = f"best of all for {now.replicas} replica{'s' * (now.replicas != 1)}{brings}"
        return self._seen(Chosen(chosen, best.atomic_batch, why=why), now, params)

    def _seen(self, chosen: Chosen, now: Situation, params: step_time.AnyParams) -> Chosen:
        """With as many larger steps, of two passes, as seeing the noise may cost, where a lone replica would not see it otherwise.

        Twice the batch at once, not the same batch in halves: where the batch is smaller than the noise that wastes little, however
        much a pass costs, and it tells four times as much. At M0 the script's steps stay as they were: successive gradients must do.
        """
        limits, batch = now.limits, chosen.batch
        if now.replicas > 1 or batch <= limits.initial or chosen.atomic < batch:
            return chosen
        double = min(2 * batch, limits.max)
        if double < 2 * limits.per_gpu_min:
            return chosen
        useful = efficiency_over(*now.grad, limits.initial, now.batch or batch, [batch, double])
        usual_s, double_s = (
            float(step_time.step_time(params, 1, 1, -(-size // passes), passes - 1))
            for size, passes in ((batch, 1), (double, 2))
        )
        # against usual steps that do the same work
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
        """A larger pass than the one size that was timed here, if it would pay should it take no longer: tried once.

        From one size alone nobody can tell a device that larger passes cost nothing from one where they cost in proportion.
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

    def _present(self, now: Situation, params: step_time.AnyParams, measured_at: int) -> float:
        """Predicted goodput if nothing is changed; 0 if that is not possible."""
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
