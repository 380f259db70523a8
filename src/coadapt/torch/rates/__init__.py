"""Learning-rate rules: how the rate follows the batch size. One file per rule; pass a name or an instance."""

from __future__ import annotations

from collections.abc import Callable

from torch.optim import Optimizer

from coadapt.errors import UnknownNameError
from coadapt.torch.rates._base import Progress, RateRule
from coadapt.torch.rates.adascale import AdaScale
from coadapt.torch.rates.legw import Legw
from coadapt.torch.rates.linear import Linear
from coadapt.torch.rates.square_root import SquareRoot
from coadapt.torch.rates.unscaled import Unscaled

RULES: dict[str, Callable[[], RateRule]] = {
    "adascale": AdaScale,
    "sqrt": SquareRoot,
    "linear": Linear,
    "legw": Legw,
    "none": Unscaled,
}


def rule_for(rule: str | RateRule, optimizer: Optimizer) -> RateRule:
    """The rule of a name; "auto": AdaScale for SGD, the square root for optimizers that divide by the gradient's size."""
    if not isinstance(rule, str):
        return rule
    if rule == "auto":
        return SquareRoot() if adaptive(optimizer) else AdaScale()
    if rule not in RULES:
        raise UnknownNameError("learning-rate rule", rule, [*RULES, "auto"])
    return RULES[rule]()


def adaptive(optimizer: Optimizer) -> bool:
    """Whether the optimizer keeps second moments, as Adam does."""
    names = {kind.__name__.lower() for kind in type(optimizer).__mro__}
    return any("adam" in name or name in ("rmsprop", "adagrad", "adadelta", "lamb") for name in names)


__all__ = [
    "RULES",
    "AdaScale",
    "Legw",
    "Linear",
    "Progress",
    "RateRule",
    "SquareRoot",
    "Unscaled",
    "adaptive",
    "rule_for",
]
