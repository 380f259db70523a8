"""Where jobs run: bandwidth, interference, fragments, staying put."""

from coadapt.placement._base import Placer
from coadapt.placement.aware import AwarePlacer
from coadapt.placement.even import EvenPlacer
from coadapt.placement.most_free import MostFreePlacer
from coadapt.placement.packed import PackedPlacer
from coadapt.placement.skew import SkewPlacer
from coadapt.placement.tidy import TidyPlacer

__all__ = [
    "AwarePlacer",
    "EvenPlacer",
    "MostFreePlacer",
    "PackedPlacer",
    "Placer",
    "SkewPlacer",
    "TidyPlacer",
]
