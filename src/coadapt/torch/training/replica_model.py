"""The model that the training script calls: the same object through every resize."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from coadapt.torch.training.gradients import Gradients
from coadapt.torch.training.out_of_memory import MemoryGuard, MemoryLimit


class ReplicaModel(nn.Module):
    """Runs the script's model through the synchronisation of the present generation.

    Other attributes are the model's, so that code written for one process works; ``.module`` is the model, as in
    DistributedDataParallel; ``guarded`` is what a synchronisation architecture wraps.
    """

    guarded: MemoryGuard
    _synced: nn.Module

    def __init__(self, module: nn.Module, gradients: Gradients, memory: MemoryLimit) -> None:
        super().__init__()
        self.module = module
        # not registered as submodules: they hold the same parameters
        object.__setattr__(self, "guarded", MemoryGuard(module, memory))
        object.__setattr__(self, "_synced", self.guarded)
        self._gradients = gradients

    def run_through(self, wrapped: nn.Module) -> None:
        """Run forward passes through ``wrapped`` from now on."""
        object.__setattr__(self, "_synced", wrapped)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call ``forward`` directly unless this object has hooks: ``Module.__call__`` costs 10 us."""
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return super().__call__(*given, **named)
        return self.forward(*given, **named)

    def forward(self, *given: Any, **named: Any) -> Any:
        """Run the model; without gradients it runs unsynchronised, so that each replica may validate at its own pace."""
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
        """The model's state, under its own names: it loads into the plain model."""
        return self.module.state_dict(*given, **named)

    def load_state_dict(self, *given: Any, **named: Any) -> Any:
        """Load the model's state."""
        return self.module.load_state_dict(*given, **named)
