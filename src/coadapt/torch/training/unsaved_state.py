"""State of a script that no checkpoint contains: schedules, copies of the model that change, and numbers that its loop counts.

Looked for among the objects that refer to the optimizer, the modules of the model's class, and the variables of the function that
holds the loop. What is found is refused in one line, except variables: a counter may matter or not, so that is a warning.
"""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from coadapt.errors import InputError
from coadapt.torch.training import script_frames
from coadapt.torch.training.replica_guard import checksums

log = logging.getLogger("coadapt.torch")
#: Variables that change in every loop and are set anew by it.
_NUMBERS = (int, float)


def check_schedules(optimizer: Optimizer, known: Collection[int]) -> None:
    """Raise an error if an object steps the learning rate of ``optimizer`` and is not among the ids in ``known``."""
    found = {}
    for referrer in gc.get_referrers(optimizer):
        owners = [referrer]
        if isinstance(referrer, dict):
            owners = [o for o in gc.get_referrers(referrer) if getattr(o, "__dict__", None) is referrer]
        for owner in owners:
            if _is_schedule(owner, optimizer):
                found[id(owner)] = owner
    inner = {id(part) for owner in found.values() for part in getattr(owner, "_schedulers", ())}
    for known_id in known:
        if known_id in found:
            inner |= {id(part) for part in getattr(found[known_id], "_schedulers", ())}
    for number, owner in found.items():
        if number not in known and number not in inner:
            raise InputError(
                f"a {type(owner).__name__} changes the learning rate and is not known to the job: it would begin again after a restart; "
                "pass it: job.prepare(model, optimizer, schedule)"
            )


def _is_schedule(owner: Any, optimizer: Optimizer) -> bool:
    # not hasattr: it would run properties of foreign objects
    kind, own = type(owner), getattr(owner, "__dict__", None)
    named = isinstance(own, dict) and own.get("optimizer") is optimizer
    return named and callable(getattr(kind, "step", None)) and callable(getattr(kind, "state_dict", None))


class ModelCopies:
    """Modules of the class of ``model`` that are not part of it: averages of parameters, target networks, teachers."""

    def __init__(self, model: nn.Module) -> None:
        own = {id(part) for part in model.modules()}
        shapes = [p.shape for p in model.parameters()]
        self._copies: list[tuple[weakref.ref[nn.Module], list[int]]] = []
        for candidate in gc.get_objects():
            if type(candidate) is not type(model) or id(candidate) in own:
                continue
            if [p.shape for p in candidate.parameters()] == shapes:
                self._copies.append((weakref.ref(candidate), _signature(candidate)))

    def check(self, saved: Collection[int]) -> None:
        """Raise an error if a copy has changed whose id is not in ``saved``."""
        for reference, signature in self._copies:
            copy = reference()
            if copy is None or id(copy) in saved:
                continue
            if _signature(copy) != signature:
                raise InputError(
                    f"a copy of the model ({type(copy).__name__}) changes in the loop and is in no checkpoint: pass an average of parameters "
                    'to job.prepare(model, optimizer, average), another model to job.save_with("name", other)'
                )


def _signature(model: nn.Module) -> list[int]:
    """Numbers that change with the parameters: how often each was written, and the bits of small ones, which may be written through ``.data``."""
    parameters = list(model.parameters())
    small = sorted(parameters, key=lambda p: p.numel())[:2]
    return [*(p._version for p in parameters), *checksums(small)]


class ScriptVariables:
    """Numbers that the function with the loop had before it and changes in it."""

    def __init__(self, frame: FrameType | None) -> None:
        self._frame = frame
        self._before = self._numbers()
        self._told = False

    @staticmethod
    def of_caller() -> ScriptVariables:
        """Those of the script's function that calls our code."""
        return ScriptVariables(script_frames.script_frame(sys._getframe(1)))

    def changed(self) -> dict[str, float]:
        """Values of those that have changed since the loop began."""
        return {n: v for n, v in self._numbers().items() if n in self._before and v != self._before[n]}

    def tell(self) -> None:
        """Log once which numbers change."""
        found = self.changed()
        if found and not self._told:
            self._told = True
            log.warning(
                "%s: %s change in the loop and begin again after a restart; what matters belongs in job.state (a dict that "
                "comes back) or is job.step",
                self._where(),
                ", ".join(sorted(found)),
            )

    def check_restart(self, saved: Mapping[str, float]) -> None:
        """Log which of the numbers that had changed in the run before have begun again."""
        lost = sorted(n for n, v in saved.items() if n in self._before and self._before[n] != v)
        if lost:
            self._told = True
            log.warning(
                "%s: after the restart %s begin again (%s was %g): keep them in job.state",
                self._where(),
                ", ".join(lost),
                lost[0],
                saved[lost[0]],
            )

    def _numbers(self) -> dict[str, float]:
        if self._frame is None:
            return {}
        found = self._frame.f_locals
        return {
            name: value
            for name, value in list(found.items())
            if type(value) in _NUMBERS and not name.startswith("_")
        }

    def _where(self) -> str:
        assert self._frame is not None
        return Path(self._frame.f_code.co_filename).name


class LostCounter:
    """Finds a learning rate that the script sets by a counter of its own, which begins again after a restart.

    The rates of the first steps are part of the checkpoint. If the first step after a restart has the rate of the very first one, and
    the last step before it had another, the script has counted from 0 again.
    """

    def __init__(self, rates: Callable[[], list[float]]) -> None:
        self._rates = rates
        self._first: list[float] | None = None
        self._last: list[float] | None = None
        self._resumed = False

    def after_step(self) -> None:
        """A step was made."""
        now = self._rates()
        if self._resumed:
            self._resumed = False
            if now == self._first and now != self._last:
                raise InputError(
                    f"after the restart the learning rate is {now[0]:g}, as in the very first step, and was {(self._last or now)[0]:g}: the script "
                    "computes it from a counter of its own; compute it from job.step, which continues"
                )
        self._first = now if self._first is None else self._first

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint."""
        return {"first": self._first, "last": self._rates()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state: the next step is the first after a restart."""
        self._first, self._last, self._resumed = state["first"], state["last"], state["first"] is not None
