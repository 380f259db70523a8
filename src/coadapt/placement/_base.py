"""The contract of a placer: where jobs run, given how much each gets.

``place`` is pure. It gets the allocations that change, in the policy's order of preference, and
returns a placement for each that fits; a job that does not fit is left out and keeps what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from coadapt.model import Allocation, Placement
from coadapt.model.snapshot import Snapshot


class Placer(Protocol):
    """One way of choosing nodes."""

    def place(self, snapshot: Snapshot, allocations: Mapping[str, Allocation]) -> dict[str, Placement]:
        """Placements for the jobs in ``allocations``; jobs not named stay where they are."""
