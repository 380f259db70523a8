"""What a job knows about its script besides the model: what is compared among replicas, and what no checkpoint contains."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from coadapt.errors import InputError
from coadapt.torch.training import loss_reduction
from coadapt.torch.training.replica_guard import described
from coadapt.torch.training.training_loop import TrainingLoop
from coadapt.torch.training.unsaved_state import LostCounter, ModelCopies, ScriptVariables, check_schedules
from coadapt.wire.agent import Variable

log = logging.getLogger("coadapt.torch")
#: Backward passes whose loss is looked at.
_LOSSES = 3


class Data(Protocol):
    """A dataset of ``coadapt.torch.loader``."""

    def facts(self, number: int, position: int) -> str:
        """What replicas compare of the order of examples."""

    def sample(self) -> str:
        """What replicas compare of the examples themselves; empty if they cannot."""


class ScriptState:
    """Owns the checks of a script while it runs. ``loop`` asks for them; ``content`` is ``job.state``."""

    def __init__(self, loop: TrainingLoop, content: dict[str, Any]) -> None:
        self._loop, self._content = loop, content
        self.data: Data | None = None
        #: Schedules given to ``prepare``, and objects that checkpoints contain besides the model.
        self.schedules: list[Any] = []
        self.saved: list[Any] = []
        self._optimizer: Optimizer | None = None
        self._model: nn.Module | None = None
        self._copies: ModelCopies | None = None
        self._variables: ScriptVariables | None = None
        self._restored_variables: dict[str, float] = {}
        self._losses_seen = 0
        #: Some examples of the dataset, to be compared among replicas.
        self._sample = ""
        loop.facts, loop.look_around = self._facts, self._look_around

    # -- from the job ---------------------------------------------------------------------------------------------

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """The script's model and optimizer are known."""
        self._model, self._optimizer = model, optimizer
        counter = LostCounter(lambda: [float(group["lr"]) for group in optimizer.param_groups])
        self._loop.state.add("rates", counter)
        self._loop.state.add("variables", self)
        # a schedule that is saved knows its place
        self._loop.training.on_update = lambda: None if self.schedules else counter.after_step()
        gradients = self._loop.training.gradients
        assert gradients is not None
        gradients.on_output_gradient = self._look_at_loss

    def begin(self) -> None:
        """The script's loop over epochs or steps begins."""
        assert self._optimizer is not None
        assert self._model is not None
        place, checkpoints = self._loop.group.place, self._loop.coordinator.checkpoints
        may_be_joined = bool(os.environ.get(Variable.STORE))
        # one replica reads them too, where others may join: they read theirs here, and compare all
        if self.data is not None and (place.replicas > 1 or may_be_joined):
            self._sample = self.data.sample()
        if checkpoints is None and not may_be_joined:
            return  # nothing is saved and nobody joins: there is no state to lose
        check_schedules(self._optimizer, {id(schedule) for schedule in self.schedules})
        self._copies = ModelCopies(self._model)
        self._variables = ScriptVariables.of_caller()
        if self._restored_variables and self._loop.group.place.first:
            self._variables.check_restart(self._restored_variables)

    def begin_epoch(self) -> None:
        """The script begins an epoch."""
        if self._loop.trained is not None:
            self._loop.trained.check_complete()

    # -- from the loop --------------------------------------------------------------------------------------------

    def _facts(self) -> Mapping[str, str]:
        training, optimizer = self._loop.training, self._optimizer
        ledger = training.ledger
        found = {"progress": f"{ledger.step} steps, {ledger.passes} passes, work {ledger.work!r}"}
        if self.data is not None:
            found["data"] = self.data.facts(ledger.passes, ledger.position) + self._sample
        if optimizer is not None:
            for number, group in enumerate(optimizer.param_groups):
                found[f"learning rate of group {number}"] = repr(float(group["lr"]))
                numbers = {k: v for k, v in group.items() if isinstance(v, (int, float)) and k != "lr"}
                found[f"options of group {number}"] = repr(sorted(numbers.items()))
        for name, value in self._content.items():
            found[f"job.state[{name!r}]"] = described(value)
        return found

    def _look_around(self) -> None:
        if self._copies is not None:
            modules = [part for part in self.saved if isinstance(part, nn.Module)]
            inner = [getattr(part, "module", None) for part in self.saved]
            known = {
                id(m) for part in [*modules, *inner] if isinstance(part, nn.Module) for m in part.modules()
            }
            self._copies.check(known)
        if self._variables is not None and self._loop.group.place.first:
            self._variables.tell()

    def state_dict(self) -> dict[str, float]:
        """Numbers that the script's loop has changed."""
        return self._variables.changed() if self._variables is not None else self._restored_variables

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Those of the run before."""
        self._restored_variables = dict(state)

    def _look_at_loss(self, outputs: list[Tensor], examples: int) -> bool:
        """Called in a backward pass; False if it need not be called again."""
        loss = loss_reduction.present_loss()
        self._losses_seen += 1
        if loss is None:
            return self._losses_seen < _LOSSES
        found = loss_reduction.reduction_of(loss, outputs, examples)
        if found.operation and examples > 1:
            text = (
                f"the loss is a sum over the batch ({found.operation}): on several replicas its gradient would be divided by their number; "
                "make it a mean, for example loss / len(batch)"
            )
            if not found.weighted:
                raise InputError(text)
            if self._loop.group.place.first:
                log.warning("%s", text)
            return False
        return self._losses_seen < _LOSSES
