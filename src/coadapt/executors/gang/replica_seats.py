"""Seats: the rank and node of each replica, and which replicas stay, leave and join in a resize. Pure.

Ranks go by seniority: replicas that stay come first, so the first replica, from which the others get their state, is
always one that runs. Where no replica stays, all new ones join first and the old ones leave after that: a move in two
generations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from coadapt.model import Placement
from coadapt.model.job_spec import WORKER


class Seat(NamedTuple):
    """One replica's place: its rank within its role, and the same within its node."""

    role: str
    rank: int
    replicas: int
    node: str
    node_rank: int
    nodes: int
    local_rank: int
    local_replicas: int
    gpu_type: str
    share: float


def seats(placement: Placement) -> list[Seat]:
    """Returns the seats of all replicas, workers first, in order of rank."""
    found: list[Seat] = []
    roles = sorted({slot.role for slot in placement.slots}, key=lambda role: (role != WORKER, role))
    for role in roles:
        slots = [slot for slot in placement.slots if slot.role == role]
        nodes = list(dict.fromkeys(slot.node for slot in slots))
        on_node = {name: sum(slot.replicas for slot in slots if slot.node == name) for name in nodes}
        seen = dict.fromkeys(nodes, 0)
        for slot in slots:
            for _ in range(slot.replicas):
                found.append(
                    Seat(
                        role=role,
                        rank=sum(seen.values()),
                        replicas=placement.count(role),
                        node=slot.node,
                        node_rank=nodes.index(slot.node),
                        nodes=len(nodes),
                        local_rank=seen[slot.node],
                        local_replicas=on_node[slot.node],
                        gpu_type=slot.gpu_type,
                        share=slot.share,
                    )
                )
                seen[slot.node] += 1
    return found


T = TypeVar("T")


class Change(NamedTuple):
    """Positions in the present order of those that stay and leave, and the nodes of those that join."""

    staying: list[int]
    leaving: list[int]
    joining: list[str]


def change(nodes: Sequence[str], placement: Placement) -> Change:
    """From replicas on ``nodes``, by rank, to ``placement``."""
    room = Counter(dict.fromkeys(nodes, 0))
    for seat in seats(placement):
        room[seat.node] += 1
    staying: list[int] = []
    leaving: list[int] = []
    for position, node in enumerate(nodes):
        (staying if room[node] > 0 else leaving).append(position)
        room[node] -= 1
    joining = [
        node
        for node in dict.fromkeys(slot.node for slot in placement.slots)
        for _ in range(max(room[node], 0))
    ]
    return Change(staying, leaving, joining)


def seated(nodes: Sequence[str], gpu_type: str) -> list[Seat]:
    """Returns the seats of workers on ``nodes``, by rank."""
    order = list(dict.fromkeys(nodes))
    return [
        Seat(
            role=WORKER,
            rank=rank,
            replicas=len(nodes),
            node=node,
            node_rank=order.index(node),
            nodes=len(order),
            local_rank=nodes[:rank].count(node),
            local_replicas=nodes.count(node),
            gpu_type=gpu_type,
            share=1.0,
        )
        for rank, node in enumerate(nodes)
    ]


def generations(staying: Sequence[T], leaving: Sequence[T], joining: Sequence[T]) -> list[list[T]]:
    """Returns the members of each generation of a resize, in order of rank."""
    if not staying:
        return [[*leaving, *joining], [*joining]]
    return [[*staying, *joining]]


def possible(before: Placement, after: Placement) -> bool:
    """Whether a placement can follow another without a restart: workers with whole GPUs of one type."""
    slots = (*before.slots, *after.slots)
    return (
        bool(before.slots)
        and bool(after.slots)
        and all(slot.role == WORKER and slot.share == 1.0 for slot in slots)
        and len({slot.gpu_type for slot in slots}) == 1
    )
