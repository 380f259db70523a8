"""Hooks in the script's own optimizer, schedule and GradScaler: accumulation, scaled learning rates, progress in work.

Methods are replaced on the instances, which keep their identity: schedules, GradScaler and the script hold references to them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from coadapt.errors import InputError
from coadapt.torch.training.replica_training import ReplicaTraining

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
