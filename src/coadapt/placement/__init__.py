"""Where jobs run: bandwidth, interference, fragments, staying put. One file per placer, imported when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coadapt.placement._base import Placer
from coadapt.plugins import PLACERS

if TYPE_CHECKING:
    # for type checkers, which do not see ``__getattr__``; a new placer need not be here
    from coadapt.placement.aware import AwarePlacer as AwarePlacer
    from coadapt.placement.even import EvenPlacer as EvenPlacer
    from coadapt.placement.most_free import MostFreePlacer as MostFreePlacer
    from coadapt.placement.packed import PackedPlacer as PackedPlacer
    from coadapt.placement.skew import SkewPlacer as SkewPlacer
    from coadapt.placement.tidy import TidyPlacer as TidyPlacer

__all__ = ["Placer"]


def __getattr__(name: str) -> Any:
    return PLACERS.exported(name, __name__)
