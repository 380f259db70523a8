"""The contract of a policy, and the allocation of a job whose size the policy does not choose.

``Policy`` is the protocol that the scheduler needs; any object that has its attributes and ``decide`` will do.
``BasePolicy`` adds the optional traits with their defaults; the scheduler reads them by ``traits_of``, so that
classes without them work too.

The scheduler calls ``decide`` when an event calls for a decision, never concurrently. A policy is pure: the same
snapshot, curves, memory and generator give the same proposal, and it keeps nothing between calls but what it returns.
``memory`` is plain data, written into the log key by key as it changes. ``warm`` is a warm start (Pollux'
population): it is kept in the process and not in the log, and is gone after a restart, so a policy must work without
it.

Policies that do not choose sizes give a job what its user asked for (``as_requested``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from coadapt.model import Allocation, Forecast, JobSpec, Placement, Reason, Share, workers
from coadapt.model.snapshot import Snapshot
from coadapt.prediction.step_time import DEFAULT_MODEL

if TYPE_CHECKING:
    import numpy as np

    from coadapt.configure import Curve
    from coadapt.prediction.step_time._base import StepTimeModel

#: Makes the decision's own generator, seeded by (seed, decision number); a policy that draws nothing never calls it.
Rng = Callable[[], "np.random.Generator"]
Curves = Mapping[str, "Curve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The state that a policy keeps between decisions."""

    kept: Mapping[str, Any] = field(default_factory=dict)
    warm: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Changes only: a job that is not named keeps its target; an empty allocation takes it away.

    A policy that must choose places itself puts its jobs into ``placements`` instead of
    ``allocations``. Where there are both, the placer finds places for the others beside them; a job whose nodes a placement
    takes is named in ``allocations``, also with what it has, and is placed again.
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
    """A scheduling policy: decides how many GPUs each job gets."""

    #: Name of the placer used unless the user chooses another.
    placer: str
    #: True if agents choose their batch sizes under this policy; else jobs train with the batch size
    #: their users asked for.
    adapts_batch: bool
    #: True if the policy gives elastic jobs other sizes than their users asked for.
    chooses_size: bool

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """Proposes the changes to make now.

        Args:
            snapshot: read-only view of jobs, nodes and quotas at this moment.
            curves: scaling curve of each active job, by job id.
            memory: what the policy returned earlier: ``kept`` from the log and ``warm`` from this process.
            rng: makes the random generator of this decision; the same decision always gets the same generator.
        """


class Traits(NamedTuple):
    """Optional attributes of a policy beyond ``Policy``, with their defaults."""

    #: The step-time model, by name or an instance, that its curves and the agents of its jobs use.
    step_time_model: str | StepTimeModel = DEFAULT_MODEL
    #: True if it keeps to ``snapshot.quotas`` itself; others are held to them (``scheduler.quotas``).
    knows_quotas: bool = False
    #: Placer in the setting of the papers (``--pollux-setup``); None: ``placer``.
    published_placer: str | None = None
    #: True if it is to see the true curves of a simulation, known from the start.
    wants_truth: bool = False
    #: True if it may put several jobs on the same GPUs.
    shares_gpus: bool = False


_DEFAULTS = Traits()


def traits_of(policy: Policy) -> Traits:
    """Returns the traits of ``policy``, with defaults for those it does not define."""
    said: Any = policy
    return Traits(
        step_time_model=getattr(said, "step_time_model", _DEFAULTS.step_time_model),
        knows_quotas=getattr(said, "knows_quotas", _DEFAULTS.knows_quotas),
        published_placer=getattr(said, "published_placer", _DEFAULTS.published_placer),
        wants_truth=getattr(said, "wants_truth", _DEFAULTS.wants_truth),
        shares_gpus=getattr(said, "shares_gpus", _DEFAULTS.shares_gpus),
    )


class BasePolicy:
    """Base class of policies that are found by name; ``plugins`` documents its class attributes."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    order: ClassVar[int]
    help: ClassVar[str] = ""
    option_help: ClassVar[dict[str, str]] = {}

    placer: str = "packed"
    adapts_batch: bool = False
    chooses_size: bool = False
    step_time_model: str | StepTimeModel = _DEFAULTS.step_time_model
    knows_quotas: bool = _DEFAULTS.knows_quotas
    published_placer: str | None = _DEFAULTS.published_placer
    wants_truth: bool = _DEFAULTS.wants_truth
    shares_gpus: bool = _DEFAULTS.shares_gpus


def gpus_needed(spec: JobSpec) -> int:
    """GPUs at the requested size, over all roles."""
    if len(spec.roles) == 1:
        return spec.requested * spec.roles[0].demand.gpus
    return spec.requested_gpus + sum(role.min * role.demand.gpus for role in spec.roles[1:])


def as_requested(spec: JobSpec, gpu_type: str = "") -> Allocation:
    """Returns the requested workers, and the minimum of every other role, as an allocation."""
    if len(spec.roles) == 1:
        return _workers(spec.requested, gpu_type)
    others = tuple(Share(count=role.min, role=role.name) for role in spec.roles[1:] if role.min)
    return Allocation(shares=(*_workers(spec.requested, gpu_type).shares, *others))


@lru_cache(maxsize=4096)
def _workers(count: int, gpu_type: str) -> Allocation:
    # a trace of a million jobs has a dozen sizes
    return workers(count, gpu_type)
