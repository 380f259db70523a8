"""One replica's training, step by step: when a step is plain or sampled, how long it takes, and what is committed.

``ReplicaTraining`` owns everything here. The loader, through ``TrainingLoop``, and the training script call it in this order:

    loader   begin_step(step), then begin_pass(step, piece) before each backward pass
    script   loss.backward(), and optimizer.step(), which calls update()
    loader   finish_step(step, length)

A *sampled* step takes gradient norms for the noise scale. A *plain* step is one backward pass with equal shares, averaged by
DistributedDataParallel itself, without norms and with nothing to decide. How many plain steps come next is known beforehand: up
to the next sample, the end of the pass or the end of the epoch. They are made in one run (``PlainRun``) with a single comparison
after each, because 40 calls of ours per step, cold in the processor's caches, were 5% of a step of a millisecond.

The parts (``StepTimer``, ``PlainRun``, ``GradientSamples``) hold no reference to their owner or to each other: they get arguments and
return values. Every number that steers training (work, gradient statistics, which steps are sampled) is the same on all
replicas, because it is a sum over replicas or comes from the ledger.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace
from torch import Tensor

from coadapt.errors import InputError
from coadapt.model import Batch, Configuration, Measurement
from coadapt.torch.elastic.process_group import Group
from coadapt.torch.rates._base import Progress, RateRule
from coadapt.torch.training.decision_history import STATISTICS, DecisionHistory
from coadapt.torch.training.gradients import Gradients, StepNorms
from coadapt.torch.training.noise_scale import NoiseFilter, Sample, SampleSchedule, estimate
from coadapt.torch.training.out_of_memory import MemoryLimit
from coadapt.torch.training.paced_device import Pace
from coadapt.torch.training.step_agreement import StepAgreement
from coadapt.torch.training.step_plan import Ledger, Piece, Split, Step, plan, work_of

log = logging.getLogger("coadapt.torch")

#: Steps after a start or a change of the split whose times are not recorded.
_WARM_UP = 2
#: Steps that may be skipped one after the other.
_MOST_SKIPPED = 50
#: The split before the first decision.
_UNDECIDED = Split((1,), 1)


@dataclass(slots=True)
class RunningMoments:
    """Count, mean and variance of the values added so far."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """Add one value (Welford's update)."""
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self._squares += delta * (value - self.mean)

    def add_all(self, values: Sequence[float]) -> None:
        """Add many values at once."""
        if not values:
            return
        count = self.count + len(values)
        mean = math.fsum(values) / len(values)
        delta = mean - self.mean
        self._squares += math.fsum((v - mean) ** 2 for v in values)
        self._squares += delta * delta * self.count * len(values) / count
        self.count, self.mean = count, self.mean + delta * len(values) / count

    @property
    def variance(self) -> float:
        """0 for fewer than two values."""
        return self._squares / self.count if self.count > 1 else 0.0


@dataclass(slots=True)
class StepTimes:
    """Times of steps in one configuration since the last report.

    A step is timed from the end of the step before, loading included; an accumulation pass likewise. The time of synchronisation is
    what a step takes beyond one whose gradient was not exchanged: accumulation passes and the computing part of sampled steps.
    """

    step: RunningMoments = field(default_factory=RunningMoments)
    #: Sampled steps; used where no other step was timed.
    sampled: RunningMoments = field(default_factory=RunningMoments)
    #: One backward pass and its share of the update, without synchronisation.
    compute: RunningMoments = field(default_factory=RunningMoments)

    def measurement(self, config: Configuration) -> Measurement | None:
        """The times as a measurement of ``config``; None if no step was timed."""
        step = self.step if self.step.count else self.sampled
        if not step.count or not math.isfinite(step.mean) or step.mean <= 0:
            return None
        alone = config.replicas == 1
        sync = 0.0 if alone or not self.compute.count else max(step.mean - self.compute.mean, 0.0)
        return Measurement(
            config=config,
            count=step.count,
            step_s=step.mean,
            step_var=step.variance,
            sync_s=sync,
            sync_var=0.0 if alone else step.variance + self.compute.variance,
        )


class StepTimer:
    """Owns the start of the running step or pass, and the step times by configuration since the last report.

    ``ReplicaTraining`` starts it at the beginning of every step that is timed alone and of every plain run.
    """

    def __init__(self) -> None:
        self.current = StepTimes()
        #: Steps to come whose times are not recorded.
        self.warm_up = 0
        #: The clock by which the cost of a sample is compared with the cost of a step: see ``TrainingLoop.attach``.
        self.cost_clock: Callable[[], float] = time.perf_counter
        #: When the running step or pass began, by ``time.perf_counter`` and by ``cost_clock``.
        self.started_at = self.cost_started_at = 0.0
        self._by_configuration: dict[Configuration, StepTimes] = {}

    def start(self) -> None:
        """The next step or pass begins now."""
        self.started_at, self.cost_started_at = time.perf_counter(), self.cost_clock()

    def change(self, configuration: Configuration) -> None:
        """The batch size or the replicas have changed to ``configuration``."""
        self.warm_up = _WARM_UP
        self.current = self._by_configuration.setdefault(configuration, StepTimes())

    def take(self, configuration: Configuration | None) -> dict[Configuration, StepTimes]:
        """Return and forget the times so far; those to come are of ``configuration`` (None: training is not running)."""
        taken, self._by_configuration = self._by_configuration, {}
        if configuration is not None:
            self.current = self._by_configuration[configuration] = StepTimes()
        return taken


class PlainRun:
    """Owns one run of plain steps: how long it may last, what each step is worth, how long each took.

    Begun and ended by ``ReplicaTraining``. The optimizer's hook reads ``step_pending``, ``work`` and ``rate_factor`` in every plain step;
    code that needs training to stop between two steps (a signal, a notice, a memory limit) calls ``interrupt`` from any thread.
    """

    __slots__ = (
        "cost_clock",
        "cost_started_at",
        "durations",
        "ends_at",
        "first_cost_s",
        "on_interrupt",
        "rate_factor",
        "running",
        "step_pending",
        "step_started_at",
        "work",
    )

    def __init__(self) -> None:
        #: The script has a batch of this run and has not called ``optimizer.step()``.
        self.step_pending = False
        self.running = False
        #: Called at every interrupt, by the thread that interrupts.
        self.on_interrupt: Callable[[], None] = lambda: None
        #: When the run ends at the latest, by ``time.perf_counter``.
        self.ends_at = 0.0
        #: When the last step ended.
        self.step_started_at = 0.0
        #: The work of each step, and the factor of its learning rates; None: the rate rule is called in every step.
        self.work = 0.0
        self.rate_factor: float | None = 1.0
        #: Seconds of each step so far.
        self.durations: list[float] = []
        #: The cost of the first step, by the clock that samples are compared with. One step of a run is enough, and the time of a
        #: whole run may contain more than steps.
        self.first_cost_s: float | None = None
        self.cost_clock: Callable[[], float] = time.perf_counter
        self.cost_started_at = 0.0

    def interrupt(self) -> None:
        """End the run after the present step. Only sets a number, so that a signal handler may call it."""
        self.ends_at = 0.0
        self.on_interrupt()

    def begin(
        self, *, work: float, rate_factor: float | None, started_at: float, cost_clock: Callable[[], float]
    ) -> None:
        """Begin a run.

        ``work`` and ``rate_factor`` are those of each step, ``started_at`` is when its first step began, ``cost_clock`` the clock of costs.
        """
        self.running, self.work, self.rate_factor = True, work, rate_factor
        self.step_started_at, self.durations = started_at, []
        self.cost_clock, self.cost_started_at, self.first_cost_s = cost_clock, cost_clock(), None

    def end(self) -> list[float]:
        """End the run and return the seconds of its steps."""
        self.running = self.step_pending = False
        return self.durations


class SampleOutcome(NamedTuple):
    """The result of one sample over all replicas."""

    #: Mean seconds that a sample costs, and that a step without one takes.
    cost_s: float
    plain_s: float
    #: Whether the noise filter got a new estimate.
    estimated: bool


class GradientSamples:
    """Owns what sampled steps have shown: the gradient noise scale and the speed of every replica.

    ``ReplicaTraining`` calls ``add`` at the end of a sampled step, on all replicas together: the result is made of sums over them.
    """

    def __init__(self) -> None:
        self.noise = NoiseFilter()
        #: Seconds per example of every replica.
        self.example_s: tuple[float, ...] = ()
        #: Cost of the last ``add``: part of the cost of a sample.
        self.exchange_s = 0.0

    def add(
        self,
        norms: StepNorms,
        *,
        group: Group,
        times_s: tuple[float, float],
        example_s: float,
        split: Split,
        interval: int,
        initial_batch: int,
        population: float,
    ) -> SampleOutcome:
        """Sum the norms and times of a sampled step over replicas, and update the noise filter.

        Args:
            norms: Squared gradient norms of this replica's part of the step.
            group: The replicas.
            times_s: Seconds that a sample costs and that a plain step takes on this replica.
            example_s: Seconds per example on this replica.
            split: How steps are divided at present.
            interval: Steps between two samples.
            initial_batch: M0.
            population: Examples in a pass: the batch is drawn from them without replacement.
        """
        replicas = group.place.replicas
        own = [0.0] * replicas
        own[group.place.rank] = example_s
        sums = group.sum([norms.sum_sqr, *times_s, *own])
        if len(self.example_s) == replicas:
            self.example_s = tuple(0.7 * a + 0.3 * b for a, b in zip(self.example_s, sums[3:], strict=True))
        else:
            self.example_s = tuple(sums[3:])
        pair = estimate(
            sums[0] / norms.parts,
            norms.total_sqr,
            batch=norms.batch,
            mean_inverse=norms.mean_inverse,
            initial_batch=initial_batch,
            population=population,
        )
        # the short step at the end of a pass gives an estimate of large variance: it is left out
        estimated = pair is not None and 2 * norms.batch >= split.batch
        if pair is not None and estimated:
            of_one = norms.batch // 2 if norms.successive else norms.batch
            steps = max(split.twice * split.batch // of_one, 1) if split.twice else interval
            self.noise.add(Sample(*pair, norms.successive), of_one / initial_batch, steps)
        return SampleOutcome(sums[1] / replicas, sums[2] / replicas, estimated)


class ReplicaTraining:
    """Owns the state of training in one replica: ledger, decisions, split, step times, gradient samples, memory limit.

    ``TrainingLoop`` creates it and acts between its steps; the loader and the hooks of the optimizer call it inside them.
    """

    def __init__(self, group: Group, *, sampling: SampleSchedule) -> None:
        self.group, self.sampling = group, sampling
        self.timer, self.plain, self.samples = StepTimer(), PlainRun(), GradientSamples()
        self.ledger, self.history = Ledger(), DecisionHistory()
        self.memory = MemoryLimit(interrupt=self.plain.interrupt)
        self.limits: Batch | None = None
        self.length = self.steps_per_epoch = 0
        #: Epochs or passes that the script loops over; 0 before it does.
        self.epochs_requested = 0
        self.rule: RateRule | None = None
        self.gradients: Gradients | None = None
        self.pace: Pace | None = None
        self.scaled_loss = False
        #: Committed steps when the script last called ``step`` of its GradScaler.
        self.scaler_stepped_at = -1
        #: How replicas skip a step together; set by ``TrainingLoop.attach``.
        self.agreement: StepAgreement
        #: Called before the optimizer makes a step that is not a plain one.
        self.on_update: Callable[[], None] = lambda: None
        #: Another replica has left the script's loop: so does this one.
        self.leaving = False
        #: The number of committed steps after which replicas meet next: see ``ReplicaGuard``.
        self.meets_at: float = math.inf
        #: Work at which the script's loop over steps is over.
        self.goal_work = math.inf
        #: The gradient of the last step, by which a new one is told from it: of the smallest parameter.
        self.marker: Tensor | None = None
        self.marked: tuple[Tensor | None, int] = (None, 0)
        self._skipped = self._void_seen = False
        self._skipped_at, self._skipped_in_a_row = -2, 0
        self.gpu_type = "gpu"
        self.split = _UNDECIDED
        #: Whether the script is in its loop over the loader; whether the gradient of the step is complete after the present pass;
        #: whether the loop over epochs is running; whether an epoch is a whole pass instead of an amount of work.
        self.inside = self.updating = self.started = self.whole_passes = False
        #: Of the present step: whether it is sampled, whether the optimizer has stepped, whether it is not yet committed.
        self._sampled = self._updated = self._uncommitted = False
        self._update_s = 0.0

    @property
    def rank(self) -> int:
        """The number of this replica."""
        return self.group.place.rank

    @property
    def noise(self) -> NoiseFilter:
        """The estimate of the gradient noise scale."""
        return self.samples.noise

    @property
    def steps_done(self) -> int:
        """Work done in steps at M0, that of a batch whose optimizer step was just made included."""
        if not self.length:
            return 0
        return math.floor(self.ledger.work / self.length * self.steps_per_epoch + 1e-9)

    @property
    def stepped(self) -> bool:
        """Whether the optimizer has made a step with the present batch."""
        return not self.plain.step_pending if self.plain.running else self.inside and self._updated

    @property
    def decided(self) -> bool:
        """Whether a batch size was decided."""
        return self.split is not _UNDECIDED

    @property
    def epoch_work(self) -> float:
        """Work at which the present epoch is over."""
        return min(self.epoch_end, self.goal_work)

    @property
    def epoch_end(self) -> float:
        """Work of all epochs up to the end of the present one."""
        return float((self.ledger.epoch + 1) * self.length)

    @property
    def configuration(self) -> Configuration:
        """How steps run at present."""
        place, accumulation = self.group.place, self.split.accumulation
        local = -(-self.split.batch // place.replicas)
        return Configuration(
            nodes=place.nodes,
            replicas=place.replicas,
            atomic_batch=-(-local // (accumulation + 1)),
            accumulation=accumulation,
            gpu_type=self.gpu_type,
        )

    @property
    def _statistics(self) -> tuple[float, float]:
        """(sqr, var) of the gradient that rates and work are computed with at present."""
        now = self.history.now
        return now.grad if now else (0.0, 0.0)

    # -- called by ``TrainingLoop`` and its parts between steps ---------------------------------------------------

    def use_cost_clock(self, clock: Callable[[], float]) -> None:
        """Measure the costs of samples and of steps by ``clock``."""
        assert self.gradients is not None
        self.timer.cost_clock = self.gradients.cost_clock = clock

    def change_split(self, split: Split) -> None:
        """Divide steps by ``split`` from the next one on. What was measured of the steps before no longer holds."""
        self.split = split
        self.sampling.restart()
        if self.gradients is not None:
            self.gradients.norms.forget()
        self.timer.change(self.configuration)

    def take_times(self) -> dict[Configuration, StepTimes]:
        """Return and forget the step times since the last call."""
        return self.timer.take(self.configuration if self.started else None)

    # -- called by the loader ---------------------------------------------------------------------------------

    def enter(self) -> None:
        """The script's loop over the loader begins."""
        if not self.started:
            raise InputError("the loop over the loader must be inside `for epoch in job.epochs(n):`")
        self.inside, self.timer.warm_up, self.leaving = True, 1, False
        self.timer.start()

    def leave(self, length: int) -> bool:
        """The loop has ended, or the script has left it; then the last step is committed, in a pass of ``length`` examples: True."""
        self.inside = False
        if self.plain.running:
            self._updated = not self.plain.step_pending
            self._record_plain_run()
        left_over = self._uncommitted and self._updated
        if left_over:
            self._uncommitted = False
            self.ledger.commit(self._step.batch, length)
        return left_over

    @property
    def pending_step(self) -> Step | None:
        """The step whose gradient the script has not used yet; None between steps."""
        if self.plain.running:
            return self._step if self.plain.step_pending else None
        return self._step if self._uncommitted and not self._updated else None

    @property
    def present_step(self) -> Step | None:
        """The step that is not committed yet."""
        return self._step if self._uncommitted else None

    def commit_plain_step(self, length: int) -> None:
        """The script leaves the loop in a run of plain steps, after a step."""
        self._record_plain_run()
        self._uncommitted = self.updating = False
        self.ledger.commit(self._step.batch, length)

    def epoch_over(self) -> bool:
        """Whether the present epoch is over."""
        if self.whole_passes:
            return self.ledger.passes > self.ledger.epoch
        return self.ledger.work >= self.epoch_work - 1e-6

    @contextmanager
    def dry_run(self) -> Iterator[None]:
        """Nothing that the script does inside counts: gradients, buffers and random generators are restored."""
        assert self.gradients is not None
        self.updating = False
        with self.gradients.dry_run():
            yield

    def begin_step(self, step: Step) -> None:
        """A step begins that is not part of a plain run."""
        # where some steps are larger and in two passes for the sake of the noise scale, those are the samples
        twice = self.split.twice > 0 and not self.sampling.off
        self._sampled = len(step.pieces) > 1 if twice else self.sampling.now()
        self._updated, self.updating, self._uncommitted, self._skipped = False, False, True, False

    def begin_pass(self, step: Step, piece: Piece) -> None:
        """The next backward pass of ``step`` is ``piece``."""
        first = piece is step.pieces[0]
        if not first:
            self._finish_accumulation_pass(step)
        self._step, self.updating = step, piece.last
        self.memory.begin_pass(examples=piece.end - piece.begin, gradient_held=not first)
        if self.gradients is not None:
            self.gradients.open(step, piece, self._sampled)

    def finish_step(self, step: Step, length: int) -> bool:
        """Time and commit ``step`` of a pass of ``length`` examples; True if it was the last of the pass."""
        self._uncommitted = False
        timer = self.timer
        took = time.perf_counter() - timer.started_at
        timed = step.batch == self.split.batch and not timer.warm_up
        if self.pace is not None:
            took = self.pace.sleep(took, step, last=True)
        if self._sampled and self._skipped:
            assert self.gradients is not None
            self.gradients.norms.forget()
            self.sampling.again()
        elif self._sampled:
            self._finish_sample(step, took, timed)
        elif timed:
            timer.current.step.add(took)
            cost_s = took if self.pace is not None else timer.cost_clock() - timer.cost_started_at
            self.sampling.plain.append(cost_s)
        timer.warm_up = max(timer.warm_up - 1, 0)
        self.updating = False
        return self.ledger.commit(step.batch, length)

    def complete_step(self) -> bool:
        """The script asks for the next batch; False if another replica has left the loop, so that this one leaves it too."""
        if not self._updated:
            self.skip_update()
        return not self.leaving

    def skip_update(self) -> None:
        """The script did not step the optimizer: all replicas skip the step. An error if it accumulates gradients by itself."""
        assert self.gradients is not None
        if self.scaler_stepped_at != self.ledger.step and self._accumulates():
            raise InputError(
                "no optimizer.step() since the last batch of the loader: if the script accumulates gradients over k batches, give "
                "job.loader() batch_size = k x the batch, per_gpu=(1, the batch), and step after every batch"
            )
        if self.gradients.shared:
            if not self._void_seen:
                self.agreement.void_step()
            if self.agreement.left(self.group, self.ledger.step):
                self.leaving = True
                self.forget_step()
                return
        self._void_seen = False
        self._note_skip()
        # the examples are used up all the same
        self._add_work()
        self._skipped = True

    def forget_step(self) -> None:
        """The present step is not made, on no replica. Which steps are sampled must be the same on all afterwards."""
        self._uncommitted = self.updating = self._void_seen = False
        self.sampling.restart()
        if self.gradients is not None:
            self.gradients.norms.forget()

    def gradient_void(self) -> bool:
        """Whether the gradient of this step is not a number, on all replicas: then none makes the step."""
        gradient = self.marker_gradient()
        self._void_seen = gradient is not None and math.isnan(gradient.reshape(-1)[0].item())
        return self._void_seen

    def marker_gradient(self) -> Tensor | None:
        """The gradient of a small parameter: of the same one on all replicas."""
        gradient = self.marker.grad if self.marker is not None else None
        if gradient is None and self.gradients is not None:
            used = [p for p in self.gradients.parameters if p.grad is not None]
            self.marker = min(used, key=lambda p: p.numel(), default=None)
            gradient = self.marker.grad if self.marker is not None else None
        return gradient

    def note_gradient(self) -> None:
        """The optimizer has used the gradient."""
        gradient = self.marker_gradient()
        self.marked = gradient, 0 if gradient is None else gradient._version

    def _accumulates(self) -> bool:
        """Whether there is a gradient that the optimizer has not used."""
        gradient = self.marker_gradient()
        if gradient is None:
            return False
        used, version = self.marked
        if id(gradient) == id(used) and gradient._version == version:
            return False
        total = float(gradient.abs().sum())
        return math.isfinite(total) and total > 0

    def _note_skip(self) -> None:
        again = self._skipped_at == self.ledger.step - 1
        self._skipped_at = self.ledger.step
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if again else 1
        if self._skipped_in_a_row == 1 and self.rank == 0 and not self.scaled_loss:
            log.warning("step %d was skipped on all replicas: the script did not step", self.ledger.step + 1)
        if self._skipped_in_a_row >= _MOST_SKIPPED and not self.scaled_loss:
            raise InputError(
                f"{_MOST_SKIPPED} steps in a row were skipped, the last one is step {self.ledger.step + 1}: the loss is not a number, "
                "or the script never calls optimizer.step()"
            )

    # -- plain steps ------------------------------------------------------------------------------------------

    def plain_steps_ahead(self, length: int) -> int:
        """The number of plain steps that may follow now in a pass of ``length`` examples.

        The last step of a pass or an epoch is never among them.
        """
        sync = self.gradients.sync if self.gradients is not None else None
        trial = self.gradients is not None and self.gradients.trial
        if self.timer.warm_up or self.pace is not None or sync is None or not sync.overlaps or trial:
            return 0
        size, ledger = self.split.batch, self.ledger
        step = plan(self.split, self.rank, size)
        count = min(self._steps_before_sample(length), (length - ledger.position - 1) // size)
        if self.meets_at < math.inf:
            count = min(count, int(self.meets_at) - ledger.step)
        if count <= 0 or len(step.pieces) > 1 or not step.even:
            return 0
        if not self.whole_passes:
            work = self._work_of(size)
            count = min(count, int((self.epoch_work - ledger.work) / work) - 1)
        return max(count, 0)

    def begin_plain_run(self) -> None:
        """Begin a run of plain steps; ``plain.ends_at`` is already set."""
        assert self.gradients is not None
        step = plan(self.split, self.rank, self.split.batch)
        self._sampled, self._updated, self._uncommitted = False, False, True
        self._step, self.updating = step, True
        self.memory.begin_pass(examples=step.pieces[0].end - step.pieces[0].begin, gradient_held=False)
        self.gradients.open(step, step.pieces[0], False)
        steady = getattr(self.rule, "steady", False)
        self.plain.begin(
            work=self._work_of(step.batch),
            rate_factor=self.rate_factor() if steady else None,
            started_at=self.timer.started_at,
            cost_clock=self.timer.cost_clock,
        )

    def plain_steps(self, count: int, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of at most ``count`` plain steps and commit each step. As little as possible runs between two of them."""
        run, ledger, clock, size = self.plain, self.ledger, time.perf_counter, self.split.batch
        record, started_at = run.durations.append, run.step_started_at
        while count:
            count -= 1
            run.step_pending = True
            yield next(batches)
            if run.step_pending:
                self.skip_update()
                if self.leaving:
                    return
            ledger.step += 1
            ledger.position += size
            now = clock()
            record(now - started_at)
            run.step_started_at = started_at = now
            if run.first_cost_s is None:
                run.first_cost_s = run.cost_clock() - run.cost_started_at
            if now >= run.ends_at:
                break

    def end_plain_run(self) -> None:
        """End the run and record its times."""
        self._record_plain_run()
        self._uncommitted = self.updating = False

    def _record_plain_run(self) -> None:
        durations = self.plain.end()
        self.timer.started_at, self.timer.cost_started_at = (
            self.plain.step_started_at,
            self.timer.cost_clock(),
        )
        self.sampling.passed(len(durations), self.plain.first_cost_s)
        self.timer.current.step.add_all(durations)

    def _steps_before_sample(self, length: int) -> int:
        if not self.split.twice:
            return self.sampling.ahead
        return self.split.until_twice(self.ledger.passes * length + self.ledger.position)

    # -- called by the hooks of the optimizer and the schedule --------------------------------------------------

    def rate_factor(self) -> float:
        """The factor of the learning rates in the present step."""
        assert self.rule is not None
        assert self.limits is not None
        scale = self._step.batch / self.limits.initial
        return self.rule.factor(Progress(scale, self._statistics, self.ledger.work / self.length))

    def update(self, step: Callable[[], Any]) -> Any:
        """Make the optimizer's ``step`` with the complete gradient, and count its work."""
        assert self.gradients is not None
        assert self.gradients.sync is not None
        began = time.perf_counter()
        self.gradients.close()
        self.on_update()
        result = self.gradients.sync.update(step)
        self.note_gradient()
        self._add_work()
        self._update_s = time.perf_counter() - began
        return result

    @property
    def schedule_steps_due(self) -> int:
        """Work done in steps at M0: the steps of a per-step schedule so far. At most those of the whole epoch, so that it ends exactly."""
        done = min(self.ledger.work, self.epoch_work)
        return math.floor(done / self.length * self.steps_per_epoch + 1e-9)

    def _work_of(self, batch: int) -> float:
        assert self.limits is not None
        return work_of(batch, self.limits.initial, self._statistics)

    def _add_work(self) -> None:
        self.ledger.work += self._work_of(self._step.batch)
        self._updated = True

    # -- times and samples of one step --------------------------------------------------------------------------

    def _finish_accumulation_pass(self, step: Step) -> None:
        """A backward pass is over that is not the last of its step: pure computing."""
        took = time.perf_counter() - self.timer.started_at
        if self.pace is not None:
            took = self.pace.sleep(took, step, last=False)
        # passes of a larger step than usual are not representative
        if not self.timer.warm_up and step.batch == self.split.batch and not self.split.twice:
            self.timer.current.compute.add(took)
        self.timer.started_at = time.perf_counter()

    def _finish_sample(self, step: Step, took: float, timed: bool) -> None:
        """A sampled step is over: record its times, and share its norms with the other replicas."""
        gradients, sampling, times = self.gradients, self.sampling, self.timer.current
        assert gradients is not None
        assert self.limits is not None
        # the last pass of a sampled step does not overlap: its gradient is computed before it is exchanged
        compute_s = max(gradients.computed_at - self.timer.started_at, 0.0) + self._update_s
        if self.pace is not None:
            compute_s = self.pace.computing(compute_s, step)
        if timed or self.split.twice:
            sampling.cost.append(gradients.cost_s + self.samples.exchange_s)
        # a larger step than usual is not representative
        if timed and not self.split.twice:
            times.sampled.add(took)
            if not times.compute.count or len(step.pieces) == 1:
                times.compute.add(compute_s)
        norms = gradients.norms.take()
        if norms is None:
            if gradients.norms.wants_another:
                sampling.again()
            else:
                sampling.settle(*sampling.times(), pair=False)
            return
        began, last = self.timer.cost_clock(), step.pieces[-1]
        outcome = self.samples.add(
            norms,
            group=self.group,
            times_s=sampling.times(),
            example_s=compute_s / max(last.end - last.begin, 1),
            split=self.split,
            interval=sampling.interval,
            initial_batch=self.limits.initial,
            population=self.length or math.inf,
        )
        if outcome.estimated:
            self._use_statistics()
        sampling.settle(outcome.cost_s, outcome.plain_s, pair=norms.successive)
        gradients.norms.chained = sampling.always
        self.samples.exchange_s = self.timer.cost_clock() - began

    def _use_statistics(self) -> None:
        """Use new gradient statistics from the next step on if they differ enough, and record that in the history."""
        assert self.limits is not None
        now, grad, scale = self.history.now, self.noise.grad, self.split.batch / self.limits.initial
        if now is not None and not self.history.replays and self.history.stale(grad, scale):
            self.history.add(replace(now, step=self.ledger.step + 1, grad=grad, why=STATISTICS))
