"""Learning-rate rules: how the rate follows the batch size. One file per rule; pass a name or an instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from coadapt.errors import UnknownNameError
from coadapt.plugins import RATE_RULES
from coadapt.torch.rates._base import Progress, RateRule
from coadapt.torch.rates.adascale import AdaScale
from coadapt.torch.rates.square_root import SquareRoot

if TYPE_CHECKING:
    # for type checkers, which do not see ``__getattr__``; a new rule need not be here
    from coadapt.torch.rates.legw import Legw as Legw
    from coadapt.torch.rates.linear import Linear as Linear
    from coadapt.torch.rates.unscaled import Unscaled as Unscaled

__all__ = ["AdaScale", "Progress", "RateRule", "SquareRoot", "adaptive", "rule_for"]


#: Optimizers whose step is proportional to the gradients.
_PROPORTIONAL = frozenset(["sgd", "asgd", "momentumsgd", "sgdp", "nesterov"])


def rule_for(rule: str | RateRule, optimizer: Optimizer) -> RateRule:
    """The rule of a name; "auto": AdaScale for SGD, the square root for optimizers that divide by the gradient's size."""
    if not isinstance(rule, str):
        return rule
    if rule == "auto":
        return SquareRoot() if adaptive(optimizer) else AdaScale()
    if rule not in RATE_RULES:
        raise UnknownNameError(RATE_RULES.kind, rule, [*RATE_RULES, "auto"])
    made: RateRule = RATE_RULES.make(rule)
    return made


def adaptive(optimizer: Optimizer) -> bool:
    """Whether the step of the optimizer does not grow with the gradient: all that are not SGD.

    AdaScale is derived for steps that are proportional to the gradient. That Adafactor, Lion, Muon and the like divide by its size or
    take its sign is not seen by their names, so that only what is known to be proportional counts.
    """
    names = {kind.__name__.lower() for kind in type(optimizer).__mro__}
    return not names & _PROPORTIONAL


def __getattr__(name: str) -> Any:
    return RATE_RULES.exported(name, __name__)
