"""The training loop of a job in one replica: its start, what happens between two steps, a resize, its end.

``Job`` is what a script sees; ``TrainingLoop`` does the work. It owns all parts of the agent and is the only one that knows them all.
``StepJournal`` writes committed steps to a file for ``coadapt test-resize``.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer

from coadapt.torch import script_errors, sync
from coadapt.torch.batches._base import BatchRule
from coadapt.torch.elastic import in_place_resize, random_state
from coadapt.torch.elastic.checkpoints import Checkpoints
from coadapt.torch.elastic.coordinator import Coordinator, leave
from coadapt.torch.elastic.notices import Notice
from coadapt.torch.elastic.process_group import Group, Place
from coadapt.torch.elastic.training_state import TrainingState
from coadapt.torch.training import report_client, script_frames
from coadapt.torch.training.batch_decisions import BatchDecisions
from coadapt.torch.training.gradients import Gradients
from coadapt.torch.training.measurements import Measurements
from coadapt.torch.training.metric_exchange import MetricExchange
from coadapt.torch.training.noise_scale import SampleSchedule
from coadapt.torch.training.replica_guard import ReplicaGuard
from coadapt.torch.training.replica_model import ReplicaModel
from coadapt.torch.training.replica_training import ReplicaTraining
from coadapt.torch.training.step_agreement import StepAgreement
from coadapt.torch.training.step_plan import Step
from coadapt.torch.training.trained_parameters import TrainedParameters
from coadapt.wire.agent import SAVED_AND_LEFT, Variable

log = logging.getLogger("coadapt.torch")
#: Seconds of the script's code between two epochs above which the state is saved before it.
_LONG_END_S = 1.0
#: Steps of a generation in which gradients are exchanged by us, to see which parameters have one.
_TRIAL = 2


class CommittedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the journal: after step number ``step`` training stands at ``position`` of pass ``passes``."""

    step: int
    passes: int
    position: int
    batch: int
    replicas: int
    #: Sum and sum of squares of all parameters.
    parameters: tuple[float, float]


class StepJournal:
    """Written by the first replica, one line per committed step, unbuffered: a kill loses at most one torn line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    @staticmethod
    def from_environment() -> StepJournal | None:
        """The journal in the file that ``COADAPT_AUDIT`` names, if it is set."""
        path = os.environ.get(Variable.AUDIT)
        return StepJournal(Path(path)) if path else None

    def write(self, training: ReplicaTraining) -> None:
        """Record the step that was just committed."""
        if not training.group.place.first:
            return
        assert training.gradients is not None
        ledger, total, squares = training.ledger, 0.0, 0.0
        for parameter in training.gradients.parameters:
            values = parameter.detach().double()
            total += float(values.sum())
            squares += float(values.square().sum())
        line = CommittedStep(
            step=ledger.step,
            passes=ledger.passes,
            position=ledger.position,
            batch=training.split.batch,
            replicas=training.group.place.replicas,
            parameters=(total, squares),
        )
        self._file.write(msgspec.json.encode(line) + b"\n")


class TrainingLoop:
    """Owns the parts of a job in one replica, from ``init`` to the end of the process. Called by ``Job`` and by the loader."""

    def __init__(
        self,
        place: Place,
        device: torch.device,
        *,
        rule: BatchRule,
        sampling: SampleSchedule,
        sync_name: str,
        ddp: Mapping[str, Any],
        seed: int,
        checkpoints: Checkpoints | None,
        checkpoint_every_s: float,
    ) -> None:
        """Create the parts.

        Args:
            place: This replica among the others.
            device: Where the model runs.
            rule: Chooses the batch size.
            sampling: Chooses the steps that are sampled for gradient statistics.
            sync_name: The synchronisation architecture: see ``coadapt.torch.sync``.
            ddp: Options for DistributedDataParallel.
            seed: Seed of the order of examples and of new random generators.
            checkpoints: Where state is saved; None: nowhere.
            checkpoint_every_s: Seconds between checkpoints within an epoch.
        """
        self.device, self._sync_name, self._ddp = device, sync_name, ddp
        # asynchronous replicas have no gradient in common whose noise could be estimated
        sampling.off = not sync.in_step(sync_name)
        #: The generation that this replica joins as a newcomer; None once it has, and on all others.
        self._joining = in_place_resize.joined_generation()
        group = Group(place, device, generation=self._joining or 0)
        self.training = ReplicaTraining(group, sampling=sampling)
        self.memory = self.training.memory
        self.decisions = BatchDecisions(self.training, rule)
        self.state = TrainingState(self.decisions, seed)
        self.coordinator = Coordinator(self.training, self.state, checkpoints, every_s=checkpoint_every_s)
        self.measurements = Measurements(self.training, self.decisions, self.coordinator, self.state)
        self.journal = StepJournal.from_environment()
        self.model: ReplicaModel | None = None
        self.optimizer: Optimizer | None = None
        self.trained: TrainedParameters | None = None
        self.guard: ReplicaGuard | None = None
        self.metrics = MetricExchange(self.group)
        #: What the guard compares besides parameters, by "kind: name".
        self.facts: Callable[[], Mapping[str, str]] = dict
        #: Called when replicas compare themselves and at every checkpoint: looks for state that no checkpoint contains.
        self.look_around: Callable[[], None] = lambda: None
        self._rewrap_at_next = self._warned_of_draws = False
        #: The state at the end of the last loop over the loader is saved, and the script is not in our code.
        self._resting = False
        #: Whether the script's code after its inner loop took long the last time, or is not known; when the inner loop ended.
        self._long_ends, self._rested_at = True, time.perf_counter()
        self.coordinator.at_rest = self._leave_at_rest
        self.training.plain.on_interrupt = self._interrupted
        self.coordinator.install_signal_handlers()

    @property
    def group(self) -> Group:
        """The process group of the present generation."""
        return self.training.group

    # -- start and end ------------------------------------------------------------------------------------------

    def join_and_restore(self) -> None:
        """Join the other replicas and restore the last checkpoint. A newcomer does both later, in ``epochs``."""
        if self._joining is not None:
            return
        self.group.open()
        state, checkpoints = None, self.coordinator.checkpoints
        if checkpoints is not None and self.group.place.first:
            checkpoints.claim()
            state = checkpoints.latest()
        state = self.group.from_first(state)
        if state is not None:
            self.state.restore(state)
            if self.group.place.first:
                log.info("resuming after step %d", self.training.ledger.step)

    def attach(self, model: nn.Module, optimizer: Optimizer, gradients: Gradients) -> ReplicaModel:
        """Train ``model`` with ``optimizer``; returns the model that the script calls instead."""
        gradients.buffers = model.buffers
        self.training.gradients = gradients
        self.trained = TrainedParameters(model, optimizer)
        self.guard = ReplicaGuard(
            model.named_parameters, lambda: self.facts(), identical_draws=self._repair_draws
        )
        gradients.unused = self._use_partly
        if self.device.type == "cpu":
            # On a busy machine a step waits for the processor much longer than the short work of a sample does. By wall-clock
            # time samples looked cheap, and every step became one.
            self.training.use_cost_clock(time.process_time)
        self.model = ReplicaModel(model.to(self.device), gradients, self.memory)
        self.optimizer = optimizer
        own = self.model.__dict__
        own["before_forward"], own["watched"] = self._follow_parameters, self.trained.parameters
        own["flags"] = self.trained.flags()
        self.trained.regrouped = lambda: own.update(flags=None)
        self.training.agreement = StepAgreement(self.model, gradients)
        self.state.add("model", model)
        # before the optimizer: it adds the groups that the script had added
        self.state.add("trained", self.trained)
        self.state.add("optimizer", optimizer)
        return self.model

    def epochs(self, count: int, *, whole_passes: bool, hook: Callable[[], None]) -> Iterator[int]:
        """Yield the numbers of the remaining epochs; ``hook`` is called before each."""
        ledger = self.training.ledger
        self.training.whole_passes, self.training.epochs_requested = whole_passes, count
        newcomer = self._begin()
        while ledger.epoch < count:
            hook()
            # those whom a newcomer joins are in the middle of the epoch: they have begun it before
            if not newcomer:
                self._meet()
            newcomer = False
            self.choose_batch()
            try:
                yield ledger.epoch
            except GeneratorExit:
                # a replica that leaves the loop takes the others along
                if script_frames.left_by_script():
                    self._resting = False
                    with script_errors.fatal():
                        self._agree_on_end(ended=True)
                raise
            self._resting = False
            if self._agree_on_end(ended=False):
                return
            if ledger.work < self.training.epoch_end - 1e-6 and self.training.goal_work < math.inf:
                break  # the last of a loop over steps, in the middle of an epoch
            ledger.epoch += 1
            self.save()
        self._meet()
        self._finish()

    def _agree_on_end(self, *, ended: bool) -> bool:
        """Whether the script has left the loop over epochs on some replica. Also how long its code after the inner loop took."""
        after_s = time.perf_counter() - self._rested_at
        if self.group.place.replicas > 1 and sync.in_step(self._sync_name):
            left, after_s = self.group.sum([float(ended), after_s])
            ended = left > 0
        self._long_ends = after_s > _LONG_END_S
        return ended

    def _meet(self) -> None:
        """All replicas begin an epoch, or end training: numbers that the script has reported are complete."""
        self.state.metrics.update(self.metrics.meet())

    def save(self) -> None:
        """Save a checkpoint in the background; all replicas call it together."""
        self._compare()
        self.coordinator.save(wait=False)

    def rest(self) -> None:
        """The loop over the loader has come to the end of an epoch. What the script does next may take long, and be killed."""
        self._equal_buffers()
        if self._long_ends and self.coordinator.checkpoints is not None:
            self.save()
            self._resting = True
        self._rested_at = time.perf_counter()

    def _leave_at_rest(self) -> bool:
        """On a stop: True if the script is outside its loop and the state of its end is saved, so that the process may exit."""
        if self._resting:
            self.measurements.flush(last=True)
        return self._resting

    def _interrupted(self) -> None:
        """A notice was read, in another thread: a replica at rest has no step at which it would act on it."""
        notices, here = self.coordinator.notices, threading.current_thread()
        if here is threading.main_thread():
            return  # a request of its own
        if self._resting and notices is not None and notices.announced_kind == "stop":
            os.kill(os.getpid(), signal.SIGTERM)

    def _equal_buffers(self) -> None:
        """Running statistics (BatchNorm) of the first replica on all of them, so that all validate the same model."""
        if self.group.place.replicas == 1 or self.model is None or not sync.in_step(self._sync_name):
            return
        for buffer in self.model.module.buffers():
            on_cpu = buffer.detach().to("cpu", copy=True)
            torch.distributed.broadcast(on_cpu, src=0)
            with torch.no_grad():
                buffer.copy_(on_cpu)

    def _begin(self) -> bool:
        """Start the first generation of this replica; returns whether it has joined others that train."""
        newcomer = self._joining is not None
        if self._joining is not None:
            notice = in_place_resize.await_generation(self.group, self._joining)
            self.training.group = in_place_resize.next_group(self.group, notice)
            # its generators are part of the state: those of two newcomers must differ
            self._draw_differently()
            state = in_place_resize.send_state(self.group, self.state, newcomer=True)
            self.state.restore(state or {})
            self._joining = None
        elif self.training.ledger.step == 0 and not self.group.place.first:
            # all replicas have seeded their generators alike, so that their models are; from here on they draw differently
            self._draw_differently()
        self._start_generation()
        self.training.started = True
        return newcomer

    def _start_generation(self) -> None:
        """Synchronise the model with the replicas of the present generation."""
        assert self.model is not None
        assert self.optimizer is not None
        gradients = self.training.gradients
        assert gradients is not None
        assert self.guard is not None
        replicas = self.group.place.replicas
        gradients.sync = sync.make(self._sync_name, self._ddp, replicas)
        gradients.shared = replicas > 1 and gradients.sync.in_step
        gradients.trial, gradients.partly_used = (_TRIAL if gradients.shared else 0), False
        self._wrap()
        gradients.sync.open(self.group, self.optimizer)
        self.metrics = MetricExchange(self.group)
        # a newcomer does not know it, and all must save together
        self._long_ends = True
        self.guard.start(self.training.ledger.step, replicas=replicas if gradients.shared else 1)
        self.training.meets_at = self.guard.due_at
        if self.training.pace is not None:
            self.training.pace.moved(self.group.place)
        self.coordinator.start_generation(self.group)

    def _wrap(self) -> None:
        """Run the model through the synchronisation; all replicas begin with the first one's parameters."""
        gradients = self.training.gradients
        assert gradients is not None
        assert gradients.sync is not None
        assert self.model is not None
        if gradients.shared and not gradients.sync.overlaps:  # else DDP does so
            for parameter in self.model.module.parameters():
                torch.distributed.broadcast(parameter.data, src=0)
        self.model.run_through(gradients.sync.wrap(self.model.guarded))

    # -- what the script changes while it runs ----------------------------------------------------------------------

    def _follow_parameters(self) -> None:
        """Before a forward pass: synchronise the parameters that require a gradient now."""
        assert self.trained is not None
        assert self.model is not None
        assert self.training.gradients is not None
        self.model.__dict__["flags"] = self.trained.flags()
        self.training.gradients.use(self.trained.trained())
        if self.group.place.replicas > 1:
            self._rewrap()
        if self.group.place.first:
            log.info(
                "step %d: the script trains %d parameters now",
                self.training.ledger.step,
                len(self.training.gradients.parameters),
            )

    def _use_partly(self, parameters: list[torch.Tensor]) -> None:
        """Some parameters have no gradient in the first steps: DDP has to look for those in every step."""
        assert self.trained is not None
        if self.group.place.first:
            log.warning(
                "%d parameters have no gradient, first %s: replicas look for such parameters in every step from now on",
                len(parameters),
                self.trained.name_of(parameters[0]),
            )
        self._ddp = {**self._ddp, "find_unused_parameters": True}
        self._rewrap_at_next = True

    def _rewrap(self) -> None:
        """Build the synchronisation again, between two passes."""
        gradients = self.training.gradients
        assert self.model is not None
        assert gradients is not None
        self._rewrap_at_next = False
        if gradients.sync is None or not gradients.sync.overlaps:
            return
        piece_overlaps = gradients.overlapping
        gradients.sync = sync.make(self._sync_name, self._ddp, self.group.place.replicas)
        self.model.run_through(gradients.sync.wrap(self.model.guarded))
        gradients.sync.overlap(piece_overlaps)

    def _draw_differently(self) -> None:
        """Seed the random generators of this replica by its rank; the first one keeps its own."""
        if not self.group.place.first:
            random_state.reseed(
                torch.initial_seed() % 2**63, self.group.place.rank, self.training.ledger.step
            )

    def _repair_draws(self) -> None:
        """The script has seeded all replicas alike within its loop."""
        if self.group.place.first and not self._warned_of_draws:
            self._warned_of_draws = True
            log.warning(
                "step %d: all replicas were about to draw the same random numbers (dropout, augmentation): the script seeds them alike "
                "in its loop; they are seeded by rank again",
                self.training.ledger.step,
            )
        self._draw_differently()

    def _compare(self) -> None:
        """Compare replicas, and look for state of the script that no checkpoint contains."""
        assert self.guard is not None
        training = self.training
        self.look_around()
        if training.gradients is not None and training.gradients.shared:
            clock, step_s = training.timer.cost_clock, training.sampling.times()[1]
            self.guard.check(self.group, training.ledger.step, cost_clock=clock, step_s=step_s)
        training.meets_at = self.guard.due_at

    def _finish(self) -> None:
        self.state.finished = True
        self.training.started = False
        self.measurements.flush(last=True)
        self.coordinator.save(wait=True)
        self.coordinator.close()
        if self.coordinator.terminated:
            # it came too late to stop anything: an exit with 0 is the end of the job
            report_client.say_done(self.group.place)
        self._close_sync()

    def close(self) -> None:
        """The process ends."""
        if self.coordinator.checkpoints is not None:
            self.coordinator.checkpoints.wait()
        self.coordinator.close()
        self._close_sync()
        self._release_group()
        self.group.close()
        if self.group.abandoned:
            # all that remains is the destruction of C++ objects, which may abort the process
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(SAVED_AND_LEFT)

    def _close_sync(self) -> None:
        if self.training.gradients is not None and self.training.gradients.sync is not None:
            self.training.gradients.sync.close()

    def _release_group(self) -> None:
        """Drop what refers to the process group: it ends its threads with the last reference.

        A thread of gloo that releases a tensor while the interpreter shuts down aborts the process.
        """
        if self.model is not None and self.training.gradients is not None:
            self.model.run_through(self.model.guarded)
            self.training.gradients.sync = None
            gc.collect()

    # -- called by the loader around steps -----------------------------------------------------------------------

    def begin_plain_run(self, length: int) -> int:
        """Begin a run of plain steps in a pass of ``length`` examples; returns their number, 0 if there can be none now."""
        training = self.training
        count = training.plain_steps_ahead(length)
        idle_s = self._idle_s() if count else 0.0
        if idle_s <= 0 or self._rewrap_at_next:
            return 0
        training.plain.ends_at = time.perf_counter() + idle_s
        # checked again: an interrupt first leaves something to do and then resets ``ends_at``
        if self._idle_s() <= 0:
            return 0
        training.begin_plain_run()
        return count

    def end_plain_run(self) -> bool:
        """The run is over; True if the steps that follow must be planned again."""
        self.training.end_plain_run()
        changed = self.between_steps()
        self.training.timer.start()
        return changed

    def finish_step(self, step: Step, length: int) -> bool:
        """``step`` of a pass of ``length`` examples is over; True if the steps that follow must be planned again."""
        pass_ended = self.training.finish_step(step, length)
        changed = self.between_steps()
        self.training.timer.start()
        return changed or pass_ended or self.training.epoch_over()

    # -- between two steps ----------------------------------------------------------------------------------------

    def between_steps(self) -> bool:
        """Do what is due between two steps; True if the steps that follow must be planned again."""
        self.write_journal()
        changed = False
        if self._rewrap_at_next:
            self._rewrap()
        if self.training.ledger.step >= self.training.meets_at:
            self._compare()
        if self.memory.unannounced is not None and self.coordinator.notices is not None:
            self.coordinator.notices.request(Notice(kind="limit", atomic=self.memory.unannounced))
            self.memory.unannounced = None
        while (notice := self.coordinator.due()) is not None:
            changed = self._act(notice) or changed
        if self.training.history.replays:
            changed = self.decisions.replay() or changed
        self.measurements.report_if_due()
        return changed

    def write_journal(self) -> None:
        """Record the step that was just committed, if there is a journal."""
        if self.journal is not None:
            self.journal.write(self.training)

    def _idle_s(self) -> float:
        """Seconds for which ``between_steps`` would find nothing to do, as far as is known."""
        if self.journal is not None or self.memory.unannounced is not None or self.training.history.replays:
            return 0.0
        return min(self.coordinator.idle_s, self.measurements.idle_s)

    def _act(self, notice: Notice) -> bool:
        if notice.kind == "stop":
            self._compare()
            self.measurements.flush(last=True)
            self.coordinator.stop()
        elif notice.kind == "checkpoint":
            self.save()
        elif notice.kind == "limit":
            self.memory.agree(notice.atomic)
            return self.choose_batch()
        elif notice.kind == "resize":
            self._resize(notice)
            return True
        return False

    def choose_batch(self) -> bool:
        """Decide on the batch size from all measurements so far; True if it changed."""
        assert self.optimizer is not None
        self.measurements.flush()
        return self.decisions.choose(self.state.metrics, float(self.optimizer.param_groups[0]["lr"]))

    def _resize(self, notice: Notice) -> None:
        """Take part in a resize in place, as a survivor or a leaver. Newcomers: see ``_begin``."""
        began = time.perf_counter()
        before = self.group.place.replicas
        staying = in_place_resize.member_name() in notice.members
        # the first replica may be the one that leaves: another one continues its reports
        self.measurements.flush(last=not staying)
        self.measurements.hand_over()
        in_place_resize.announce_members(self.group, notice)
        self._stop_generation()
        if not staying:
            leave(self.group)
        self.group.close()
        self.training.group = in_place_resize.next_group(self.group, notice)
        in_place_resize.send_state(self.group, self.state, newcomer=False)
        self._start_generation()
        self.choose_batch()
        replicas = self.group.place.replicas
        kind = in_place_resize.resize_kind(before, replicas)
        took = time.perf_counter() - began
        self.coordinator.overheads_s[kind] = took
        in_place_resize.announce_running(self.group)
        if self.group.place.first:
            log.info("resized from %d to %d replicas in %.3f s (%s)", before, replicas, took, kind)

    def _stop_generation(self) -> None:
        """Stop synchronising with the replicas of the present generation."""
        assert self.model is not None
        self.model.run_through(self.model.guarded)
        gradients = self.training.gradients
        assert gradients is not None
        assert gradients.sync is not None
        gradients.sync.pull_state()
        gradients.sync.close()
        gradients.sync = None
