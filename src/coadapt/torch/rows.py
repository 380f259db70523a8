"""When plain steps may come in a row, and what is put down after one: see ``plain``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coadapt.torch.ledger import work_of
from coadapt.torch.steps import Step, plan

if TYPE_CHECKING:
    from coadapt.torch.training import Training


class Rows:
    """Asked by the loader before steps that could be plain."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def ahead(self, length: int) -> int:
        """Plain steps that may follow in a row now, in a pass of ``length``; if any, they begin. The last step of a pass or an epoch is never among them."""
        training = self._training
        sync = training.gradients.sync if training.gradients is not None else None
        if training.watch.fresh or training.pace is not None or sync is None or not sync.overlaps:
            return 0
        size, ledger = training.split.batch, training.ledger
        step = plan(training.split, training.rank, size)
        ahead = min(self._before_sample(length), (length - ledger.position - 1) // size)
        if ahead <= 0 or len(step.pieces) > 1 or not step.even:
            return 0
        assert training.limits is not None
        now = training.history.now
        work = work_of(size, training.limits.initial, now.grad if now else (0.0, 0.0))
        if not training.whole_passes:
            ahead = min(ahead, int((training.epoch_work - ledger.work) / work) - 1)
        calm_s = training.calm_s()
        if ahead <= 0 or calm_s <= 0:
            return 0
        training.plain.until = time.perf_counter() + calm_s
        # once more: whoever interrupts first says what there is to do, and then sets ``until`` back
        if training.calm_s() <= 0:
            return 0
        self._begin(step, work)
        return ahead

    def _before_sample(self, length: int) -> int:
        """Steps until the next that is sampled."""
        split, ledger, sampling = self._training.split, self._training.ledger, self._training.sampling
        if not split.twice:
            return sampling.ahead
        return split.until_twice(ledger.passes * length + ledger.position)

    def _begin(self, step: Step, work: float) -> None:
        training = self._training
        assert training.gradients is not None
        training.open_plain(step)
        training.gradients.open(step, step.pieces[0], False)
        steady = getattr(training.rule, "steady", False)
        training.plain.begin(work, training.rate_factor() if steady else None, training.watch.mark)

    def over(self) -> bool:
        """The row has ended; True if what follows must be planned anew."""
        self.settle()
        return self._training.close_plain()

    def settle(self) -> None:
        """What the steps of a row took."""
        plain, watch = self._training.plain, self._training.watch
        took = plain.end()
        watch.mark, watch.spent = plain.mark, plain.spent()
        self._training.sampling.passed(len(took), plain.one_s)
        watch.current.step.add_all(took)
