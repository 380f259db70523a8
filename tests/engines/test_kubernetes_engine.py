"""The adapter for Kubernetes by the published suite, on a real control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.executors.engines._base import Engine
from coadapt.executors.engines.kubernetes import KubernetesEngine
from coadapt.executors.engines.pod_manifest import KubernetesOptions
from coadapt.testing import EngineConformance, EngineRoom
from coadapt.testing.engines import CLUSTER
from tests.engines.kubernetes_cluster import NAMESPACE, Kubelets, KubernetesCluster
from tests.engines.kubernetes_kubelet import IMAGE
from tests.engines.unit_processes import guards_of


class Room:
    """Agents that nobody lets in: they try, and are there."""

    def __init__(self, cluster: Kubelets, **options: str) -> None:
        self.cluster = cluster
        self._options = KubernetesOptions(
            **{  # type: ignore[arg-type]
                "kubeconfig": str(cluster.kubeconfig),
                "namespace": NAMESPACE,
                "image": IMAGE,
                "virtual": True,
                **options,
            }
        )
        self.engine: Engine = self.adapter()

    def adapter(self) -> Engine:
        return KubernetesEngine(CLUSTER, self._options, grace_s=1.0)

    def processes(self, unit: str) -> int:
        return guards_of(unit)

    def close(self) -> None:
        self.cluster.clear()


@pytest.mark.long
@pytest.mark.xdist_group("kubernetes")
class TestKubernetesEngine(EngineConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, running_kubernetes: KubernetesCluster) -> None:
        self.cluster = running_kubernetes

    def room(self, directory: Path) -> EngineRoom:
        return Room(self.cluster)
