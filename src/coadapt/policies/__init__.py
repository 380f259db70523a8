"""Who gets how much: one file per policy."""

from coadapt.policies._base import Curves, Memory, Policy, Proposal, Rng
from coadapt.policies.coadapt import CoadaptPolicy
from coadapt.policies.fair_share import FairSharePolicy
from coadapt.policies.fifo import FifoPolicy
from coadapt.policies.optimus import OptimusPolicy
from coadapt.policies.recorded import RecordedPolicy
from coadapt.policies.sia import SiaPolicy
from coadapt.policies.srtf import SrtfPolicy
from coadapt.policies.tiresias import TiresiasPolicy

__all__ = [
    "CoadaptPolicy",
    "Curves",
    "FairSharePolicy",
    "FifoPolicy",
    "Memory",
    "OptimusPolicy",
    "Policy",
    "Proposal",
    "RecordedPolicy",
    "Rng",
    "SiaPolicy",
    "SrtfPolicy",
    "TiresiasPolicy",
]
