"""One replica's training, step by step: what the loader, the optimizer and the schedule are told, and what is kept of it.

    loader: begin(step), open(piece) ...          script: backward, optimizer.step() -> update()        loader: complete(step)

Every number that steers training (work, gradient statistics, which steps are sampled) is the same on all replicas: it comes
from sums over them, or from the ledger. What sampled steps tell is ``samples``, steps that need nothing of ours are ``rows``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from coadapt.errors import InputError
from coadapt.model import Batch
from coadapt.torch.gradients import Gradients
from coadapt.torch.group import Group
from coadapt.torch.history import History
from coadapt.torch.ledger import Ledger, work_of
from coadapt.torch.memory import MemoryLimit
from coadapt.torch.noise_filter import NoiseFilter
from coadapt.torch.pace import Pace
from coadapt.torch.plain import Plain
from coadapt.torch.rates import Progress, RateRule
from coadapt.torch.rows import Rows
from coadapt.torch.samples import Samples
from coadapt.torch.sampling import Sampling
from coadapt.torch.steps import Piece, Split, Step
from coadapt.torch.stopwatch import Stopwatch

#: Before anything was decided.
_UNDIVIDED = Split((1,), 1)


class Training:
    """State of the loop. ``between`` is called after every step and says whether to plan anew.

    Not after plain steps: ``calm_s`` tells how long nothing is to be done between steps, as far as is known; 0: something is.
    """

    def __init__(
        self,
        group: Group,
        *,
        sampling: Sampling,
        between: Callable[[], bool],
        calm_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.group, self.sampling, self.between, self.calm_s = group, sampling, between, calm_s
        self.plain, self.rows, self.samples, self.watch = Plain(), Rows(self), Samples(self), Stopwatch(self)
        self.ledger, self.history, self.memory = Ledger(), History(), MemoryLimit()
        self.limits: Batch | None = None
        self.length = self.steps_per_epoch = 0
        #: Epochs or passes that the script asked for; 0: it has not yet.
        self.bodies = 0
        self.rule: RateRule | None = None
        self.gradients: Gradients | None = None
        self.pace: Pace | None = None
        self.scaled_loss = False
        self.gpu_type = "gpu"
        self.split = _UNDIVIDED
        self.inside = self.updating = self.started = self.whole_passes = False
        self._sampled = self._updated = self._begun = False
        self._update_s = 0.0

    @property
    def rank(self) -> int:
        """This replica."""
        return self.group.place.rank

    @property
    def noise(self) -> NoiseFilter:
        """What is believed of the noise scale."""
        return self.samples.noise

    @property
    def divided(self) -> bool:
        """Whether it is known how a step is shared out; not before the loader's first one."""
        return self.split is not _UNDIVIDED

    @property
    def epoch_work(self) -> float:
        """Work at which the present epoch is over."""
        return float((self.ledger.epoch + 1) * self.length)

    # -- what the loader tells ---------------------------------------------------------------------------

    def enter(self) -> None:
        """See ``loader.Trainer``."""
        if not self.started:
            raise InputError("loop over the loader inside `for epoch in job.epochs(n):`")
        self.inside, self.watch.fresh = True, 1
        self.watch.start()

    def leave(self) -> None:
        """See ``loader.Trainer``. Where the script has left its loop in the middle of it, the last step counts too."""
        self.inside = False
        if self.plain.running:
            self._updated = not self.plain.due
            self.rows.settle()
        if self._begun and self._updated:
            self._begun = False
            self.ledger.commit(self._step.batch, self.length_of(self.ledger.passes))

    def over(self) -> bool:
        """See ``loader.Trainer``."""
        if self.whole_passes:
            return self.ledger.passes > self.ledger.epoch
        return self.ledger.work >= self.epoch_work - 1e-6

    @contextmanager
    def dry(self) -> Iterator[None]:
        """See ``loader.Trainer``: gradients, buffers and random generators are afterwards as they were."""
        assert self.gradients is not None
        self.updating = False
        with self.gradients.dry():
            yield

    def begin(self, step: Step) -> None:
        """See ``loader.Trainer``."""
        # where one of so many steps is larger, for its two passes' sake, those are the samples
        twice = self.split.twice > 0 and not self.sampling.off
        self._sampled = len(step.pieces) > 1 if twice else self.sampling.now()
        self._updated, self.updating, self._begun = False, False, True

    def open(self, step: Step, piece: Piece) -> None:
        """See ``loader.Trainer``."""
        if piece is not step.pieces[0]:
            self.watch.passed(step)
        self._step, self.updating = step, piece.last
        self.memory.beside = piece is not step.pieces[0]
        if self.gradients is not None:
            self.gradients.open(step, piece, self._sampled)

    def complete(self, step: Step) -> bool:
        """See ``loader.Trainer``."""
        if not self._updated:
            self.not_updated()
        self._begun = False
        watch = self.watch
        took, timed = time.perf_counter() - watch.mark, step.batch == self.split.batch and not watch.fresh
        if self.pace is not None:
            took = self.pace.sleep(took, step, last=True)
        if self._sampled:
            self.samples.observe(step, took, watch.computed_s(step, self._update_s), timed)
        elif timed:
            watch.current.step.add(took)
            self.sampling.plain.append(took if self.pace is not None else self.plain.spent() - watch.spent)
        watch.fresh = max(watch.fresh - 1, 0)
        self.updating = False
        ended = self.ledger.commit(step.batch, self.length_of(self.ledger.passes))
        changed = self.between()
        self.watch.start()
        return changed or ended or self.over()

    def not_updated(self) -> None:
        """The script did not step the optimizer."""
        if not self.scaled_loss:
            raise InputError("no optimizer.step() since the last batch of the loader")
        # the GradScaler found an infinity and skipped the step; the examples are used up all the same
        self._account()

    def length_of(self, number: int) -> int:
        """Examples in a pass; replaced by the loader's own."""
        return self.length

    # -- what ``rows`` tells -------------------------------------------------------------------------------

    def open_plain(self, step: Step) -> None:
        """Steps like this one follow, and nobody will say so."""
        self._sampled, self._updated, self._begun = False, False, True
        self._step, self.updating = step, True
        self.memory.beside = False

    def close_plain(self) -> bool:
        """They are over; True if what follows must be planned anew."""
        self._begun = self.updating = False
        changed = self.between()
        self.watch.start()
        return changed

    # -- what the optimizer and the schedule ask ----------------------------------------------------------

    def rate_factor(self) -> float:
        """See ``optimizer.Pacemaker``."""
        assert self.rule is not None
        assert self.limits is not None
        now = self.history.now
        epoch = self.ledger.work / self.length
        grad = now.grad if now is not None else (0.0, 0.0)
        return self.rule.factor(Progress(self._step.batch / self.limits.initial, grad, epoch))

    def update(self, step: Callable[[], Any]) -> Any:
        """See ``optimizer.Pacemaker``."""
        assert self.gradients is not None
        assert self.gradients.sync is not None
        began = time.perf_counter()
        self.gradients.close()
        result = self.gradients.sync.update(step)
        self._account()
        self._update_s = time.perf_counter() - began
        return result

    @property
    def due(self) -> int:
        """See ``optimizer.Pacemaker``: never more than the whole epoch's, for schedules that end exactly."""
        done = min(self.ledger.work, self.epoch_work)
        return math.floor(done / self.length * self.steps_per_epoch + 1e-9)

    def _account(self) -> None:
        assert self.limits is not None
        now = self.history.now
        self.ledger.work += work_of(self._step.batch, self.limits.initial, now.grad if now else (0.0, 0.0))
        self._updated = True
