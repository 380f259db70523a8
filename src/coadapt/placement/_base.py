"""The contract of a placer: where jobs run, given how much each gets.

``place`` is pure. It gets the allocations that change, in the policy's order of preference, and
returns a placement for each that fits; a job that does not fit is left out and keeps what it has. A placer may
also move jobs that were not named, where that makes room for one that was, but none that is to stay (``fixed``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from coadapt.model import Allocation, Placement
from coadapt.model.snapshot import Snapshot


class Placer(Protocol):
    """A placer: chooses the nodes for the allocations of a proposal."""

    def place(
        self, snapshot: Snapshot, allocations: Mapping[str, Allocation], fixed: Collection[str] = ()
    ) -> dict[str, Placement]:
        """Placements for the jobs in ``allocations``; others stay, unless they are named in the answer."""
