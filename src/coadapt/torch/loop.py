"""What surrounds the steps of a script: the beginning, what happens between two steps, a new generation, the end.

``Job`` is what a script sees; ``Loop`` is what makes it so. It owns the parts and is the only one that knows them all.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from coadapt.torch import sync
from coadapt.torch.adaptation import Adaptation
from coadapt.torch.audit import Audit
from coadapt.torch.batches import BatchRule
from coadapt.torch.checkpoints import Checkpoints
from coadapt.torch.elastic import SAVED_AND_LEFT, Elastic
from coadapt.torch.gradients import Gradients
from coadapt.torch.group import Group
from coadapt.torch.measuring import Measuring
from coadapt.torch.model import ReplicaModel
from coadapt.torch.notices import Notice
from coadapt.torch.place import Place
from coadapt.torch.resize import Joining, resize
from coadapt.torch.sampling import Sampling
from coadapt.torch.state import State
from coadapt.torch.training import Training

log = logging.getLogger("coadapt.torch")


class Loop:
    """The parts of a job in one replica, from ``init`` to the end of the process."""

    def __init__(
        self,
        place: Place,
        device: torch.device,
        *,
        rule: BatchRule,
        sampling: Sampling,
        sync_name: str,
        ddp: Mapping[str, Any],
        seed: int,
        checkpoints: Checkpoints | None,
        checkpoint_every_s: float,
    ) -> None:
        self.device, self._sync_name, self._ddp = device, sync_name, ddp
        # replicas that are not in step have no gradient in common whose noise could be told
        sampling.off = not sync.in_step(sync_name)
        self.joining = Joining.asked()
        self.group = Group(place, device, generation=self.joining.generation if self.joining else 0)
        self.training = Training(self.group, sampling=sampling, between=self.between, calm_s=self.calm_s)
        self.memory = self.training.memory
        self.memory.interrupt = self.training.plain.interrupt
        self.adaptation = Adaptation(self.training, rule, self.memory)
        self.state = State(self.adaptation, seed)
        self.elastic = Elastic(self.training, self.state, checkpoints, every_s=checkpoint_every_s)
        self.measuring = Measuring(self.training, self.adaptation, self.elastic, self.state)
        self.audit = Audit.asked()
        self.model: ReplicaModel | None = None
        self.optimizer: Optimizer | None = None
        self.elastic.listen()

    def meet(self) -> None:
        """Joins the other replicas and finds the state to go on from; a newcomer does both later."""
        if self.joining is not None:
            return
        self.group.open()
        state, kept = None, self.elastic.checkpoints
        if kept is not None and self.group.place.first:
            kept.claim()
            state = kept.latest()
        state = self.group.from_first(state)
        if state is not None:
            self.state.restore(state)
            if self.group.place.first:
                log.info("going on after step %d", self.training.ledger.step)

    def take(self, model: nn.Module, optimizer: Optimizer, gradients: Gradients) -> ReplicaModel:
        """This is what is trained; the model to call instead."""
        gradients.buffers = model.buffers
        if self.device.type == "cpu":
            # on a busy machine a step waits for long, the short stretches that a sample adds do not: by the clock on the wall
            # samples looked cheap, and every step became one
            gradients.spent = self.training.plain.spent = time.process_time
        self.training.gradients = gradients
        self.model = ReplicaModel(model.to(self.device), gradients, self.memory)
        self.optimizer = optimizer
        self.state.add("model", model)
        self.state.add("optimizer", optimizer)
        return self.model

    def bodies(self, count: int, *, whole_passes: bool, hook: Callable[[], None]) -> Iterator[int]:
        """The numbers of the epochs that are left; ``hook`` is called before each."""
        ledger = self.training.ledger
        self.training.whole_passes, self.training.bodies = whole_passes, count
        self._begin()
        while ledger.epoch < count:
            hook()
            self.adapt()
            yield ledger.epoch
            ledger.epoch += 1
            self.elastic.save(wait=False)
        self._finish()

    def _begin(self) -> None:
        """All is there: the group synchronises the model from here on."""
        if self.joining is not None:
            self.state.restore(self.joining.join(self))
            self.joining = None
        self.synchronise()
        self.training.started = True

    def synchronise(self) -> None:
        """Builds what a new generation needs around the same model."""
        assert self.model is not None
        assert self.optimizer is not None
        gradients = self.training.gradients
        assert gradients is not None
        gradients.sync = sync.make(self._sync_name, self._ddp, self.group.place.replicas)
        self.model.synced_by(gradients.sync.wrap(self.model.guarded))
        gradients.sync.open(self.group, self.optimizer)
        if self.training.pace is not None:
            self.training.pace.moved(self.group.place)
        self.elastic.start(self.group)

    def adapt(self) -> bool:
        """Decides on the batch size anew, by all that is known."""
        assert self.optimizer is not None
        self.measuring.flush()
        return self.adaptation.choose(self.state.metrics, float(self.optimizer.param_groups[0]["lr"]))

    def between(self) -> bool:
        """Called after every step; True if what follows must be planned anew."""
        if self.audit is not None:
            self.audit.step(self.training)
        changed = False
        if self.memory.untold is not None and self.elastic.notices is not None:
            self.elastic.notices.ask(Notice(kind="limit", atomic=self.memory.untold))
            self.memory.untold = None
        while (notice := self.elastic.due()) is not None:
            changed = self._act(notice) or changed
        if self.training.history.replays:
            changed = self.adaptation.replay() or changed
        self.measuring.step()
        return changed

    def calm_s(self) -> float:
        """How long ``between`` would find nothing to do, as far as is known."""
        if self.audit is not None or self.memory.untold is not None or self.training.history.replays:
            return 0.0
        return min(self.elastic.calm_s, self.measuring.calm_s)

    def _act(self, notice: Notice) -> bool:
        if notice.kind == "stop":
            self.measuring.flush(last=True)
            self.elastic.stop()
        elif notice.kind == "checkpoint":
            self.elastic.save(wait=False)
        elif notice.kind == "limit":
            self.memory.agreed(notice.atomic)
            return self.adapt()
        elif notice.kind == "resize":
            resize(self, notice)
            return True
        return False

    def _finish(self) -> None:
        self.state.finished = True
        self.training.started = False
        self.measuring.flush(last=True)
        self.elastic.save(wait=True)
        self.elastic.deafen()
        self._close_sync()

    def close(self) -> None:
        """The process ends."""
        if self.elastic.checkpoints is not None:
            self.elastic.checkpoints.wait()
        self.elastic.deafen()
        self._close_sync()
        self.group.close()
        if self.group.abandoned:
            # what is left to do is to take C++ objects apart, which helps nobody and may abort
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(SAVED_AND_LEFT)

    def _close_sync(self) -> None:
        if self.training.gradients is not None and self.training.gradients.sync is not None:
            self.training.gradients.sync.close()
