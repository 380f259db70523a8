"""Where the configurations of Sia's program run: whole nodes whole, parts of a node never split.

The program counts GPUs per type only. Sia's rules for what follows (SOSP 2023): an allocation smaller than a node does
not span nodes, a larger one takes whole nodes, and where that is not possible jobs are moved. So jobs choose in
order of size, the largest first. One that keeps its configuration has a claim to its place; one without a
place takes room that nobody claims, and else where it drives away the fewest GPUs: whoever loses a place is
smaller, and chooses later. With sizes and nodes that are powers of two this always works out; a job of another size
that fits no single node is spread over the emptiest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coadapt.model import Placement, Slot


class Wish(NamedTuple):
    """A job, the GPUs it was given, GPUs of one replica, and where it is if it keeps what it has (else nowhere)."""

    job: str
    gpus: int
    unit: int
    at: Placement

    @property
    def held(self) -> dict[str, int]:
        """GPUs by node."""
        return {slot.node: slot.replicas * self.unit for slot in self.at.slots}


def place(wishes: Sequence[Wish], free: Mapping[str, int], gpu_type: str) -> dict[str, Placement]:
    """A placement for every wish that fits; ``free`` are the GPUs by node of the type, in cluster order."""
    left, claimed = dict(free), dict.fromkeys(free, 0)
    for wish in wishes:
        _add(claimed, wish.held, 1)
    placed: dict[str, Placement] = {}
    # of equal sizes those with a place first, so that only smaller ones ever lose theirs
    for wish in sorted(wishes, key=lambda wish: (-wish.gpus, not wish.at)):
        counts, at = wish.held, wish.at
        _add(claimed, counts, -1)
        if not at or any(left[node] < gpus for node, gpus in counts.items()):
            counts = _find(wish, left, claimed)
            slots = [
                Slot(node=n, replicas=counts[n] // wish.unit, gpu_type=gpu_type) for n in left if n in counts
            ]
            at = Placement(slots=tuple(slots))
        if sum(counts.values()) == wish.gpus:
            _add(left, counts, -1)
            placed[wish.job] = at
    return placed


def _add(to: dict[str, int], counts: Mapping[str, int], sign: int) -> None:
    for node, gpus in counts.items():
        to[node] += sign * gpus


def _find(wish: Wish, left: Mapping[str, int], claimed: Mapping[str, int]) -> dict[str, int]:
    """GPUs by node: of one node if one has room, else of the emptiest; fewer than wished where there is no room."""

    def fit(node: str) -> tuple[int, int]:
        unclaimed = left[node] - claimed[node]
        return max(wish.gpus - unclaimed, 0), unclaimed

    enough = [node for node in left if left[node] >= wish.gpus]
    if enough:
        return {min(enough, key=fit): wish.gpus}
    counts: dict[str, int] = {}
    rest = wish.gpus
    for node in sorted(left, key=lambda node: (-left[node], claimed[node])):
        counts[node] = min(rest, left[node] // wish.unit * wish.unit)
        rest -= counts[node]
    return {node: gpus for node, gpus in counts.items() if gpus}
