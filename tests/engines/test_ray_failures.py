"""Ray at its worst: actors, nodes and the head die or freeze. Nothing runs twice, and nothing is believed that Ray alone says."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.executors.agent.session_messages import Declared, DeclareGone
from coadapt.model import JobStarted, JobStopped, NodeJoined, NodeLost, ResizeJob, StopJob
from tests.engines.hub_bench import RayBench
from tests.engines.lives import lives, overlaps
from tests.engines.machines import agents_of, asked, joined
from tests.engines.ray_cluster import RayCluster, ray_cluster, why_not
from tests.engines.test_joined_failures import beating, start
from tests.engines.unit_processes import actor_of
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ray")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    """A cluster of its own: the test breaks it."""
    if reason := why_not():
        pytest.skip(reason)
    with ray_cluster(tmp_path / "ray") as made:
        yield made


@pytest.fixture
def bench(cluster: RayCluster, tmp_path: Path) -> Iterator[RayBench]:
    made = RayBench(tmp_path, cluster, lease_s=10.0, grace_s=1.0)
    try:
        yield made
    finally:
        made.close()


def the_unit(bench: RayBench) -> str:
    (agent,) = agents_of(bench.home).agents
    return agent.unit


def test_actor_that_is_killed_takes_its_agent_along_and_the_job_starts_again(
    bench: RayBench, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    start(bench, beats, 1, "n1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 1)
    os.kill(actor_of(the_unit(bench)), signal.SIGKILL)
    stopped = bench.next()
    assert isinstance(stopped, JobStopped)
    assert not any(life.alive for life in lives(beats, "a"))
    start(bench, beats, 2, "n1", attempt=2)
    assert bench.next() == JobStarted(job="a", attempt=2)
    beating(beats, 2, 1)
    assert overlaps(beats, "a") == []


def test_actor_that_is_frozen_changes_nothing_for_the_job(bench: RayBench, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    start(bench, beats, 1, "n1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    actor = actor_of(the_unit(bench))
    os.kill(actor, signal.SIGSTOP)
    try:
        # the agent speaks with the controller itself
        bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
        assert bench.next() == JobStopped(job="a", attempt=1, cause="paused")
        start(bench, beats, 3, "n1", attempt=2)
        assert bench.next() == JobStarted(job="a", attempt=2)
        beating(beats, 2, 1)
    finally:
        os.kill(actor, signal.SIGCONT)
    assert overlaps(beats, "a") == []


def test_node_whose_raylet_is_killed_is_lost_and_comes_back(
    bench: RayBench, cluster: RayCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    start(bench, beats, 1, "n1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 1)
    cluster.kill("n1", "raylet")
    stopped = bench.next()
    assert isinstance(stopped, JobStopped)
    assert not any(life.alive for life in lives(beats, "a"))
    until(lambda: NodeLost(node="n1") in _nodes(bench), lambda: bench.nodes)
    start(bench, beats, 2, "n2", attempt=2)
    assert bench.next() == JobStarted(job="a", attempt=2)
    beating(beats, 2, 1)
    assert overlaps(beats, "a") == []
    before = len([e for e in bench.nodes if isinstance(e, NodeJoined)])
    cluster.add_node()
    until(lambda: len([e for e in _nodes(bench) if isinstance(e, NodeJoined)]) > before)
    one, two = bench.placement(1), bench.placement(2)
    assert [slot.node for slot in one.slots] == ["n1"]
    n2 = type(two)(slots=two.slots[1:])
    bench.executor.apply([ResizeJob(id=7, job="a", attempt=2, before=n2, placement=two)])
    assert [type(bench.next()).__name__ for _ in range(2)] == ["ReplicasReleased", "JobResized"]
    beating(beats, 2, 2)


def test_head_that_is_killed_ends_the_cluster_and_nothing_is_concluded_from_its_silence(
    cluster: RayCluster, tmp_path: Path
) -> None:
    bench, beats = RayBench(tmp_path, cluster, lease_s=5.0, grace_s=1.0), tmp_path / "beats"
    try:
        start(bench, beats, 1, "n1")
        assert bench.next() == JobStarted(job="a", attempt=1)
        beating(beats, 1, 1)
        cluster.kill("head", "gcs_server")
        until(lambda: "Ray at" in agents_of(bench.home).engine_trouble, lambda: agents_of(bench.home))
        # all nodes of Ray end without a head, and the actors and agents with them
        until(lambda: not any(life.alive for life in lives(beats, "a")))
        until(lambda: agents_of(bench.home).agents[0].lease_left_s == 0.0)
        assert [(each.job, each.ended) for each in bench.executor.inventory()] == [("a", False)]
        assert bench.rest() == []
        # somebody who knows may say so
        assert asked(bench.home, DeclareGone(node="n1")) == Declared()
        assert isinstance(bench.next(), JobStopped)
    finally:
        bench.executor.shutdown()
        bench.relay.close()


def test_head_that_is_frozen_loses_no_job(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    beats = tmp_path / "beats"
    # nodes of Ray wait for their head for longer than it is frozen here
    with ray_cluster(tmp_path / "ray", RAY_gcs_rpc_server_reconnect_timeout_s="600") as cluster:
        bench = RayBench(tmp_path, cluster, lease_s=60.0, grace_s=1.0)
        try:
            start(bench, beats, 1, "n1")
            assert bench.next() == JobStarted(job="a", attempt=1)
            cluster.kill("head", "gcs_server", signal.SIGSTOP)
            try:
                until(lambda: "does not answer" in agents_of(bench.home).engine_trouble)
                assert [(each.job, each.ended) for each in bench.executor.inventory()] == [("a", False)]
                assert bench.rest() == []
                # what needs no room goes on
                bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
                assert bench.next() == JobStopped(job="a", attempt=1, cause="paused")
                start(bench, beats, 3, "n1", attempt=2)
                assert bench.next() == JobStarted(job="a", attempt=2)
            finally:
                cluster.kill("head", "gcs_server", signal.SIGCONT)
            until(lambda: agents_of(bench.home).engine_trouble == "", lambda: agents_of(bench.home))
            assert joined(bench.home) == {"n1"}
            assert overlaps(beats, "a") == []
        finally:
            bench.close()


def test_units_that_nothing_uses_are_given_back(cluster: RayCluster, tmp_path: Path) -> None:
    bench = RayBench(tmp_path, cluster, idle_s=1.0)
    try:
        start(bench, tmp_path / "beats", 1, "n1")
        assert bench.next() == JobStarted(job="a", attempt=1)
        bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
        assert isinstance(bench.next(), JobStopped)
        until(lambda: joined(bench.home) == set())
        # and a new one is asked for under another name
        start(bench, tmp_path / "beats", 3, "n1", attempt=2)
        assert bench.next() == JobStarted(job="a", attempt=2)
        assert the_unit(bench).endswith("-2")
    finally:
        bench.close()


def test_agent_that_ray_cannot_reach_leaves_when_its_unit_is_given_back(
    cluster: RayCluster, tmp_path: Path
) -> None:
    bench = RayBench(tmp_path, cluster, idle_s=1.0)
    try:
        start(bench, tmp_path / "beats", 1, "n1")
        assert bench.next() == JobStarted(job="a", attempt=1)
        actor = actor_of(the_unit(bench))
        os.kill(actor, signal.SIGSTOP)
        try:
            bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
            assert isinstance(bench.next(), JobStopped)
            # the actor hears nothing; the hub tells the agent itself
            until(lambda: joined(bench.home) == set())
        finally:
            os.kill(actor, signal.SIGCONT)
    finally:
        bench.close()


def _nodes(bench: RayBench) -> list[object]:
    bench._waiting.extend(bench.rest())
    return list(bench.nodes)
