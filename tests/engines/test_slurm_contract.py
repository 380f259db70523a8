"""Jobs on a real Slurm: the published suite of executors, with agents in batch jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.testing import LiveBench, LiveExecutorConformance
from tests.engines.hub_bench import SlurmBench
from tests.engines.slurm_cluster import SlurmCluster


@pytest.mark.long
@pytest.mark.xdist_group("slurm")
class TestSlurmExecutor(LiveExecutorConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, slurm_cluster: SlurmCluster) -> None:
        self.cluster = slurm_cluster

    def bench(self, directory: Path) -> LiveBench:
        return SlurmBench(directory, self.cluster)
