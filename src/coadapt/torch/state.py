"""Everything a job needs to go on elsewhere, as plain data and tensors: what a checkpoint holds and a newcomer is sent."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor

from coadapt.predict.step_table import StepTimeTable
from coadapt.torch import randomness
from coadapt.torch.adaptation import Adaptation
from coadapt.torch.history import Entry

VERSION = 1


class State:
    """What is saved. ``parts`` are objects with ``state_dict`` and ``load_state_dict``: model, optimizer, schedule, ..."""

    def __init__(self, adaptation: Adaptation, seed: int) -> None:
        self.parts: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}
        self.finished = False
        self._adaptation, self._seed = adaptation, seed
        self._waiting: dict[str, Any] = {}

    def gather(self) -> dict[str, Any] | None:
        """All of it, on the first replica; None on the others. All replicas call this together."""
        training = self._adaptation.training
        if training.gradients is not None and training.gradients.sync is not None:
            training.gradients.sync.bring_home()
        generators = training.group.to_first(randomness.generators())
        if generators is None:
            return None
        return {
            "version": VERSION,
            "ledger": training.ledger.state_dict(),
            "noise": training.noise.state_dict(),
            "history": msgspec.to_builtins(training.history.entries),
            "table": msgspec.to_builtins(self._adaptation.table),
            "memory": self._adaptation.memory.atomic,
            "metrics": dict(self.metrics),
            "finished": self.finished,
            "generators": generators,
            "parts": {name: part.state_dict() for name, part in self.parts.items()} | self._waiting,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse; parts that are not there yet are loaded when they come."""
        adaptation, training = self._adaptation, self._adaptation.training
        training.ledger.load_state_dict(state["ledger"])
        training.noise.load_state_dict(state["noise"])
        training.history.entries = msgspec.convert(state["history"], list[Entry])
        adaptation.table = msgspec.convert(state["table"], StepTimeTable)
        adaptation.memory.atomic = state["memory"]
        self.metrics, self.finished = dict(state["metrics"]), state["finished"]
        self._waiting = dict(state["parts"])
        for name in list(self.parts):
            self._load(name)
        place, generators = training.group.place, state["generators"]
        if len(generators) == place.replicas:
            randomness.restore(generators[place.rank])
        else:
            randomness.reseed(self._seed, place.rank, training.ledger.step)

    def add(self, name: str, part: Any) -> None:
        """Another part; restored at once if its state is at hand."""
        self.parts[name] = part
        self._load(name)

    def _load(self, name: str) -> None:
        saved = self._waiting.pop(name, None)
        if saved is not None:
            self.parts[name].load_state_dict(saved)


def copied(value: Any) -> Any:
    """A copy in main memory that training cannot change any more, to be written in the background."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return type(value)((key, copied(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(copied(each) for each in value)
    return value


def to_bytes(state: dict[str, Any]) -> Tensor:
    """For sending to newcomers."""
    import io

    memory = io.BytesIO()
    torch.save(state, memory)
    return torch.frombuffer(bytearray(memory.getbuffer()), dtype=torch.uint8)
