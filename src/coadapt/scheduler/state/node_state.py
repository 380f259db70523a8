"""One node inside the scheduler's state: its resources, and how much of them is held and promised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from coadapt.errors import InvariantError
from coadapt.model import JobSpec, Node, Placement, Resources, Slot

#: Amounts other than GPUs are floats: sums of what comes and goes are only this exact.
_ROUNDING = 1 + 1e-9


class Group(NamedTuple):
    """Slots that share GPUs: how many there are, the GPUs they share, and the sum of their shares."""

    members: int
    gpus: int
    share: float

    def plus(self, other: Group) -> Group:
        """The group with ``other`` slots more, or less where their number is negative."""
        gpus = self.gpus if self.members else other.gpus
        if self.members and other.members and gpus != other.gpus:
            raise InvariantError(f"slots that share GPUs have {gpus} and {other.gpus} of them")
        return Group(self.members + other.members, gpus, self.share + other.share)


#: Changes of the groups of one node, by name.
Groups = dict[str, Group]
_NO_GROUP = Group(0, 0, 0.0)
_NO_GROUPS: Mapping[str, Group] = {}


def add_slots(groups: Groups, name: str, more: Group) -> int:
    """Adds slots to a group of a node; returns by how much the number of GPUs in use changes."""
    before = groups.get(name, _NO_GROUP)
    after = before.plus(more)
    if after.members:
        groups[name] = after
    else:
        groups.pop(name, None)
    return _gpus(after) - _gpus(before)


def more_gpus(groups: Groups, more: Mapping[str, Group]) -> int:
    """GPUs that a node with these groups would have to give more for the changes."""
    changed = [(groups.get(name, _NO_GROUP), group) for name, group in more.items()]
    return sum(_gpus(before.plus(group)) - _gpus(before) for before, group in changed)


def within_shares(groups: Groups, more: Mapping[str, Group] = _NO_GROUPS) -> bool:
    """Whether no group gives more than the whole of its GPUs, even after the changes."""
    changed = {name: groups.get(name, _NO_GROUP).plus(group) for name, group in more.items()}
    return all(group.share <= _ROUNDING for group in {**groups, **changed}.values())


def _gpus(group: Group) -> int:
    return group.gpus if group.members > 0 else 0


class Needs:
    """GPUs and other amounts, added up by node; shared GPUs apart, by group."""

    __slots__ = ("gpus", "other", "shared")

    def __init__(self) -> None:
        self.gpus: dict[str, int] = {}
        self.other: dict[str, dict[str, float]] = {}
        self.shared: dict[str, Groups] = {}

    def total(self, node: str) -> int:
        """GPUs needed on the node where nothing else is there."""
        return self.gpus.get(node, 0) + sum(_gpus(group) for group in self.shared.get(node, {}).values())

    def add(self, slots: Iterable[Slot], spec: JobSpec, sign: int = 1) -> None:
        """Adds (or takes away) what the slots' replicas need."""
        for slot in slots:
            demand = spec.role(slot.role).demand
            if slot.group:
                groups = self.shared.setdefault(slot.node, {})
                groups[slot.group] = groups.get(slot.group, _NO_GROUP).plus(as_group(slot, spec, sign))
            else:
                self.gpus[slot.node] = self.gpus.get(slot.node, 0) + sign * slot.replicas * demand.gpus
            if demand.only_gpus():
                continue
            for name, amount in demand.others(slot.replicas):
                amounts = self.other.setdefault(slot.node, {})
                amounts[name] = amounts.get(name, 0.0) + sign * amount


def as_group(slot: Slot, spec: JobSpec, sign: int = 1) -> Group:
    """Returns a slot that shares GPUs as a change of its group."""
    return Group(sign, slot.replicas * spec.role(slot.role).demand.gpus, sign * slot.share)


class NodeState:
    """Implements ``model.snapshot.NodeView``.

    ``held`` counts what processes occupy, ``promised`` what targets ask for; they differ while
    actions are under way. GPUs are plain integers, everything else goes by name.
    """

    __slots__ = (
        "drained",
        "held",
        "held_groups",
        "held_other",
        "node",
        "promised",
        "promised_groups",
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
        self.held_groups: Groups = {}
        self.promised_groups: Groups = {}

    @property
    def open(self) -> bool:
        """True if the node takes replicas."""
        return self.up and not self.drained

    def hold(self, slot: Slot, spec: JobSpec, sign: int) -> None:
        """Processes take (sign 1) or leave (-1) the slot."""
        demand = spec.role(slot.role).demand
        if slot.group:
            self.held += add_slots(self.held_groups, slot.group, as_group(slot, spec, sign))
        else:
            self.held += sign * slot.replicas * demand.gpus
        if not demand.only_gpus():
            for name, amount in demand.others(slot.replicas):
                self.held_other[name] = self.held_other.get(name, 0.0) + sign * amount
        if self.shrunk and sign < 0:
            self.shrunk = not self.has_free(0, {})

    def promise(self, slot: Slot, spec: JobSpec, sign: int) -> None:
        """Adds or removes a slot of a target."""
        demand = spec.role(slot.role).demand
        if slot.group:
            self.promised += add_slots(self.promised_groups, slot.group, as_group(slot, spec, sign))
        else:
            self.promised += sign * slot.replicas * demand.gpus
        if not demand.only_gpus():
            for name, amount in demand.others(slot.replicas):
                self.promised_other[name] = self.promised_other.get(name, 0.0) + sign * amount

    def has_free(
        self, gpus: int, other: Mapping[str, float], shared: Mapping[str, Group] | None = None
    ) -> bool:
        """Whether so much is free of processes right now."""
        if shared:
            if not within_shares(self.held_groups, shared):
                return False
            gpus += more_gpus(self.held_groups, shared)
        if self.held + gpus > self.node.gpus:
            return False
        return self._bears(self.held_other, other)

    def can_promise(self, demand: Resources, replicas: int) -> bool:
        """Whether CPU, memory and extras allow so many more replicas (GPUs are counted by the caller)."""
        return demand.only_gpus() or self._bears(self.promised_other, dict(demand.others(replicas)))

    def check_promised(
        self,
        gpus: int = 0,
        other: Mapping[str, float] | None = None,
        shared: Mapping[str, Group] | None = None,
    ) -> None:
        """No more is promised than the node has, and no more of a shared GPU than the whole, even if so much is added."""
        if shared:
            gpus += more_gpus(self.promised_groups, shared)
            if not within_shares(self.promised_groups, shared):
                raise InvariantError(
                    f"more than the whole of shared GPUs promised on node {self.node.name}: {', '.join(shared)}"
                )
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
