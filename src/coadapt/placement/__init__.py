"""Where jobs run: bandwidth, interference, fragments, staying put."""

from coadapt.placement._base import Placer
from coadapt.placement.most_free import MostFreePlacer
from coadapt.placement.packed import PackedPlacer

__all__ = ["MostFreePlacer", "PackedPlacer", "Placer"]
