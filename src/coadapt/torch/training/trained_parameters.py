"""Which parameters a script trains: names, flags and groups, followed while it unfreezes layers or adds groups.

The synchronisation is built for one set of parameters. ``ReplicaModel`` compares flags before every forward pass; if the script has changed one,
the loop rebuilds the synchronisation before that pass, on all replicas alike. Flags and groups are part of the checkpoint: the code that changed them runs
once, and not again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from coadapt.errors import InputError


class TrainedParameters:
    """The parameters of ``model`` that ``optimizer`` trains. Saved with the state of training, before the optimizer."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.parameters: list[nn.Parameter] = list(model.parameters())
        #: Called when the script has added a group.
        self.regrouped: Callable[[], None] = lambda: None
        self._hook()

    def flags(self) -> list[bool]:
        """Which parameters require a gradient."""
        return [p.requires_grad for p in self.parameters]

    def check_complete(self) -> None:
        """Raise an error if the model has parameters that it did not have when it was prepared."""
        for name, parameter in self._model.named_parameters():
            if id(parameter) not in self.names:
                raise InputError(
                    f"the model got a new parameter {name} after job.prepare(): no optimizer trains it and it is not averaged; "
                    "change the model before job.prepare()"
                )

    def name_of(self, parameter: Tensor) -> str:
        """The name of ``parameter`` in the model."""
        return self.names.get(id(parameter), "?")

    def trained(self) -> list[Tensor]:
        """Parameters that the optimizer has and that require a gradient, in the order of the groups."""
        return [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]

    def state_dict(self) -> dict[str, Any]:
        """Names of parameters that require a gradient, and of those in each group of the optimizer."""
        groups = [[self.name_of(p) for p in group["params"]] for group in self._optimizer.param_groups]
        return {
            "trained": [self.name_of(p) for p in self.parameters if p.requires_grad],
            "groups": groups,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore flags, and add the groups that the script had added."""
        named, trained = dict(self._model.named_parameters()), set(state["trained"])
        for name, parameter in named.items():
            if parameter.is_leaf and parameter.is_floating_point():
                parameter.requires_grad_(name in trained)
        present = len(self._optimizer.param_groups)
        for names in state["groups"][present:]:
            self._optimizer.add_param_group({"params": [named[name] for name in names]})

    def _hook(self) -> None:
        optimizer, original = self._optimizer, self._optimizer.add_param_group

        def add_param_group(group: dict[str, Any]) -> None:
            given = group["params"]
            listed = [given] if isinstance(given, Tensor) else list(given)
            if any(id(parameter) not in self.names for parameter in listed):
                raise InputError(
                    "optimizer.add_param_group() with a parameter that the prepared model does not have: it would not be "
                    "averaged; make it part of the model before job.prepare()"
                )
            group = {**group, "params": listed}
            original(group)
            self.regrouped()

        optimizer.add_param_group = add_param_group
