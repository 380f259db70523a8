"""Hooks in what the training script calls: its optimizer, schedules, averages of parameters and GradScaler.

The hooks skip accumulation passes, scale learning rates and count progress in work. Methods are replaced on the instances, which
keep their identity: schedules, GradScaler and the script hold references to them.
"""

from __future__ import annotations

import copyreg
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
    assert training.gradients is not None
    gradients = training.gradients

    @functools.wraps(original)
    def step(closure: Any = None) -> Any:
        if plain.step_pending and closure is None:
            if gradients.shared:
                if training.gradient_void():
                    return None
                training.agreement.forget_output()
            factor = training.rate_factor() if plain.rate_factor is None else plain.rate_factor
            result = original() if factor == 1.0 else scaled(factor, original)
            ledger.work += plain.work
            plain.step_pending = False
            gradient = training.marker.grad if training.marker is not None else None
            training.marked = gradient, 0 if gradient is None else gradient._version
            return result
        if closure is not None:
            raise InputError(
                "optimizer.step(closure) is not supported: the gradient is computed once per batch, before the step; "
                "call loss.backward() and optimizer.step()"
            )
        if not training.inside:
            raise InputError(
                "optimizer.step() outside the loop over job.loader(...): steps are counted by its batches"
            )
        # schedules read it: without it they warn that no step came first
        optimizer._opt_called = True
        if not training.updating or (gradients.shared and training.gradient_void()):
            return None
        if gradients.shared:
            training.agreement.forget_output()
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


def _replace_methods(instance: Any, **methods: Callable[..., Any]) -> None:
    """Replace methods of one object by a class of its own.

    An attribute of the instance would be part of its state: a schedule that is saved by the script could not be pickled.
    """
    kind = type(instance)
    names: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    names |= {"__reduce_ex__": lambda self, protocol: _as(self, kind, protocol)}
    instance.__class__ = type(kind.__name__, (kind,), {**names, **methods})


def _as(instance: Any, kind: type, protocol: Any) -> Any:
    """Pickle and copy ``instance`` as one of its own class."""
    return copyreg.__newobj__, (kind,), instance.__dict__  # type: ignore[attr-defined]


class WorkSchedule:
    """A schedule stepped inside the loop counts work in steps at M0; one stepped outside (per epoch) is not changed.

    A number given to ``step`` outside the loop (ReduceLROnPlateau) becomes ``agreed`` among replicas. One given inside it is a position in
    epochs, ``epoch + i / n``: it is computed from work, because the script counts ``i`` from 0 again after a restart.
    """

    def __init__(
        self, schedule: Any, training: ReplicaTraining, agreed: Callable[[Any], float] = float
    ) -> None:
        #: Steps made inside the loop.
        self.taken = 0
        #: Steps between the script's position and ours; None: not known yet.
        self._offset: int | None = None
        self._known_positions = True
        self.schedule, self._training = schedule, training
        kind = type(schedule)

        @functools.wraps(kind.step)
        def step(instance: Any, *given: Any, **named: Any) -> Any:
            if instance is not schedule:  # a copy
                return kind.step(instance, *given, **named)
            if not training.inside:
                if given and _takes_metric(instance):
                    given = (agreed(given[0]), *given[1:])
                return kind.step(instance, *given, **named)
            due = training.schedule_steps_due if training.updating else 0
            while self.taken < due:
                self.taken += 1
                kind.step(instance, *self._position(given), **named)
            return None

        _replace_methods(schedule, step=step)

    def _position(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of ``step`` for M0-step number ``taken``."""
        per_epoch = self._training.steps_per_epoch
        if not given or not isinstance(given[0], (int, float)) or not self._known_positions:
            return given
        if self._offset is None:
            offset = given[0] * per_epoch - self.taken
            self._offset = round(offset)
            # -1: the index of the batch, from 0; 0: the next one's
            self._known_positions = self._offset in (-1, 0) and abs(offset - self._offset) < 0.01
        if not self._known_positions:
            return given
        return ((self.taken + self._offset) / per_epoch, *given[1:])

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint."""
        return {"taken": self.taken, "schedule": self.schedule.state_dict(), "offset": self._offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self.taken, self._offset = state["taken"], state.get("offset")
        self.schedule.load_state_dict(state["schedule"])


def _takes_metric(schedule: Any) -> bool:
    return hasattr(schedule, "patience") and hasattr(schedule, "num_bad_epochs")


class WorkAverage:
    """An average of parameters (EMA, SWA) updated inside the loop advances with work in steps at M0, as a schedule does.

    Without that it would advance in every backward pass, and less often where a batch has grown.
    """

    def __init__(self, average: Any, training: ReplicaTraining) -> None:
        self.taken = 0
        self.average = average
        kind, name = type(average), average_method(average)
        original = getattr(kind, name)

        @functools.wraps(original)
        def update(instance: Any, *given: Any, **named: Any) -> Any:
            if instance is not average or not training.inside:
                return original(instance, *given, **named)
            due = training.schedule_steps_due if training.updating else 0
            while self.taken < due:
                self.taken += 1
                original(instance, *given, **named)
            return None

        _replace_methods(average, **{name: update})

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint."""
        return {"taken": self.taken, "average": self.average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self.taken = state["taken"]
        self.average.load_state_dict(state["average"])


def average_method(candidate: Any) -> str:
    """The method that updates an average of parameters; empty if the object is none."""
    if not hasattr(candidate, "state_dict"):
        return ""
    return next(
        (name for name in ("update_parameters", "update") if callable(getattr(candidate, name, None))), ""
    )


def hook_scaler(scaler: Any, training: ReplicaTraining) -> None:
    """Make a GradScaler do nothing between accumulation passes: there is no gradient to check."""
    for name in ("step", "update", "unscale_"):
        original = getattr(scaler, name)

        def only_updating(*given: Any, _original: Any = original, _name: str = name, **named: Any) -> Any:
            if not training.updating:
                return None
            if _name == "step":
                training.scaler_stepped_at = training.ledger.step
            return _original(*given, **named)

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
