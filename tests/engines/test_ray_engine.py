"""Ray's adapter by the published suite, on a real Ray; and what it makes of Ray's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.executors.engines._base import Engine
from coadapt.executors.engines.ray import RayEngine, RayOptions
from coadapt.testing import EngineConformance, EngineRoom
from coadapt.testing.engines import CLUSTER
from tests.engines.ray_cluster import RayCluster
from tests.engines.unit_processes import guards_of
from tests.waiting import until


class _Room:
    """Agents that nobody lets in: they try, and are there."""

    def __init__(self, cluster: RayCluster) -> None:
        self._options = RayOptions(address=cluster.address, virtual=True)
        self._adapters: list[RayEngine] = []
        self.engine: Engine = self.adapter()

    def adapter(self) -> Engine:
        self._adapters.append(RayEngine(CLUSTER, self._options, kill_wait_s=5.0))
        return self._adapters[-1]

    def processes(self, unit: str) -> int:
        return guards_of(unit)

    def close(self) -> None:
        engine = self._adapters[0]
        engine.release([unit.name for unit in engine.units() if unit.state != "ended"])
        until(lambda: all(unit.state == "ended" for unit in engine.units()), engine.units)
        for adapter in self._adapters:
            adapter.close()


@pytest.mark.long
@pytest.mark.xdist_group("ray")
class TestRayEngine(EngineConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, running_ray: RayCluster) -> None:
        self.cluster = running_ray

    def room(self, directory: Path) -> EngineRoom:
        return _Room(self.cluster)
