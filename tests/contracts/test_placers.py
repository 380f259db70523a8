"""Every registered placer, by the published suite."""

from __future__ import annotations

import pytest

from coadapt.model import Placement, parse_cluster
from coadapt.placement import PackedPlacer, Placer
from coadapt.plugins import PLACERS
from coadapt.testing.placers import PlacerConformance


def suite(name: str) -> type[PlacerConformance]:
    def make(self: PlacerConformance) -> Placer:
        made: Placer = PLACERS.make(name)
        return made

    return type(f"Test_{name}".replace("-", "_"), (PlacerConformance,), {"make": make})


for _name in PLACERS:
    globals()[f"Test_{_name}".replace("-", "_")] = suite(_name)


class Halved(PackedPlacer):
    """Gives every job one replica less than was asked for."""

    def place(self, *arguments, **options):  # type: ignore[no-untyped-def]
        placed = super().place(*arguments, **options)
        return {name: Placement(slots=found.slots[1:]) for name, found in placed.items()}


class OffTheMap(PackedPlacer):
    """Puts everything on a node that is not there."""

    def place(self, *arguments, **options):  # type: ignore[no-untyped-def]
        placed = super().place(*arguments, **options)
        gone = parse_cluster("9x4").nodes[-1].name
        return {
            name: Placement(
                slots=tuple(type(s)(node=gone, replicas=s.replicas, role=s.role) for s in found.slots)
            )
            for name, found in placed.items()
        }


@pytest.mark.parametrize("wrong", [Halved, OffTheMap])
def test_suite_finds_fault_with_a_wrong_placer(wrong: type[PackedPlacer]) -> None:
    class Suite(PlacerConformance):
        def make(self) -> Placer:
            return wrong()

    with pytest.raises(AssertionError):
        Suite().test_placements_keep_the_contract()
