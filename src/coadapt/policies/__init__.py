"""Who gets how much: one file per policy."""

from coadapt.policies._base import Curves, Memory, Policy, Proposal, Rng
from coadapt.policies.fifo import FifoPolicy

__all__ = ["Curves", "FifoPolicy", "Memory", "Policy", "Proposal", "Rng"]
