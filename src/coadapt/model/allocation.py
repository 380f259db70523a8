"""How much a job gets (Allocation) and where (Placement)."""

from __future__ import annotations

from coadapt.model._base import Fact
from coadapt.model.job_spec import WORKER, JobSpec


class Share(Fact, frozen=True):
    """So many replicas of a role on GPUs of a type ("" = whichever the placer finds)."""

    count: int
    role: str = WORKER
    gpu_type: str = ""


class Allocation(Fact, frozen=True):
    """Counts per role and GPU type; all-reduce is the case with one role."""

    shares: tuple[Share, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shares)

    @property
    def workers(self) -> int:
        """Number of replicas that train."""
        return sum(share.count for share in self.shares if share.role == WORKER)


def workers(count: int, gpu_type: str = "") -> Allocation:
    """``count`` workers; zero is the empty allocation."""
    return Allocation(shares=(Share(count=count, gpu_type=gpu_type),)) if count else Allocation()


class Slot(Fact, frozen=True):
    """Replicas of one role on one node.

    Where a policy shares GPUs, slots of several jobs on one node have the same ``group``: they use the same GPUs, equally
    many each, and their ``share`` sums to at most 1. A slot without a group has its GPUs for itself.
    """

    node: str
    replicas: int
    gpu_type: str = "gpu"
    role: str = WORKER
    share: float = 1.0
    group: str = ""


class Placement(Fact, frozen=True):
    """Where a job runs: slots in the order of the cluster's nodes; empty: nowhere."""

    slots: tuple[Slot, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.slots)

    @property
    def replicas(self) -> int:
        """Number of workers, over all nodes."""
        return sum(slot.replicas for slot in self.slots if slot.role == WORKER)

    @property
    def nodes(self) -> int:
        """Number of distinct nodes that hold a worker."""
        return len({slot.node for slot in self.slots if slot.role == WORKER})

    @property
    def gpu_type(self) -> str:
        """The type of the first worker's GPU; "" for the empty placement."""
        return next((slot.gpu_type for slot in self.slots if slot.role == WORKER), "")

    @property
    def shape(self) -> tuple[int, ...]:
        """Workers per node, in node order."""
        return tuple(slot.replicas for slot in self.slots if slot.role == WORKER)

    @property
    def shared(self) -> bool:
        """True if others may use some of its GPUs."""
        return any(slot.group for slot in self.slots)

    def count(self, role: str) -> int:
        """Returns the number of replicas of a role."""
        return sum(slot.replicas for slot in self.slots if slot.role == role)


NOWHERE = Placement()


def gpus_of(placement: Placement, spec: JobSpec) -> int:
    """Returns the number of GPUs that ``placement`` of the job takes."""
    total = 0
    for slot in placement.slots:
        total += slot.replicas * spec.role(slot.role).demand.gpus
    return total


def charged_gpus(placement: Placement, spec: JobSpec) -> float:
    """Returns the GPUs that a job is charged for: shared ones count by its share."""
    if not placement.shared:
        return gpus_of(placement, spec)
    return sum(slot.replicas * spec.role(slot.role).demand.gpus * slot.share for slot in placement.slots)


def union(before: Placement, after: Placement) -> Placement:
    """Returns what a job holds during a resize: the slots of both placements, the larger count where both have one."""
    slots = {(slot.node, slot.role, slot.group): slot for slot in after.slots}
    larger = False
    for slot in before.slots:
        known = slots.get((slot.node, slot.role, slot.group))
        if known is None or known.replicas < slot.replicas:
            slots[slot.node, slot.role, slot.group] = slot
            larger = True
    return Placement(slots=tuple(slots.values())) if larger else after


def _same_demands(one: JobSpec, other: JobSpec) -> bool:
    """Whether replicas of both take the same from a node: what is held and promised stays right."""
    return [(role.name, role.demand) for role in one.roles] == [
        (role.name, role.demand) for role in other.roles
    ]
