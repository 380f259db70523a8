"""The script's own optimizer and schedule, taught what a step is: accumulation, scaled rates, progress in work.

Their methods are replaced on the instances, so that they keep their identity: schedulers, GradScaler and the script go on
holding the objects they know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from coadapt.errors import InputError
from coadapt.torch.ledger import Ledger
from coadapt.torch.plain import Plain

#: Steps after which Adam's second moments are worth dividing by.
_SETTLED = 5


class Pacemaker(Protocol):
    """Who knows what step it is: the job."""

    ledger: Ledger
    plain: Plain

    @property
    def updating(self) -> bool:
        """Whether the gradient of the step is whole; False between accumulation passes."""

    def rate_factor(self) -> float:
        """What learning rates are multiplied by in this step."""

    def update(self, step: Callable[[], Any]) -> Any:
        """Makes the step."""

    @property
    def inside(self) -> bool:
        """Whether the script is in its loop over the loader."""

    @property
    def due(self) -> int:
        """Steps a schedule should have been given: work done, in steps at M0."""


def teach_optimizer(optimizer: Optimizer, job: Pacemaker) -> None:
    """Makes ``step`` do nothing between accumulation passes, and scales rates for the step."""
    original, plain, ledger = optimizer.step, job.plain, job.ledger

    @functools.wraps(original)
    def step(closure: Any = None) -> Any:
        if plain.due and closure is None:
            factor = job.rate_factor() if plain.factor is None else plain.factor
            result = original() if factor == 1.0 else scaled(factor, original)
            ledger.work += plain.work
            plain.due = False
            return result
        if closure is not None:
            raise InputError("optimizers that take a closure (LBFGS) are not supported")
        if not job.inside:
            raise InputError(
                "optimizer.step() outside the loop over job.loader(...): its batches are what is counted"
            )
        # what schedules look for before they warn that no step came first
        optimizer._opt_called = True
        if not job.updating:
            return None
        return job.update(lambda: scaled(job.rate_factor(), original))

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

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # schedules look for their own mark
    optimizer.step = step


class Schedule:
    """A schedule stepped inside the loop counts steps at M0, by work done; outside (per epoch) it is left alone."""

    def __init__(self, schedule: Any, job: Pacemaker) -> None:
        #: Steps it was given inside the loop.
        self.taken = 0
        self.schedule = schedule
        original = schedule.step

        @functools.wraps(original)
        def step(*given: Any, **named: Any) -> Any:
            if not job.inside:
                return original(*given, **named)
            due = job.due if job.updating else 0
            while self.taken < due:
                original(*given, **named)
                self.taken += 1
            return None

        schedule.step = step

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        # its state is its __dict__, in which the taught method now stands
        state = {key: value for key, value in self.schedule.state_dict().items() if key != "step"}
        return {"taken": self.taken, "schedule": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.taken = state["taken"]
        self.schedule.load_state_dict(state["schedule"])


def teach_scaler(scaler: Any, job: Pacemaker) -> None:
    """A GradScaler does nothing between accumulation passes: there is no gradient to look at."""
    for name in ("step", "update", "unscale_"):
        original = getattr(scaler, name)

        def only_updating(*given: Any, _original: Any = original, **named: Any) -> Any:
            return _original(*given, **named) if job.updating else None

        setattr(scaler, name, functools.wraps(original)(only_updating))


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All that it trains, in the order of its groups."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def adam_divisors(optimizer: Optimizer) -> Sequence[Tensor] | None:
    """What Adam divides gradients by, sqrt(v / (1 - beta2^t)) + eps, per parameter; None before it has settled."""
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
