"""Batch rules: which batch size a job has. One file per idea; pass a name or an instance."""

from __future__ import annotations

from collections.abc import Callable

from coadapt.errors import UnknownNameError
from coadapt.torch.batches._base import BatchRule, Chosen, Situation
from coadapt.torch.batches.adabatch import AdaBatch
from coadapt.torch.batches.cabs import Cabs
from coadapt.torch.batches.fixed import Fixed, PerGpu
from coadapt.torch.batches.goodput import Goodput
from coadapt.torch.batches.lb_bsp import LoadBalanced

RULES: dict[str, Callable[[], BatchRule]] = {
    "adaptive": Goodput,
    "fixed": Fixed,
    "per-gpu": PerGpu,
    "adabatch": AdaBatch,
    "cabs": Cabs,
    "lb-bsp": LoadBalanced,
}


def batch_rule(rule: str | BatchRule) -> BatchRule:
    """The rule of a name, or the instance itself."""
    if not isinstance(rule, str):
        return rule
    if rule not in RULES:
        raise UnknownNameError("batch rule", rule, RULES)
    return RULES[rule]()


__all__ = [
    "RULES",
    "AdaBatch",
    "BatchRule",
    "Cabs",
    "Chosen",
    "Fixed",
    "Goodput",
    "LoadBalanced",
    "PerGpu",
    "Situation",
    "batch_rule",
]
