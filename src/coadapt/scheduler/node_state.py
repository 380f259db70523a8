"""One node inside the scheduler's state: what it has, what is held, what is promised."""

from __future__ import annotations

from collections.abc import Iterator

from coadapt.errors import InvariantError
from coadapt.model import JobSpec, Node, Resources, Slot


def _amounts(node: Node) -> dict[str, float]:
    """The node's limited resources other than GPUs."""
    limited = {"cpus": node.cpus, "memory_bytes": node.memory_bytes, **node.extras}
    return {name: amount for name, amount in limited.items() if amount is not None}


def _needs(demand: Resources, replicas: float) -> Iterator[tuple[str, float]]:
    if demand.cpus:
        yield "cpus", demand.cpus * replicas
    if demand.memory_bytes:
        yield "memory_bytes", demand.memory_bytes * replicas
    for name, amount in demand.extras.items():
        yield name, amount * replicas


class NodeState:
    """Implements ``model.snapshot.NodeView``.

    ``held`` counts what processes occupy, ``promised`` what targets ask for; they differ while
    actions are under way. GPUs are plain integers, everything else goes by name.
    """

    __slots__ = ("drained", "held", "held_other", "node", "promised", "promised_other", "up")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.up = True
        self.drained = False
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
        for name, amount in _needs(demand, slot.replicas):
            self.held_other[name] = self.held_other.get(name, 0.0) + sign * amount

    def promise(self, slot: Slot, spec: JobSpec, sign: int) -> None:
        """A target takes or leaves the slot."""
        demand = spec.role(slot.role).demand
        self.promised += sign * slot.replicas * demand.gpus
        for name, amount in _needs(demand, slot.replicas):
            self.promised_other[name] = self.promised_other.get(name, 0.0) + sign * amount

    def has_free(self, slot: Slot, spec: JobSpec) -> bool:
        """Whether the slot is free of processes right now."""
        demand = spec.role(slot.role).demand
        if not self.up or self.held + slot.replicas * demand.gpus > self.node.gpus:
            return False
        return self._other_fits(self.held_other, demand, slot.replicas)

    def can_promise(self, demand: Resources, replicas: int) -> bool:
        """Whether CPU, memory and extras allow so many more replicas (GPUs are counted by the caller)."""
        return demand.only_gpus() or self._other_fits(self.promised_other, demand, replicas)

    def _other_fits(self, used: dict[str, float], demand: Resources, replicas: int) -> bool:
        if demand.only_gpus():
            return True
        limits = _amounts(self.node)
        for name, amount in _needs(demand, replicas):
            if name in demand.extras and name not in limits:
                return False
            if name in limits and used.get(name, 0.0) + amount > limits[name] * (1 + 1e-12):
                return False
        return True

    def check_promised(self) -> None:
        """No more is promised than the node has."""
        if self.promised > self.node.gpus or self.promised < 0:
            raise InvariantError(f"{self.promised} of {self.node.gpus} GPUs promised on node {self.node.name}")
        limits = _amounts(self.node)
        for name, amount in self.promised_other.items():
            if name in limits and amount > limits[name] * (1 + 1e-9) + 1e-9:
                raise InvariantError(f"{amount} of {limits[name]} {name} promised on node {self.node.name}")
