"""The complete state of a job as plain data and tensors: the content of a checkpoint and what a newcomer receives."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from torch import Tensor

from coadapt.prediction.step_time.step_table import StepTimeTable
from coadapt.torch.elastic import random_state
from coadapt.torch.elastic.plain_data import foreign
from coadapt.torch.training.batch_decisions import BatchDecisions
from coadapt.torch.training.decision_history import Decision

log = logging.getLogger(__name__)
VERSION = 1


class TrainingState:
    """Gathers and restores the state. ``parts`` are objects with ``state_dict`` and ``load_state_dict``: model, optimizer, schedule, ..."""

    def __init__(self, decisions: BatchDecisions, seed: int) -> None:
        self.parts: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}
        self.finished = False
        self._decisions, self._seed = decisions, seed
        self._unloaded: dict[str, Any] = {}
        self._examined = False

    def gather(self) -> dict[str, Any] | None:
        """The state on the first replica, None on the others. All replicas call this together."""
        training = self._decisions.training
        if training.gradients is not None and training.gradients.sync is not None:
            training.gradients.sync.pull_state()
        generators = training.group.to_first(random_state.generators())
        if generators is None:
            return None
        parts = {name: part.state_dict() for name, part in self.parts.items()} | self._unloaded
        if not self._examined:
            self._examined = True
            if why := foreign(parts):
                log.warning("the job cannot grow, nor restart on several replicas: %s", why)
        return {
            "version": VERSION,
            "ledger": training.ledger.state_dict(),
            "noise": training.noise.state_dict(),
            "history": msgspec.to_builtins(training.history.entries),
            "table": msgspec.to_builtins(self._decisions.table),
            "memory": training.memory.atomic,
            "metrics": dict(self.metrics),
            "finished": self.finished,
            "generators": generators,
            "parts": parts,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state; parts that do not exist yet are loaded by ``add``."""
        training = self._decisions.training
        training.ledger.load_state_dict(state["ledger"])
        training.noise.load_state_dict(state["noise"])
        training.history.entries = msgspec.convert(state["history"], list[Decision])
        self._decisions.table = msgspec.convert(state["table"], StepTimeTable)
        training.memory.atomic = state["memory"]
        self.metrics, self.finished = dict(state["metrics"]), state["finished"]
        self._unloaded = dict(state["parts"])
        for name in list(self.parts):
            self._load(name)
        place, generators = training.group.place, state["generators"]
        if len(generators) == place.replicas:
            random_state.restore(generators[place.rank])
        else:
            random_state.reseed(self._seed, place.rank, training.ledger.step)

    def add(self, name: str, part: Any) -> None:
        """Add a part; it is restored at once if a restored state contains it."""
        self.parts[name] = part
        self._load(name)

    def _load(self, name: str) -> None:
        saved = self._unloaded.pop(name, None)
        if saved is not None:
            self.parts[name].load_state_dict(saved)


def copied(value: Any) -> Any:
    """A copy in host memory, so that training cannot change it while it is written in the background."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return type(value)((key, copied(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(copied(each) for each in value)
    return value
