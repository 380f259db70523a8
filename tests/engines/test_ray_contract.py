"""Jobs on a real Ray: the published suite of executors, with agents in actors."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.testing import LiveBench, LiveExecutorConformance
from tests.engines.hub_bench import RayBench
from tests.engines.ray_cluster import RayCluster


@pytest.mark.long
@pytest.mark.xdist_group("ray")
class TestRayExecutor(LiveExecutorConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, running_ray: RayCluster) -> None:
        self.cluster = running_ray

    def bench(self, directory: Path) -> LiveBench:
        return RayBench(directory, self.cluster)
