"""The model that ``job.prepare`` returns: it runs through our synchronisation and otherwise behaves as the script's own.

Copies of it (``deepcopy``, ``torch.save``, ``AveragedModel``) are plain models; attributes are read from and written to the script's
model; ``isinstance`` sees the script's class.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from coadapt.errors import InputError
from coadapt.torch.training.gradients import Gradients
from coadapt.torch.training.out_of_memory import MemoryGuard, MemoryLimit

#: What DistributedDataParallel says one step after a parameter had no gradient.
_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_REQUIRES = operator.attrgetter("requires_grad")
#: Attributes of the wrapper; all others are the model's.
_OWN = frozenset(
    [
        "module",
        "guarded",
        "training",
        "watched",
        "flags",
        "before_forward",
        "last_call",
        "_synced",
        "_gradients",
        "_forward_hooks",
    ]
)


class ReplicaModel(nn.Module):
    """Runs the script's model through the synchronisation of the present generation: the same object through every resize.

    ``.module`` is the model, as in DistributedDataParallel; ``guarded`` is what a synchronisation architecture wraps.
    """

    guarded: MemoryGuard
    #: Parameters, and which of them required a gradient when ``before_forward`` was called last; None: it must be called.
    watched: list[nn.Parameter]
    flags: list[bool] | None
    #: Called before a forward pass with gradients if those have changed; may replace the synchronisation.
    before_forward: Callable[[], None]
    #: Arguments and output of the last forward pass with gradients: see ``agreed_skips``.
    last_call: tuple[tuple[Any, ...], dict[str, Any], Any] | None
    _synced: nn.Module
    _gradients: Gradients

    def __init__(self, module: nn.Module, gradients: Gradients, memory: MemoryLimit) -> None:
        super().__init__()
        self.module = module
        # not registered as submodules: they hold the same parameters
        own = self.__dict__
        own["guarded"] = own["_synced"] = MemoryGuard(module, memory)
        own["_gradients"], own["last_call"] = gradients, None
        own["before_forward"], own["watched"], own["flags"] = lambda: None, [], []
        own["training"] = module.training

    def run_through(self, wrapped: nn.Module) -> None:
        """Run forward passes through ``wrapped`` from now on."""
        self.__dict__["_synced"] = wrapped

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call ``forward`` directly unless this object has hooks: ``Module.__call__`` costs 10 us."""
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return super().__call__(*given, **named)
        return self.forward(*given, **named)

    def forward(self, *given: Any, **named: Any) -> Any:
        """Run the model; without gradients it runs unsynchronised, so that each replica may validate at its own pace."""
        gradients = self._gradients
        if not torch.is_grad_enabled() or gradients.alone:
            return self.module(*given, **named)
        # without a Python call for each parameter, in every step
        if list(map(_REQUIRES, self.watched)) != self.flags:
            self.before_forward()
        try:
            output = self._synced(*given, **named)
        except RuntimeError as error:
            if _UNFINISHED not in str(error):
                raise
            raise InputError(
                "a parameter had a gradient in the first steps and none in the last one: set "
                'coadapt.init(ddp={"find_unused_parameters": True})'
            ) from None
        if gradients.shared:
            self.__dict__["last_call"] = given, named, output
        if gradients.watching:
            gradients.watch(output)
        return output

    # -- as the script's model ----------------------------------------------------------------------------------

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The script's class: ``isinstance`` holds for it as well."""
        return type(self.module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or "module" not in self.__dict__.get("_modules", ()):
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        made: nn.Module = copy.deepcopy(self.module, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (self.module,)

    def __repr__(self) -> str:
        return repr(self.module)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.module)})

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.module)  # an error if the model has none, as without us

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)

    def __contains__(self, key: Any) -> bool:
        return key in self.module

    def state_dict(self, *given: Any, **named: Any) -> Any:
        """The model's state, under its own names: it loads into the plain model."""
        return self.module.state_dict(*given, **named)

    def load_state_dict(self, *given: Any, **named: Any) -> Any:
        """Load the model's state."""
        return self.module.load_state_dict(*given, **named)

    def named_parameters(self, *given: Any, **named: Any) -> Any:
        """The model's, under its own names."""
        return self.module.named_parameters(*given, **named)

    def named_buffers(self, *given: Any, **named: Any) -> Any:
        """The model's, under its own names."""
        return self.module.named_buffers(*given, **named)

    def named_modules(self, *given: Any, **named: Any) -> Any:
        """The model's, under its own names."""
        return self.module.named_modules(*given, **named)

    def named_children(self) -> Any:
        """The model's, under its own names."""
        return self.module.named_children()

    def apply(self, function: Any) -> Any:
        """Apply ``function`` to the model and its parts."""
        self.module.apply(function)
        return self

    def train(self, mode: bool = True) -> Any:
        """Set the mode of the model."""
        self.__dict__["training"] = mode
        self.module.train(mode)
        return self

    def no_sync(self) -> AbstractContextManager[None]:
        """As in DistributedDataParallel; the agent decides itself when gradients are exchanged."""
        return nullcontext()

    def _apply(self, function: Any, recurse: bool = True) -> Any:
        self.module._apply(function, recurse)
        return self


def _itself(module: nn.Module) -> nn.Module:
    """A pickled ``ReplicaModel`` is the script's model."""
    return module
