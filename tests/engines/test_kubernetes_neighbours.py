"""Kubernetes and its other inhabitants, on the fake API: Kueue's gates and preemption, autoscalers, quotas, evictions, administrators.

Kueue and an autoscaler cannot be installed here: the fake does to pods and nodes what they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.executors.engines._base import EngineRefusedError, Unit, unit_name
from coadapt.executors.engines.kubernetes import KubernetesEngine
from coadapt.executors.engines.pod_manifest import KubernetesOptions
from coadapt.model import JobStarted, JobStopped, NodeDrained, NodeJoined, NodeLost
from coadapt.testing import EngineConformance, EngineRoom, LiveBench, LiveExecutorConformance
from coadapt.testing.engines import CLUSTER
from tests.engines.hub_bench import KubernetesBench
from tests.engines.kubernetes_api_contract import PODS
from tests.engines.kubernetes_cluster import NAMESPACE
from tests.engines.kubernetes_fake import FakeCluster
from tests.engines.lives import overlaps
from tests.engines.machines import agents_of, joined
from tests.engines.test_joined_failures import beating, start
from tests.engines.test_kubernetes_engine import Room
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("fake_kubernetes")


@pytest.fixture
def cluster(running_fake: FakeCluster) -> Iterator[FakeCluster]:
    yield running_fake
    running_fake.fake.gated_queues.clear()
    running_fake.fake.quota.clear()
    for name in running_fake.names:
        running_fake.fake.taint(name)
    for pod in running_fake.pods():
        running_fake.fake.unhold(pod["metadata"]["name"])
    running_fake.clear()


class TestFakeEngine(EngineConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    def room(self, directory: Path) -> EngineRoom:
        return Room(self.cluster)


@pytest.mark.long
class TestFakeExecutor(LiveExecutorConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    def bench(self, directory: Path) -> LiveBench:
        return KubernetesBench(directory, self.cluster)


def names(cluster: FakeCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.pods()]


def test_pod_in_a_queue_waits_for_admission_and_preemption_by_the_queue_is_no_failure(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.fake.gated_queues.add("gold")
    bench = KubernetesBench(tmp_path, cluster, lease_s=60.0, grace_s=2.0, queue="gold")
    try:
        beats = tmp_path / "beats"
        start(bench, beats, 1, "n1")
        until(lambda: bool(names(cluster)))
        (first,) = names(cluster)
        reason = "not admitted yet by queue gold (scheduling gate kueue.x-k8s.io/admission)"
        until(
            lambda: [w.reason for w in agents_of(bench.home).waiting] == [reason],
            lambda: agents_of(bench.home),
        )
        assert bench.rest() == []
        cluster.fake.admit(first)
        assert bench.next() == JobStarted(job="a", attempt=1)
        beating(beats, 1, 1)
        # Kueue preempts by deleting the pod, and keeps the object by a finalizer until it has seen the end
        assert cluster.delete(first).ok
        assert bench.next() == JobStopped(job="a", attempt=1, cause="preempted")
        until(lambda: joined(bench.home) == set())
        start(bench, beats, 2, "n1", attempt=2)
        until(lambda: len(names(cluster)) == 2, lambda: cluster.pods())
        cluster.fake.unhold(first)
        (second,) = [name for name in names(cluster) if name != first]
        cluster.fake.admit(second)
        assert bench.next() == JobStarted(job="a", attempt=2)
        beating(beats, 2, 1)
        assert overlaps(beats, "a") == []
        cluster.fake.unhold(second)
    finally:
        bench.close()


@pytest.mark.long
def test_autoscaler_that_removes_and_adds_nodes_is_followed(cluster: FakeCluster, tmp_path: Path) -> None:
    bench = KubernetesBench(tmp_path, cluster, lease_s=60.0, grace_s=2.0)
    try:
        beats = tmp_path / "beats"
        start(bench, beats, 1, "n2")
        assert bench.next() == JobStarted(job="a", attempt=1)
        beating(beats, 1, 1)

        def heard(event: object) -> bool:
            bench._waiting.extend(bench.rest())
            return event in bench.nodes

        # scale down: a taint, the pods are evicted, then the node is removed
        cluster.fake.taint("n2", {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"})
        until(lambda: heard(NodeDrained(node="n2")))
        (unit,) = names(cluster)
        assert cluster("POST", f"{PODS}/{unit}/eviction", {"metadata": {"name": unit}}).ok
        assert bench.next() == JobStopped(job="a", attempt=1, cause="preempted")
        until(lambda: not names(cluster))
        cluster.kill("kubelet n2")
        assert cluster("DELETE", "/api/v1/nodes/n2").ok
        until(lambda: heard(NodeLost(node="n2")))
        # scale up
        before = len([event for event in bench.nodes if isinstance(event, NodeJoined)])
        cluster.start_node("n2")
        until(lambda: heard(None) or len([e for e in bench.nodes if isinstance(e, NodeJoined)]) > before)
        start(bench, beats, 2, "n2", attempt=2)
        assert bench.next() == JobStarted(job="a", attempt=2)
        assert overlaps(beats, "a") == []
    finally:
        bench.close()


def engine_of(cluster: FakeCluster, **options: str) -> KubernetesEngine:
    given = {"kubeconfig": str(cluster.kubeconfig), "namespace": NAMESPACE, "image": "i", **options}
    return KubernetesEngine(CLUSTER, KubernetesOptions(**given), grace_s=1.0)  # type: ignore[arg-type]


def a_unit(engine: KubernetesEngine, number: int = 1) -> Unit:
    node = engine.nodes()[0].node
    name = unit_name(CLUSTER, node.name, number)
    environment = {"COADAPT_UNIT": name, "COADAPT_URL": "http://127.0.0.1:9", "COADAPT_NODE_TOKEN": "secret"}
    return Unit(name=name, node=node, environment=environment)


def test_image_that_cannot_be_pulled_and_quota_are_told_as_reasons(cluster: FakeCluster) -> None:
    engine = engine_of(cluster, image="registry.invalid/none:1")
    engine.claim(a_unit(engine))
    until(lambda: any("ErrImagePull: no image registry.invalid/none:1" in u.reason for u in engine.units()))
    assert [unit.state for unit in engine.units()] == ["waiting"]
    cluster.fake.quota[NAMESPACE] = 1
    with pytest.raises(EngineRefusedError, match=r"create pod .*: exceeded quota: .*\(403\)$"):
        engine.claim(a_unit(engine, 2))


def test_at_rest_one_request_lists_all_units_and_an_action_needs_two(cluster: FakeCluster) -> None:
    engine = engine_of(cluster)
    units = [a_unit(engine, number) for number in range(1, 6)]
    engine.claim(units[0])
    # kubelets and other tests use the same API: only what this adapter asks for is counted
    asked: list[str] = []
    real = engine.api.call

    def counted(method: str, path: str, *more: object, **named: object) -> object:
        asked.append(f"{method} {path.rpartition('/')[2].partition('?')[0]}")
        return real(method, path, *more, **named)  # type: ignore[arg-type]

    engine.api.call = counted  # type: ignore[method-assign, assignment]
    for unit in units[1:]:
        engine.claim(unit)
    assert asked == ["POST secrets", "POST pods"] * 4
    asked.clear()
    assert len(engine.units()) == 5
    assert asked == ["GET pods"]
    asked.clear()
    assert len(engine.nodes()) == 2
    assert asked == ["GET nodes"]


def test_pods_that_have_ended_are_kept_for_a_while_and_then_deleted(cluster: FakeCluster) -> None:
    now = [0.0]
    options = KubernetesOptions(
        kubeconfig=str(cluster.kubeconfig), namespace=NAMESPACE, image="coadapt:here", prelude="exit 4"
    )
    engine = KubernetesEngine(CLUSTER, options, clock=lambda: now[0])
    engine.claim(a_unit(engine))
    until(lambda: [unit.state for unit in engine.units()] == ["ended"])
    assert engine.units()[0].reason == "Error (exit code 4)"
    now[0] = 299.0
    engine.units()
    assert len(names(cluster)) == 1
    now[0] = 301.0
    engine.units()
    until(lambda: not names(cluster))


def test_node_that_is_lost_ends_its_units_and_opens_again(cluster: FakeCluster) -> None:
    engine = engine_of(cluster, image="coadapt:here", virtual="true")
    unit = a_unit(engine)
    engine.claim(unit)
    until(lambda: [each.state for each in engine.units()] == ["running"])
    cluster.kill("kubelet n1")
    cluster.fake.lose("n1")
    closed = {each.node.name: each.closed for each in engine.nodes()}
    assert closed == {"n1": "not ready: NodeStatusUnknown: Kubelet stopped posting node status.", "n2": ""}
    (seen,) = engine.units()
    assert (seen.state, seen.reason) == ("ended", "node n1 is unreachable")
    cluster.fake.taint("n1")
    cluster.start_node("n1")
    until(lambda: not any(each.closed for each in engine.nodes()))
    assert [each.state for each in engine.units()] == ["running"]
