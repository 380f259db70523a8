"""The contract of a policy: who gets how much.

The scheduler calls ``decide`` when something happened that calls for a decision, never concurrently.
A policy is pure: the same snapshot, curves, memory and generator give the same proposal; it keeps
nothing between calls but what it returns. ``memory`` is plain data, written into the log key by key as
it changes. ``warm`` is a mere warm start (Pollux' population): kept in the process, not in the log,
gone after a restart; a policy must do without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from coadapt.configure import Curve
from coadapt.model import Allocation, Forecast, Placement, Reason
from coadapt.model.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np

#: Makes the decision's own generator, seeded by (seed, decision number); a policy that draws nothing never calls it.
Rng = Callable[[], "np.random.Generator"]
Curves = Mapping[str, Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the policy told the scheduler to remember."""

    kept: Mapping[str, Any] = field(default_factory=dict)
    warm: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Changes only: a job that is not named keeps its target; an empty allocation takes it away.

    A policy that must choose places itself puts its jobs into ``placements`` instead of
    ``allocations``; the placer then only checks them.
    """

    allocations: Mapping[str, Allocation] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    #: Jobs that no placer is to move, to make room for others.
    fixed: frozenset[str] = frozenset()
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    #: Keys of ``Memory.kept`` that changed; None removes a key.
    memory: Mapping[str, Any] = field(default_factory=dict)
    warm: Any = None
    wake_at: float | None = None
    price: Mapping[str, float] = field(default_factory=dict)
    #: When jobs are expected to end, where that is news; kept in the log and compared with what comes.
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)


class Policy(Protocol):
    """One way of sharing the cluster."""

    #: Name of the placer used unless the user chooses another.
    placer: str
    #: True if agents choose their batch sizes under this policy; else jobs train with the batch size
    #: their users asked for.
    adapts_batch: bool
    #: True if the policy gives elastic jobs other sizes than their users asked for.
    chooses_size: bool
    # A policy reproduced as published may say ``predictor = "published"``: curves and agents then use the step-time
    # model it was published with, else the product's.
    # One that keeps to ``snapshot.quotas`` itself says ``knows_quotas = True``; the others are held to them (``scheduler.quotas``).

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Proposes what should change now."""
