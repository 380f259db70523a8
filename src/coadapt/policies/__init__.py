"""Scheduling policies, one module each: they decide how many GPUs each job gets.

The contract is imported with the package; a policy is imported when it is first asked for, by its name
(``plugins.POLICIES``) or as an attribute of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coadapt.plugins import POLICIES
from coadapt.policies._base import BasePolicy, Curves, Memory, Policy, Proposal, Rng, Traits, traits_of

if TYPE_CHECKING:
    # for type checkers, which do not see ``__getattr__``; a new policy need not be here
    from coadapt.policies.coadapt.policy import CoadaptPolicy as CoadaptPolicy
    from coadapt.policies.fair_share import FairSharePolicy as FairSharePolicy
    from coadapt.policies.fifo import FifoPolicy as FifoPolicy
    from coadapt.policies.optimus import OptimusPolicy as OptimusPolicy
    from coadapt.policies.pollux.policy import PolluxPolicy as PolluxPolicy
    from coadapt.policies.recorded import RecordedPolicy as RecordedPolicy
    from coadapt.policies.sia import SiaPolicy as SiaPolicy
    from coadapt.policies.srtf import SrtfPolicy as SrtfPolicy
    from coadapt.policies.tiresias import TiresiasPolicy as TiresiasPolicy

__all__ = ["BasePolicy", "Curves", "Memory", "Policy", "Proposal", "Rng", "Traits", "traits_of"]


def __getattr__(name: str) -> Any:
    return POLICIES.exported(name, __name__)
