"""Engines for tests, each started once for a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines import kubernetes_cluster
from tests.engines import ray_cluster as ray
from tests.engines.kubernetes_cluster import KubernetesCluster, kubernetes
from tests.engines.kubernetes_fake import FakeCluster, fake_kubernetes
from tests.engines.ray_cluster import RayCluster
from tests.engines.slurm_cluster import SlurmCluster, slurm, why_not


@pytest.fixture(scope="session")
def running_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if reason := why_not():
        pytest.skip(reason)
    with slurm(tmp_path_factory.mktemp("slurm") / "cluster") as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(running_slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """A cluster with two nodes of two GPUs, nothing running, and Slurm's commands set to it."""
    monkeypatch.setenv("SLURM_CONF", running_slurm.environment["SLURM_CONF"])
    return running_slurm


@pytest.fixture(scope="session")
def running_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A cluster with two nodes of two GPUs; tests leave nothing in it."""
    if reason := ray.why_not():
        pytest.skip(reason)
    with ray.ray_cluster(tmp_path_factory.mktemp("ray") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def running_kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """A cluster with two nodes of two GPUs; tests leave nothing in it."""
    if reason := kubernetes_cluster.why_not():
        pytest.skip(reason)
    with kubernetes(tmp_path_factory.mktemp("kubernetes") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def running_fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    """The same with an API in memory."""
    with fake_kubernetes(tmp_path_factory.mktemp("kubernetes") / "fake") as cluster:
        yield cluster
