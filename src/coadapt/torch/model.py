"""The module that the training script calls: the same object whatever happens to the group behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from coadapt.torch.gradients import Gradients
from coadapt.torch.memory import MemoryLimit, in_halves


class ReplicaModel(nn.Module):
    """Runs the script's model through whatever synchronises it at present.

    Attributes that it does not have itself are the model's, so that code written for one process goes on working;
    ``.module`` is the model, as in DistributedDataParallel.
    """

    def __init__(self, module: nn.Module, gradients: Gradients, memory: MemoryLimit) -> None:
        super().__init__()
        self.module = module
        # not registered as a submodule: it holds the same parameters
        object.__setattr__(self, "_synced", module)
        self._gradients, self._memory = gradients, memory

    def synced_by(self, wrapped: nn.Module) -> None:
        """From now on the forward pass goes through ``wrapped``."""
        object.__setattr__(self, "_synced", wrapped)

    def forward(self, *given: Any, **named: Any) -> Any:
        """The model's own; without gradients it is the model alone, so that replicas may validate at their own pace."""
        if not torch.is_grad_enabled() or self._gradients.alone:
            return self.module(*given, **named)
        try:
            output = self._synced(*given, **named)
        except torch.OutOfMemoryError as error:
            self._memory.met(error, given, named)
            output = in_halves(self._synced, given, named)
        if self._gradients.watching:
            self._gradients.watch(output)
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def state_dict(self, *given: Any, **named: Any) -> Any:
        """The model's, under its own names: what is saved loads into the plain model."""
        return self.module.state_dict(*given, **named)

    def load_state_dict(self, *given: Any, **named: Any) -> Any:
        """The model's."""
        return self.module.load_state_dict(*given, **named)
