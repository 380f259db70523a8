"""Kubernetes at its worst: an API that dies, freezes or forgets, nodes that fall silent, pods taken away by force. Nothing runs twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coadapt.executors.agent.session_messages import Declared, DeclareGone, Join, Joined
from coadapt.executors.node.keeper_shutdown import keeper_lock, pid_in
from coadapt.model import JobStarted, JobStopped, Node, NodeDrained, NodeOpened, ResizeJob, StopJob
from tests.engines.hub_bench import KubernetesBench
from tests.engines.kubernetes_api_contract import PODS, a_pod
from tests.engines.kubernetes_cluster import NAMESPACE, KubernetesCluster
from tests.engines.lives import lives, overlaps
from tests.engines.machines import agents_of, alive, asked, children_of, joined
from tests.engines.test_joined_failures import beating, start
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kubernetes")]


@pytest.fixture
def cluster(running_kubernetes: KubernetesCluster) -> Iterator[KubernetesCluster]:
    """The tests mend what they break."""
    yield running_kubernetes
    until(running_kubernetes.is_ready, lambda: running_kubernetes.logs())
    running_kubernetes.clear()


@pytest.fixture
def bench(cluster: KubernetesCluster, tmp_path: Path) -> Iterator[KubernetesBench]:
    made = KubernetesBench(tmp_path, cluster, lease_s=20.0, grace_s=1.0)
    try:
        yield made
    finally:
        made.close()


def names(cluster: KubernetesCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.pods()]


def node_events(bench: KubernetesBench, kind: type) -> list[object]:
    bench._waiting.extend(bench.rest())
    return [event for event in bench.nodes if isinstance(event, kind)]


def begun(bench: KubernetesBench, beats: Path, *nodes: str) -> None:
    start(bench, beats, 1, *nodes)
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, len(nodes))


def test_api_server_that_is_killed_after_a_claim_and_after_a_release_keeps_both(
    bench: KubernetesBench, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    start(bench, beats, 1, "n1")
    until(lambda: bool(names(cluster)))
    cluster.kill("kube-apiserver")
    cluster.start_api()
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 1)
    (unit,) = names(cluster)
    assert cluster.delete(unit).ok
    cluster.kill("kube-apiserver")
    cluster.start_api()
    assert bench.next() == JobStopped(job="a", attempt=1, cause="preempted")
    until(lambda: joined(bench.home) == set())
    start(bench, beats, 2, "n1", attempt=2)
    assert bench.next() == JobStarted(job="a", attempt=2)
    beating(beats, 2, 1)
    assert overlaps(beats, "a") == []
    assert unit not in names(cluster)


def test_pod_that_is_deleted_by_force_while_its_kubelet_is_dead_runs_on_and_no_second_one_starts(
    bench: KubernetesBench, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    begun(bench, beats, "n1")
    (unit,) = names(cluster)
    cluster.kill("kubelet n1")
    try:
        manifest = cluster.pod(unit).body
        assert cluster.delete(unit, force=True).ok
        assert cluster.pod(unit).status == 404
        # the object is gone, the process is not: its agent is still heard, and nothing is believed lost
        until(lambda: agents_of(bench.home).agents[0].silent_s < 5)
        assert bench.rest() == []
        assert [life.alive for life in lives(beats, "a")] == [True]
        # somebody creates the pod again, on the other node: its agent is refused before it starts a process
        manifest["metadata"] = {"name": unit, "labels": manifest["metadata"]["labels"]}
        for key in ("nodeName", "affinity"):
            manifest["spec"].pop(key)
        manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "n2"}
        assert cluster("POST", PODS, manifest).status == 201
        until(
            lambda: (
                "this agent ends" in log_of(cluster, unit) or "is joined by another" in log_of(cluster, unit)
            )
        )
        assert len({life.pid for life in lives(beats, "a")}) == 1
    finally:
        cluster.start_node("n1")
    # the kubelet is back, and ends what the API does not know
    assert bench.next() == JobStopped(job="a", attempt=1, cause="preempted")
    until(lambda: not [life for life in lives(beats, "a") if life.alive])
    assert overlaps(beats, "a") == []


def test_pod_that_is_deleted_by_force_is_killed_by_its_kubelet_and_waited_for(
    cluster: KubernetesCluster, tmp_path: Path
) -> None:
    """No time to save, no farewell: the job is lost when its lease has run out, and starts again, never beside itself."""
    bench = KubernetesBench(tmp_path, cluster, lease_s=5.0, grace_s=1.0)
    try:
        beats = tmp_path / "beats"
        begun(bench, beats, "n1")
        (unit,) = names(cluster)
        assert cluster.delete(unit, force=True).ok
        assert bench.next() == JobStopped(job="a", attempt=1, cause="lost")
        assert not [life for life in lives(beats, "a") if life.alive]
        start(bench, beats, 2, "n1", attempt=2)
        assert bench.next() == JobStarted(job="a", attempt=2)
        beating(beats, 2, 1)
        assert overlaps(beats, "a") == []
    finally:
        bench.close()


def log_of(cluster: KubernetesCluster, unit: str) -> str:
    found = cluster.pod(unit)
    return cluster.log_of(found.body["metadata"]["uid"]) if found.ok else ""


def test_api_server_that_is_frozen_loses_no_job(
    bench: KubernetesBench, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    begun(bench, beats, "n1")
    cluster.kill("kube-apiserver", signal.SIGSTOP)
    try:
        until(lambda: "does not answer" in agents_of(bench.home).engine_trouble)
        assert [(each.job, each.ended) for each in bench.executor.inventory()] == [("a", False)]
        assert bench.rest() == []
        # what needs no room goes on
        bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
        assert bench.next() == JobStopped(job="a", attempt=1, cause="paused")
        start(bench, beats, 3, "n1", attempt=2)
        assert bench.next() == JobStarted(job="a", attempt=2)
        (agent,) = agents_of(bench.home).agents
        assert agent.unit
    finally:
        cluster.kill("kube-apiserver", signal.SIGCONT)
    until(lambda: agents_of(bench.home).engine_trouble == "")
    assert joined(bench.home) == {"n1"}
    assert overlaps(beats, "a") == []


def test_evicted_pod_is_preempted_and_never_failed(
    bench: KubernetesBench, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    begun(bench, beats, "n1")
    (unit,) = names(cluster)
    body = {
        "apiVersion": "policy/v1beta1",
        "kind": "Eviction",
        "metadata": {"name": unit, "namespace": NAMESPACE},
    }
    assert cluster("POST", f"{PODS}/{unit}/eviction", body).ok
    assert bench.next() == JobStopped(job="a", attempt=1, cause="preempted")
    until(lambda: unit not in names(cluster))
    start(bench, beats, 2, "n1", attempt=2)
    assert bench.next() == JobStarted(job="a", attempt=2)
    beating(beats, 2, 1)
    assert names(cluster) != [unit], "another name, never the same"
    assert overlaps(beats, "a") == []


def test_node_whose_kubelet_is_dead_is_closed_and_its_job_left_alone(
    bench: KubernetesBench, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    begun(bench, beats, "n1")
    cluster.kill("kubelet n1")
    try:
        until(lambda: NodeDrained(node="n1") in node_events(bench, NodeDrained), lambda: cluster.logs())
        assert bench.rest() == []
        assert [life.alive for life in lives(beats, "a")] == [True]
    finally:
        cluster.start_node("n1")
    until(lambda: NodeOpened(node="n1") in node_events(bench, NodeOpened))
    assert [life.alive for life in lives(beats, "a")] == [True], "the new kubelet took it over"
    assert bench.rest() == []


def test_machine_without_power_is_believed_gone_after_its_lease_though_its_pod_stays(
    cluster: KubernetesCluster, tmp_path: Path
) -> None:
    bench = KubernetesBench(tmp_path, cluster, lease_s=3.0, grace_s=1.0)
    try:
        beats = tmp_path / "beats"
        begun(bench, beats, "n1")
        (pod,) = cluster.pods()
        cluster.kill("kubelet n1")
        shim = int((cluster.directory / "pods" / pod["metadata"]["uid"] / "pid").read_text().split()[0])
        victims = [shim, *children_of(shim)]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in victims))
        assert bench.next() == JobStopped(job="a", attempt=1, cause="lost")
        assert cluster.pod(pod["metadata"]["name"]).body["status"]["phase"] == "Running", (
            "Kubernetes does not know"
        )
        start(bench, beats, 2, "n2", attempt=2)
        assert bench.next() == JobStarted(job="a", attempt=2)
        beating(beats, 2, 1)
        assert overlaps(beats, "a") == []
    finally:
        cluster.start_node("n1")
        bench.close()


def test_cordoned_node_is_drained_and_opened_again(
    bench: KubernetesBench, cluster: KubernetesCluster
) -> None:
    cluster.cordon("n2")
    try:
        until(lambda: NodeDrained(node="n2") in node_events(bench, NodeDrained))
    finally:
        cluster.cordon("n2", False)
    until(lambda: NodeOpened(node="n2") in node_events(bench, NodeOpened))


def test_growing_waits_for_room_with_the_reason_of_kubernetes_and_trains_on(
    bench: KubernetesBench, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    other = a_pod("other", gpus=2)
    other["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "n2"}
    assert cluster("POST", PODS, other).ok
    until(lambda: cluster.pod("other").body["status"]["phase"] == "Running")
    begun(bench, beats, "n1")
    one, two = bench.placement(1), bench.placement(2)
    bench.executor.apply([ResizeJob(id=2, job="a", attempt=1, before=one, placement=two)])
    until(
        lambda: any("Insufficient nvidia.com/gpu" in w.reason for w in agents_of(bench.home).waiting),
        lambda: agents_of(bench.home),
    )
    assert bench.rest() == []
    assert [life.alive for life in lives(beats, "a")] == [True], "it trains on meanwhile"
    cluster.delete("other")
    # the size changes by a restart: this script has no agent of ours
    events = [bench.next(), bench.next()]
    assert [type(event).__name__ for event in events] == ["ReplicasReleased", "JobResized"]
    beating(beats, 1, 2)


def test_units_that_nothing_uses_are_given_back(cluster: KubernetesCluster, tmp_path: Path) -> None:
    bench = KubernetesBench(tmp_path, cluster, idle_s=1.0)
    try:
        begun(bench, tmp_path / "beats", "n1")
        bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
        assert isinstance(bench.next(), JobStopped)
        until(lambda: not names(cluster), lambda: names(cluster))
        until(lambda: joined(bench.home) == set())
        start(bench, tmp_path / "beats", 3, "n1", attempt=2)
        assert bench.next() == JobStarted(job="a", attempt=2)
    finally:
        bench.close()
    assert names(cluster) == []
    secrets = cluster("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets").body["items"]
    assert not [each for each in secrets if each["metadata"]["name"].startswith("coadapt-")], (
        "nothing is left"
    )


def test_hub_that_is_killed_finds_its_pods_again(
    bench: KubernetesBench, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    begun(bench, beats, "n1", "n2")
    hub, before = pid_in(keeper_lock(bench.home.hub)), names(cluster)
    assert hub is not None
    os.kill(hub, signal.SIGKILL)
    assert [each.ended for each in bench.executor.inventory()] == [False]
    until(lambda: joined(bench.home) == {"n1", "n2"})
    assert bench.rest() == []
    assert names(cluster) == before
    assert all(life.alive for life in lives(beats, "a"))


def test_second_life_of_a_unit_is_refused_for_good(bench: KubernetesBench, tmp_path: Path) -> None:
    begun(bench, tmp_path / "beats", "n1")
    (agent,) = agents_of(bench.home).agents
    second = Join(
        session="second",
        nodes=(Node(name="n1", gpus=2, gpu_type="t4"),),
        machine="another machine",
        boot="b",
        unit=agent.unit,
        generation="another",
        shares_checkpoints=True,
    )
    answer = asked(bench.home, second)
    assert isinstance(answer, Joined)
    assert answer.refused
    assert asked(bench.home, DeclareGone(node="n1")) == Declared()
    for request in (second, msgspec.structs.replace(second, unit="coadapt-never-asked-for-1")):
        answer = asked(bench.home, request)
        assert isinstance(answer, Joined)
        assert "this agent ends" in answer.refused
        assert answer.final
