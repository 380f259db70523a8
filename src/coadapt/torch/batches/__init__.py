"""Batch rules: which batch size a job has. One file per idea; pass a name or an instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coadapt.plugins import BATCH_RULES
from coadapt.torch.batches._base import BatchRule, Chosen, Situation

if TYPE_CHECKING:
    # for type checkers, which do not see ``__getattr__``; a new rule need not be here
    from coadapt.torch.batches.adabatch import AdaBatch as AdaBatch
    from coadapt.torch.batches.cabs import Cabs as Cabs
    from coadapt.torch.batches.fixed import Fixed as Fixed
    from coadapt.torch.batches.fixed import PerGpu as PerGpu
    from coadapt.torch.batches.goodput import Goodput as Goodput
    from coadapt.torch.batches.lb_bsp import LoadBalanced as LoadBalanced

__all__ = ["BatchRule", "Chosen", "Situation", "batch_rule"]


def batch_rule(rule: str | BatchRule) -> BatchRule:
    """The rule of a name, or the instance itself."""
    if not isinstance(rule, str):
        return rule
    made: BatchRule = BATCH_RULES.make(rule)
    return made


def __getattr__(name: str) -> Any:
    return BATCH_RULES.exported(name, __name__)
