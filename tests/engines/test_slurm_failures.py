"""Slurm at its worst: requeues, jobs that come back, a controller that forgets, nodes that fall silent. Nothing runs past the claim."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coadapt.executors.agent.session_messages import Declared, DeclareGone, Join, Joined
from coadapt.model import JobStarted, JobStopped, Node, NodeDrained, NodeOpened, ResizeJob, StopJob
from tests.engines.hub_bench import SlurmBench
from tests.engines.lives import lives, overlaps
from tests.engines.machines import agents_of, asked, joined
from tests.engines.slurm_cluster import SlurmCluster, slurm, why_not
from tests.engines.test_joined_failures import beating, start
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """A cluster of its own: the test breaks it."""
    if reason := why_not():
        pytest.skip(reason)
    with slurm(tmp_path / "slurm") as made:
        monkeypatch.setenv("SLURM_CONF", made.environment["SLURM_CONF"])
        yield made


@pytest.fixture
def bench(cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmBench]:
    made = SlurmBench(tmp_path, cluster, lease_s=5.0, grace_s=1.0)
    try:
        yield made
    finally:
        made.close()


def jobs_of(cluster: SlurmCluster) -> list[str]:
    return cluster("squeue", "-h", "-o", "%i").split()


def unit_log(bench: SlurmBench) -> str:
    return "\n".join(path.read_text() for path in (bench.home.hub / "slurm").glob("*.log"))


def test_job_that_is_requeued_by_hand_starts_nothing(
    bench: SlurmBench, cluster: SlurmCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    start(bench, beats, 1, "n1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 1)
    (unit,) = jobs_of(cluster)
    # --no-requeue forbids it; an administrator can allow it again
    cluster("scontrol", "update", f"jobid={unit}", "Requeue=1")
    cluster("scontrol", "requeue", unit)
    assert isinstance(bench.next(), JobStopped)
    cluster("scontrol", "update", f"jobid={unit}", "StartTime=now")
    # it is released before it starts again, or its agent is refused
    until(lambda: "this agent ends" in unit_log(bench) or not jobs_of(cluster), lambda: unit_log(bench))
    start(bench, beats, 2, "n1", attempt=2)
    assert bench.next() == JobStarted(job="a", attempt=2)
    beating(beats, 2, 1)
    assert overlaps(beats, "a") == []
    assert len({life.pid for life in lives(beats, "a")}) == 2


def test_controller_of_slurm_that_is_killed_forgets_and_nothing_runs_twice(
    bench: SlurmBench, cluster: SlurmCluster, tmp_path: Path
) -> None:
    """slurmctld is killed right after a submission and right after a cancel, and starts again from its last state."""
    beats = tmp_path / "beats"
    start(bench, beats, 1, "n1")
    until(lambda: bool(jobs_of(cluster)))
    cluster.kill("slurmctld")
    cluster.start_controller()
    event = bench.next()
    number, attempt = 2, 1
    while isinstance(event, JobStopped):  # its unit was forgotten and killed: it starts again
        attempt += 1
        start(bench, beats, number, "n1", attempt=attempt)
        number, event = number + 1, bench.next()
    assert event == JobStarted(job="a", attempt=attempt)
    beating(beats, attempt, 1)
    (unit,) = jobs_of(cluster)
    cluster("scancel", unit)
    cluster.kill("slurmctld")
    cluster.start_controller()
    start(bench, beats, number, "n1", attempt=attempt + 1)
    event = bench.next()
    assert isinstance(event, JobStopped)
    while isinstance(event, JobStopped):
        if event.attempt > attempt:
            start(bench, beats, number + event.attempt, "n1", attempt=event.attempt + 1)
        event = bench.next()
    assert isinstance(event, JobStarted)
    beating(beats, event.attempt, 1)
    assert overlaps(beats, "a") == []


def test_node_whose_slurmd_is_dead_is_not_believed_gone_while_its_agent_lives(
    bench: SlurmBench, cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Slurm says NODE_FAIL and its processes run on: the agent is still heard, and the job is left alone."""
    beats = tmp_path / "beats"
    start(bench, beats, 1, "n1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 1)
    cluster.kill("slurmd n1")
    until(lambda: "down" in cluster("sinfo", "-h", "-n", "n1", "-p", "main", "-o", "%T"))
    until(lambda: any(isinstance(e, NodeDrained) for e in _nodes(bench)))
    assert [life.alive for life in lives(beats, "a")] == [True]
    assert bench.rest() == []
    # the scheduler moves the job off the node that is closed, as it does from any
    bench.executor.apply([StopJob(id=5, job="a", attempt=1, why="drain")])
    assert bench.next() == JobStopped(job="a", attempt=1, cause="drained")
    start(bench, beats, 6, "n2", attempt=2)
    assert bench.next() == JobStarted(job="a", attempt=2)
    assert overlaps(beats, "a") == []
    cluster.start_node("n1")
    until(lambda: any(isinstance(e, NodeOpened) for e in _nodes(bench)))


def test_slurm_that_is_frozen_loses_no_job(bench: SlurmBench, cluster: SlurmCluster, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    start(bench, beats, 1, "n1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 1)
    cluster.kill("slurmctld", signal.SIGSTOP)
    try:
        until(lambda: "Slurm does not answer" in agents_of(bench.home).engine_trouble)
        assert [(each.job, each.ended) for each in bench.executor.inventory()] == [("a", False)]
        assert bench.rest() == []
        # what needs no room goes on
        bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
        assert bench.next() == JobStopped(job="a", attempt=1, cause="paused")
        start(bench, beats, 3, "n1", attempt=2)
        assert bench.next() == JobStarted(job="a", attempt=2)
        # a dead agent's unit is not believed gone while nobody answers for it
        (agent,) = agents_of(bench.home).agents
        assert agent.unit
    finally:
        cluster.kill("slurmctld", signal.SIGCONT)
    until(lambda: agents_of(bench.home).engine_trouble == "")
    assert joined(bench.home) == {"n1"}


def test_growing_waits_for_room_with_the_reason_of_slurm_and_can_be_revoked(
    bench: SlurmBench, cluster: SlurmCluster, tmp_path: Path
) -> None:
    beats = tmp_path / "beats"
    cluster("sbatch", "-w", "n2", "--gres=gpu:t4:2", "-J", "other", "-o", "/dev/null", "--wrap", "sleep 600")
    until(lambda: "R" in cluster("squeue", "-h", "-n", "other", "-o", "%t"))
    start(bench, beats, 1, "n1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    one, two = bench.placement(1), bench.placement(2)
    bench.executor.apply([ResizeJob(id=2, job="a", attempt=1, before=one, placement=two)])
    until(
        lambda: any("Resources" in w.reason or "Priority" in w.reason for w in agents_of(bench.home).waiting),
        lambda: agents_of(bench.home),
    )
    assert bench.rest() == []
    assert [life.alive for life in lives(beats, "a")] == [True], "it trains on meanwhile"
    cluster("scancel", "-n", "other")
    # the size changes by a restart: this script has no agent of ours
    events = [bench.next(), bench.next()]
    assert [type(event).__name__ for event in events] == ["ReplicasReleased", "JobResized"]
    beating(beats, 1, 2)


def test_units_that_nothing_uses_are_given_back(cluster: SlurmCluster, tmp_path: Path) -> None:
    bench = SlurmBench(tmp_path, cluster, idle_s=1.0)
    try:
        bench.add("a", "ends")
        start(bench, tmp_path / "beats", 1, "n1")
        assert bench.next() == JobStarted(job="a", attempt=1)
        bench.executor.apply([StopJob(id=2, job="a", attempt=1, why="pause")])
        assert isinstance(bench.next(), JobStopped)
        until(lambda: not jobs_of(cluster), lambda: cluster("squeue"))
        until(lambda: joined(bench.home) == set())
        # and a new one is asked for under another name
        start(bench, tmp_path / "beats", 3, "n1", attempt=2)
        assert bench.next() == JobStarted(job="a", attempt=2)
    finally:
        bench.close()
    assert jobs_of(cluster) == []


def test_hub_that_is_killed_finds_its_units_again(
    bench: SlurmBench, cluster: SlurmCluster, tmp_path: Path
) -> None:
    from coadapt.executors.node.keeper_shutdown import keeper_lock, pid_in

    beats = tmp_path / "beats"
    start(bench, beats, 1, "n1", "n2")
    assert bench.next() == JobStarted(job="a", attempt=1)
    beating(beats, 1, 2)
    hub, before = pid_in(keeper_lock(bench.home.hub)), jobs_of(cluster)
    assert hub is not None
    os.kill(hub, signal.SIGKILL)
    assert [each.ended for each in bench.executor.inventory()] == [False]
    until(lambda: joined(bench.home) == {"n1", "n2"})
    assert bench.rest() == []
    assert jobs_of(cluster) == before
    assert all(life.alive for life in lives(beats, "a"))


def _nodes(bench: SlurmBench) -> list[object]:
    bench._waiting.extend(bench.rest())
    return list(bench.nodes)


def test_second_life_of_a_unit_is_refused_for_good(bench: SlurmBench, tmp_path: Path) -> None:
    """What a requeued, revived or doubled batch job would do: join under the name of a unit that has an agent, or had one."""
    start(bench, tmp_path / "beats", 1, "n1")
    assert bench.next() == JobStarted(job="a", attempt=1)
    (agent,) = agents_of(bench.home).agents
    node = Node(name="n1", gpus=2, gpu_type="t4")
    second = Join(
        session="second",
        nodes=(node,),
        machine="another machine",
        boot="b",
        unit=agent.unit,
        generation="1.another",
        shares_checkpoints=True,
    )
    # while the first lives it is merely in the way: whose life is the right one is decided by the first claim
    answer = asked(bench.home, second)
    assert isinstance(answer, Joined)
    assert answer.refused
    assert asked(bench.home, DeclareGone(node="n1")) == Declared()
    for request in (second, msgspec.structs.replace(second, unit="coadapt-never-asked-for-1")):
        answer = asked(bench.home, request)
        assert isinstance(answer, Joined)
        assert "this agent ends" in answer.refused
        assert answer.final
