"""What the training script calls: its model through our synchronisation, and hooks in its optimizer, schedule and GradScaler.

The hooks skip accumulation passes, scale learning rates and count progress in work. Methods are replaced on the instances, which
keep their identity: schedules, GradScaler and the script hold references to them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coadapt.errors import InputError
from coadapt.torch.training.gradients import Gradients
from coadapt.torch.training.out_of_memory import MemoryGuard, MemoryLimit
from coadapt.torch.training.replica_training import ReplicaTraining


class ReplicaModel(nn.Module):
    """Runs the script's model through the synchronisation of the present generation: the same object through every resize.

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


#: Steps after which Adam's second moments are reliable.
_SETTLED = 5


def hook_optimizer(optimizer: Optimizer, training: ReplicaTraining) -> None:
    """Make ``step`` do nothing between accumulation passes, and scale learning rates for the step."""
    original, plain, ledger = optimizer.step, training.plain, training.ledger

    @functools.wraps(original)
    def step(closure: Any = None) -> Any:
        if plain.step_pending and closure is None:
            factor = training.rate_factor() if plain.rate_factor is None else plain.rate_factor
            result = original() if factor == 1.0 else scaled(factor, original)
            ledger.work += plain.work
            plain.step_pending = False
            return result
        if closure is not None:
            raise InputError("optimizers that take a closure (LBFGS) are not supported")
        if not training.inside:
            raise InputError(
                "optimizer.step() outside the loop over job.loader(...): steps are counted by its batches"
            )
        # schedules read it: without it they warn that no step came first
        optimizer._opt_called = True
        if not training.updating:
            return None
        return training.update(lambda: scaled(training.rate_factor(), original))

    def scaled(factor: float, made: Callable[[], Any]) -> Any:
        if factor == 1.0:
            return made()
        rates = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        try:
            return made()
        finally:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # the mark that schedules look for
    optimizer.step = step


class WorkSchedule:
    """A schedule stepped inside the loop counts work in steps at M0; one stepped outside (per epoch) is not changed."""

    def __init__(self, schedule: Any, training: ReplicaTraining) -> None:
        #: Steps made inside the loop.
        self.taken = 0
        self.schedule = schedule
        original = schedule.step

        @functools.wraps(original)
        def step(*given: Any, **named: Any) -> Any:
            if not training.inside:
                return original(*given, **named)
            due = training.schedule_steps_due if training.updating else 0
            while self.taken < due:
                original(*given, **named)
                self.taken += 1
            return None

        schedule.step = step

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint."""
        # its state is its __dict__, which contains the replaced method
        state = {key: value for key, value in self.schedule.state_dict().items() if key != "step"}
        return {"taken": self.taken, "schedule": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self.taken = state["taken"]
        self.schedule.load_state_dict(state["schedule"])


def hook_scaler(scaler: Any, training: ReplicaTraining) -> None:
    """Make a GradScaler do nothing between accumulation passes: there is no gradient to check."""
    for name in ("step", "update", "unscale_"):
        original = getattr(scaler, name)

        def only_updating(*given: Any, _original: Any = original, **named: Any) -> Any:
            return _original(*given, **named) if training.updating else None

        setattr(scaler, name, functools.wraps(original)(only_updating))


def adam_divisors(optimizer: Optimizer) -> Sequence[Tensor] | None:
    """What Adam divides gradients by, sqrt(v / (1 - beta2^t)) + eps, per parameter; None in its first steps."""
    divisors = []
    for group in optimizer.param_groups:
        beta2, eps = group.get("betas", (0.9, 0.999))[1], group.get("eps", 1e-8)
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            state = optimizer.state.get(parameter, {})
            moment, steps = state.get("exp_avg_sq"), float(state.get("step", 0))
            if moment is None or steps < _SETTLED:
                return None
            divisors.append(torch.sqrt(moment / (1 - beta2**steps)).add_(eps))
    return divisors
