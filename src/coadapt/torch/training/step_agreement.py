"""A step that one replica skips or leaves: the other replicas do the same.

The others are inside the collective of that step, or will be, and wait for this replica. It joins them with a backward pass whose
gradients are not numbers, so that no replica uses the result. Whether it has left the loop stands in the store
before that. So a step that all replicas make costs no message; each looks at one number before it steps.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from coadapt.errors import InputError
from coadapt.torch.elastic.process_group import Group
from coadapt.torch.training.gradients import Gradients, tensors_in
from coadapt.torch.training.replica_model import ReplicaModel


class StepAgreement:
    """Voids steps of ``model``. Called by ``ReplicaTraining`` and the loader, where replicas share every step."""

    def __init__(self, model: ReplicaModel, gradients: Gradients) -> None:
        self._model, self._gradients = model, gradients

    def void_step(self) -> None:
        """Take part in the backward pass of the present step without a usable gradient; nothing if this replica had its own."""
        if self._model.last_call is None:
            raise InputError(
                "this replica skipped a batch before the model was called for the first time: other replicas cannot be told"
            )
        given, named, output = self._model.last_call
        gradients = self._gradients
        gradients.void = True
        with gradients.unchanged():
            if output is None:
                output = self._model(*given, **named)
            tensors = [each for each in tensors_in(output) if each.requires_grad]
            hooks = [p.register_hook(_not_a_number) for p in self._model.parameters() if p.requires_grad]
            try:
                # an error: the script has made the backward pass itself, and skipped the step only
                with suppress(RuntimeError, AttributeError):
                    torch.autograd.backward(tensors, [torch.zeros_like(each) for each in tensors])
            finally:
                for hook in hooks:
                    hook.remove()

    def forget_output(self) -> None:
        """The optimizer has stepped: the graph of the last forward pass is used up."""
        own = self._model.__dict__
        if own["last_call"] is not None:
            own["last_call"] = (*own["last_call"][:2], None)

    def leave(self, group: Group, step: int) -> None:
        """Tell the other replicas that this one leaves the loop instead of making ``step``."""
        store: Any = group.connect()
        store.set(_key(group, step), "1")

    def left(self, group: Group, step: int) -> bool:
        """Whether a replica has left the loop instead of making ``step``."""
        store: Any = group.connect()
        return bool(store.check([_key(group, step)]))


def _key(group: Group, step: int) -> str:
    return f"left{group.generation}/{step}"


def _not_a_number(gradient: Tensor) -> Tensor:
    return torch.full_like(gradient, float("nan"))
