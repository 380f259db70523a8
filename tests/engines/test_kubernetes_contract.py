"""Jobs on a real Kubernetes: the published suite of executors, with agents in pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.testing import LiveBench, LiveExecutorConformance
from tests.engines.hub_bench import KubernetesBench
from tests.engines.kubernetes_cluster import KubernetesCluster


@pytest.mark.long
@pytest.mark.xdist_group("kubernetes")
class TestKubernetesExecutor(LiveExecutorConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, running_kubernetes: KubernetesCluster) -> None:
        self.cluster = running_kubernetes

    def bench(self, directory: Path) -> LiveBench:
        return KubernetesBench(directory, self.cluster)
