"""One replica's training, step by step: what the loader, the optimizer and the schedule are told, and what is kept of it.

    loader: begin(step), open(piece) ...          script: backward, optimizer.step() -> update()        loader: complete(step)

Every number that steers training (work, gradient statistics, which steps are sampled) is the same on all replicas: it comes
from sums over them, or from the ledger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from coadapt.errors import InputError
from coadapt.model import Batch, Configuration
from coadapt.torch.gradients import Gradients
from coadapt.torch.group import Group
from coadapt.torch.history import STATISTICS, History
from coadapt.torch.ledger import Ledger, work_of
from coadapt.torch.noise import Sample, estimate
from coadapt.torch.noise_filter import NoiseFilter
from coadapt.torch.norms import Observed
from coadapt.torch.pace import Pace
from coadapt.torch.plain import Plain
from coadapt.torch.rates import Progress, RateRule
from coadapt.torch.sampling import Sampling
from coadapt.torch.steps import Piece, Split, Step, plan
from coadapt.torch.timing import Times

#: Steps after a start or a change whose time says nothing yet.
_WARM_UP = 2

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
        self.plain = Plain()
        self.ledger, self.noise, self.history = Ledger(), NoiseFilter(), History()
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
        #: Times since the last report, by configuration; seconds per example of every replica.
        self.times: dict[Configuration, Times] = {}
        self.example_s: tuple[float, ...] = ()
        self.inside = self.updating = self.started = self.whole_passes = False
        self._sampled = self._updated = self._begun = False
        self._mark = self._spent = self._update_s = self._shared_s = 0.0
        self._fresh = 0
        self._current = Times()

    # -- what the loader tells ---------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This replica."""
        return self.group.place.rank

    @property
    def epoch_work(self) -> float:
        """Work at which the present epoch is over."""
        return float((self.ledger.epoch + 1) * self.length)

    def enter(self) -> None:
        """See ``loader.Trainer``."""
        if not self.started:
            raise InputError("loop over the loader inside `for epoch in job.epochs(n):`")
        self.inside, self._fresh = True, 1
        self._watch()

    def leave(self) -> None:
        """See ``loader.Trainer``. Where the script has left its loop in the middle of it, the last step counts too."""
        self.inside = False
        if self.plain.running:
            self._updated = not self.plain.due
            self._settle_plain()
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
        self._sampled, self._updated, self.updating = self.sampling.now(), False, False
        self._begun = True

    def open(self, step: Step, piece: Piece) -> None:
        """See ``loader.Trainer``."""
        if piece is not step.pieces[0]:
            self._passed(step)
        self._step, self.updating = step, piece.last
        if self.gradients is not None:
            self.gradients.open(step, piece, self._sampled)

    def complete(self, step: Step) -> bool:
        """See ``loader.Trainer``."""
        if not self._updated:
            self._not_updated()
        self._begun = False
        now = time.perf_counter()
        took, whole = now - self._mark, step.batch == self.split.batch
        if self.pace is not None:
            took = self.pace.sleep(took, step, last=True)
        if self._sampled:
            self._observe(step, took, whole and not self._fresh)
        elif whole and not self._fresh:
            self._current.step.add(took)
            self.sampling.plain.append(took if self.pace is not None else self.plain.spent() - self._spent)
        self._fresh = max(self._fresh - 1, 0)
        self.updating = False
        ended = self.ledger.commit(step.batch, self.length_of(self.ledger.passes))
        changed = self.between()
        self._watch()
        return changed or ended or self.over()

    # -- plain steps: see ``plain`` ------------------------------------------------------------------------

    def plain_ahead(self, length: int) -> int:
        """See ``loader.Trainer``. The last step of a pass or an epoch is never among them."""
        sync = self.gradients.sync if self.gradients is not None else None
        if self._fresh or self.pace is not None or sync is None or not sync.overlaps:
            return 0
        size = self.split.batch
        step = plan(self.split, self.rank, size)
        ahead = min(self.sampling.ahead, (length - self.ledger.position - 1) // size)
        if ahead <= 0 or len(step.pieces) > 1 or not step.even:
            return 0
        assert self.limits is not None
        now = self.history.now
        work = work_of(size, self.limits.initial, now.grad if now else (0.0, 0.0))
        if not self.whole_passes:
            ahead = min(ahead, int((self.epoch_work - self.ledger.work) / work) - 1)
        calm_s = self.calm_s()
        if ahead <= 0 or calm_s <= 0:
            return 0
        self.plain.until = time.perf_counter() + calm_s
        # once more: whoever interrupts first says what there is to do, and then sets ``until`` back
        if self.calm_s() <= 0:
            return 0
        self._begin_plain(step, work)
        return ahead

    def _begin_plain(self, step: Step, work: float) -> None:
        assert self.gradients is not None
        self._sampled, self._updated, self._begun = False, False, True
        self._step, self.updating = step, True
        self.gradients.open(step, step.pieces[0], False)
        self.plain.begin(
            work, self.rate_factor() if getattr(self.rule, "steady", False) else None, self._mark
        )

    def plain_missed(self) -> None:
        """See ``loader.Trainer``."""
        self._not_updated()

    def plain_over(self) -> bool:
        """See ``loader.Trainer``."""
        self._settle_plain()
        self._begun = self.updating = False
        changed = self.between()
        self._watch()
        return changed

    def _settle_plain(self) -> None:
        took = self.plain.end()
        self._mark, self._spent = self.plain.mark, self.plain.spent()
        self.sampling.passed(len(took), self.plain.one_s)
        self._current.step.add_all(took)

    def _watch(self) -> None:
        """What comes next is timed from here."""
        self._mark, self._spent = time.perf_counter(), self.plain.spent()

    def length_of(self, number: int) -> int:
        """Examples in a pass; replaced by the loader's own."""
        return self.length

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

    def _not_updated(self) -> None:
        if not self.scaled_loss:
            raise InputError("no optimizer.step() since the last batch of the loader")
        # the GradScaler found an infinity and skipped the step; the examples are used up all the same
        self._account()

    # -- what is measured ---------------------------------------------------------------------------------

    def restart_measuring(self) -> None:
        """The batch size or the replicas have changed."""
        self.sampling.restart()
        if self.gradients is not None:
            self.gradients.norms.forget()
        self._fresh = _WARM_UP
        self._current = self.times.setdefault(self.configuration(), Times())

    def take_times(self) -> dict[Configuration, Times]:
        """Times since they were last taken."""
        taken, self.times = self.times, {}
        if self.started:
            self._current = self.times[self.configuration()] = Times()
        return taken

    @property
    def divided(self) -> bool:
        """Whether it is known how a step is shared out; not before the loader's first one."""
        return self.split is not _UNDIVIDED

    def configuration(self) -> Configuration:
        """How steps run at present."""
        place, split = self.group.place, self.split
        accumulation = split.accumulation
        local = -(-split.batch // place.replicas)
        return Configuration(
            nodes=place.nodes,
            replicas=place.replicas,
            atomic_batch=-(-local // (accumulation + 1)),
            accumulation=accumulation,
            gpu_type=self.gpu_type,
        )

    def _passed(self, step: Step) -> None:
        """An accumulation pass is over: pure computing."""
        now = time.perf_counter()
        took = now - self._mark
        if self.pace is not None:
            took = self.pace.sleep(took, step, last=False)
        if not self._fresh and step.batch == self.split.batch:
            self._current.compute.add(took)
        self._mark = time.perf_counter()

    def _observe(self, step: Step, took: float, timed: bool) -> None:
        """A sampled step is over: its statistics become everybody's."""
        assert self.gradients is not None
        assert self.limits is not None
        gradients = self.gradients
        compute_s = max(gradients.computed_at - self._mark, 0.0) + self._update_s
        if self.pace is not None:
            compute_s = self.pace.computing(compute_s, step)
        if timed:
            self.sampling.cost.append(gradients.cost_s + self._shared_s)
            self._current.sampled.add(took)
            if not self._current.compute.count or len(step.pieces) == 1:
                self._current.compute.add(compute_s)
        norms = gradients.norms
        observed = norms.take()
        if observed is None:
            if norms.wants_another:
                self.sampling.again()
            else:
                self.sampling.settle(*self.sampling.times(), pair=False)
            return
        began = self.plain.spent()
        self._share(observed, compute_s, sum(piece.end - piece.begin for piece in step.pieces[-1:]))
        self._shared_s = self.plain.spent() - began

    def refresh(self, scale: float) -> None:
        """New statistics come into effect once they differ enough: from the next step on, and on record."""
        now, grad = self.history.now, self.noise.grad
        if now is not None and not self.history.replays and self.history.stale(grad, scale):
            self.history.add(replace(now, step=self.ledger.step + 1, grad=grad, why=STATISTICS))

    def _share(self, observed: Observed, compute_s: float, examples: int) -> None:
        assert self.limits is not None
        replicas = self.group.place.replicas
        per_example = [0.0] * replicas
        per_example[self.rank] = compute_s / max(examples, 1)
        sums = self.group.sum([observed.sum_sqr, *self.sampling.times(), *per_example])
        if len(self.example_s) == replicas:
            self.example_s = tuple(0.7 * a + 0.3 * b for a, b in zip(self.example_s, sums[3:], strict=True))
        else:
            self.example_s = tuple(sums[3:])
        pair = estimate(
            sums[0] / observed.parts,
            observed.total_sqr,
            batch=observed.batch,
            mean_inverse=observed.mean_inverse,
            initial_batch=self.limits.initial,
            population=self.length or math.inf,
        )
        interval = self.sampling.interval
        # the few examples left at the end of a pass say little, and loudly
        if pair is not None and 2 * observed.batch >= self.split.batch:
            scale = self.split.batch / self.limits.initial
            self.noise.add(Sample(*pair, observed.successive), scale, interval)
            self.refresh(scale)
        self.sampling.settle(sums[1] / replicas, sums[2] / replicas, pair=observed.successive)
        assert self.gradients is not None
        self.gradients.norms.chained = self.sampling.always
