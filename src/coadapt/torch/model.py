"""The module that the training script calls: the same object whatever happens to the group behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from coadapt.torch.gradients import Gradients
from coadapt.torch.memory import Guarded, MemoryLimit


class ReplicaModel(nn.Module):
    """Runs the script's model through whatever synchronises it at present.

    Attributes that it does not have itself are the model's, so that code written for one process goes on working;
    ``.module`` is the model, as in DistributedDataParallel; ``guarded`` is what is to be synchronised.
    """

    guarded: Guarded
    _synced: nn.Module

    def __init__(self, module: nn.Module, gradients: Gradients, memory: MemoryLimit) -> None:
        super().__init__()
        self.module = module
        # not registered as submodules: they hold the same parameters
        object.__setattr__(self, "guarded", Guarded(module, memory))
        object.__setattr__(self, "_synced", self.guarded)
        self._gradients = gradients

    def synced_by(self, wrapped: nn.Module) -> None:
        """From now on the forward pass goes through ``wrapped``."""
        object.__setattr__(self, "_synced", wrapped)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Straight to ``forward`` unless there are hooks on this very object: a module's own call costs 10 us."""
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return super().__call__(*given, **named)
        return self.forward(*given, **named)

    def forward(self, *given: Any, **named: Any) -> Any:
        """The model's own; without gradients it is the model alone, so that replicas may validate at their own pace."""
        if not torch.is_grad_enabled() or self._gradients.alone:
            return self.module(*given, **named)
        output = self._synced(*given, **named)
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
