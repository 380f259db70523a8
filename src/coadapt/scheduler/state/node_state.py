"""One node inside the scheduler's state: its resources, and how much of them is held and promised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coadapt.errors import InvariantError
from coadapt.model import JobSpec, Node, Placement, Resources, Slot

#: Amounts other than GPUs are floats: sums of what comes and goes are only this exact.
_ROUNDING = 1 + 1e-9


class Needs:
    """GPUs and other amounts, added up by node."""

    __slots__ = ("gpus", "other")

    def __init__(self) -> None:
        self.gpus: dict[str, int] = {}
        self.other: dict[str, dict[str, float]] = {}

    def add(self, slots: Iterable[Slot], spec: JobSpec, sign: int = 1) -> None:
        """Adds (or takes away) what the slots' replicas need."""
        for slot in slots:
            demand = spec.role(slot.role).demand
            self.gpus[slot.node] = self.gpus.get(slot.node, 0) + sign * slot.replicas * demand.gpus
            if demand.only_gpus():
                continue
            for name, amount in demand.others(slot.replicas):
                amounts = self.other.setdefault(slot.node, {})
                amounts[name] = amounts.get(name, 0.0) + sign * amount


class NodeState:
    """Implements ``model.snapshot.NodeView``.

    ``held`` counts what processes occupy, ``promised`` what targets ask for; they differ while
    actions are under way. GPUs are plain integers, everything else goes by name.
    """

    __slots__ = (
        "drained",
        "held",
        "held_other",
        "node",
        "promised",
        "promised_other",
        "shrunk",
        "until",
        "up",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.up = True
        self.drained = False
        #: When the node is taken away; None: it stays.
        self.until: float | None = None
        #: True while it holds more than it has, because it came back smaller than it was.
        self.shrunk = False
        self.held = 0
        self.promised = 0
        self.held_other: dict[str, float] = {}
        self.promised_other: dict[str, float] = {}

    @property
    def open(self) -> bool:
        """True if the node takes replicas."""
        return self.up and not self.drained

    def hold(self, slot: Slot, spec: JobSpec, sign: int) -> None:
        """Processes take (sign 1) or leave (-1) the slot."""
        demand = spec.role(slot.role).demand
        self.held += sign * slot.replicas * demand.gpus
        if not demand.only_gpus():
            for name, amount in demand.others(slot.replicas):
                self.held_other[name] = self.held_other.get(name, 0.0) + sign * amount
        if self.shrunk and sign < 0:
            self.shrunk = not self.has_free(0, {})

    def promise(self, slot: Slot, spec: JobSpec, sign: int) -> None:
        """Adds or removes a slot of a target."""
        demand = spec.role(slot.role).demand
        self.promised += sign * slot.replicas * demand.gpus
        if not demand.only_gpus():
            for name, amount in demand.others(slot.replicas):
                self.promised_other[name] = self.promised_other.get(name, 0.0) + sign * amount

    def has_free(self, gpus: int, other: Mapping[str, float]) -> bool:
        """Whether so much is free of processes right now."""
        if self.held + gpus > self.node.gpus:
            return False
        return self._bears(self.held_other, other)

    def can_promise(self, demand: Resources, replicas: int) -> bool:
        """Whether CPU, memory and extras allow so many more replicas (GPUs are counted by the caller)."""
        return demand.only_gpus() or self._bears(self.promised_other, dict(demand.others(replicas)))

    def check_promised(self, gpus: int = 0, other: Mapping[str, float] | None = None) -> None:
        """No more is promised than the node has, even if so much is added."""
        total = self.promised + gpus
        if total > self.node.gpus or total < 0:
            raise InvariantError(f"{total} of {self.node.gpus} GPUs promised on node {self.node.name}")
        if not self._bears(self.promised_other, other or {}):
            raise InvariantError(f"{self.promised_other} and {other or {}} promised on node {self.node.name}")

    def would_bear(self, node: Node) -> bool:
        """Whether everything promised here would still be right if the node were like ``node``."""
        after = NodeState(node)
        if node.gpu_type != self.node.gpu_type or self.promised > node.gpus:
            return False
        return after._bears(self.promised_other, {})

    def _bears(self, used: Mapping[str, float], more: Mapping[str, float]) -> bool:
        if not used and not more:
            return True
        return all(
            used.get(name, 0.0) + more.get(name, 0.0) <= self.node.limit(name) * _ROUNDING + 1e-9
            for name in {**used, **more}
        )


def touches(placement: Placement, node: str) -> bool:
    """Whether any of the slots is on the node."""
    return any(slot.node == node for slot in placement.slots)
