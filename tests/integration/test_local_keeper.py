"""What the keeper does for real processes: places and devices, environments, set-up, failures, hangs, what is printed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.executors.node.processes import started_ticks
from coadapt.model import (
    JobFinished,
    JobSpec,
    JobStarted,
    JobStopped,
    NodeJoined,
    NodeLost,
    Placement,
    Resources,
    Role,
)
from tests.desk import NODES, Desk, on
from tests.waiting import DEADLINE_S, until


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    home = tmp_path_factory.mktemp("home")
    (home / "code" / "abc").mkdir(parents=True)
    (home / "code" / "abc" / "greeting").write_text("hello from the frozen code\n")
    os.environ["SOMEBODYS_SECRET"] = "hunter2"
    try:
        desk = Desk(home / "keeper", home=home, agent_of=lambda job: (f"http://x/{job}", f"token-of-{job}"))
    finally:
        del os.environ["SOMEBODYS_SECRET"]
    yield desk
    desk.executor.shutdown()


def shell(name: str, script: str, **fields: object) -> JobSpec:
    return JobSpec(name=name, command=("sh", "-c", script), **fields)  # type: ignore[arg-type]


def python(name: str, script: str, **fields: object) -> JobSpec:
    return JobSpec(name=name, command=(sys.executable, "-S", "-c", script), **fields)  # type: ignore[arg-type]


def failed(desk: Desk, job: str) -> JobFinished:
    end = desk.end(job)
    assert isinstance(end, JobFinished)
    assert end.outcome == "failed"
    return end


def test_every_node_joins(desk: Desk) -> None:
    desk.start(shell("joins", "exit 0"))
    desk.end("joins")
    joined = [event.node for event in desk.events if isinstance(event, NodeJoined)]
    assert joined == list(NODES)


def test_replicas_on_several_nodes_know_their_place(desk: Desk) -> None:
    names = "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK $GROUP_WORLD_SIZE $NODE $COADAPT_GPU_TYPE $COADAPT_MEMBER"
    desk.start(shell("spread", f"echo {names}"), on("n0", 2, ("n1", 1)))
    assert isinstance(desk.end("spread"), JobFinished)
    assert [desk.output("spread", f"{rank}.out")[0] for rank in range(3)] == [
        "0/3 0/2 0 0 2 n0 t4 m0",
        "1/3 1/2 0 0 2 n0 t4 m1",
        "2/3 0/1 1 1 2 n1 t4 m2",
    ]


def test_replicas_see_what_is_theirs_and_no_secret(desk: Desk) -> None:
    desk.start(shell("clean", "env; pwd", envs={"MINE": "yes"}))
    assert isinstance(desk.end("clean"), JobFinished)
    said = desk.output("clean")
    envs = dict(line.split("=", 1) for line in said if "=" in line)
    assert "SOMEBODYS_SECRET" not in envs
    assert (envs["MINE"], envs["COADAPT_JOB_TOKEN"]) == ("yes", "token-of-clean")
    assert envs["COADAPT_URL"] == "http://x/clean"
    assert Path(envs["COADAPT_CHECKPOINTS"]).is_dir()
    assert "PATH" in envs


def test_code_runs_in_its_frozen_directory_after_its_set_up(desk: Desk) -> None:
    spec = shell(
        "frozen", "cat greeting made", code="abc", setup=("sh", "-c", "echo setting up; echo ready > made")
    )
    desk.start(spec, on("n0", 2))
    assert isinstance(desk.end("frozen"), JobFinished)
    for rank in range(2):
        assert desk.output("frozen", f"{rank}.out") == ["hello from the frozen code", "ready"]
    assert desk.output("frozen", "setup.out") == ["setting up"]  # once, not for each replica


def test_set_up_that_fails_fails_the_job_as_not_started(desk: Desk) -> None:
    script = "echo no such package >&2; exit 7"
    desk.start(shell("unset", "echo never", setup=("sh", "-c", script)))
    end = failed(desk, "unset")
    assert (end.kind, end.reason, end.tail) == ("start", "the set-up exited with 7", "no such package")
    assert not desk.path("unset", "0.out").exists()
    assert JobStarted(job="unset", attempt=1) not in desk.events


def test_set_up_is_stopped_with_its_job_and_leaves_nothing(desk: Desk) -> None:
    desk.start(
        shell("slow", "echo never", setup=("sh", "-c", "env -i sleep 600 & setsid sleep 601 & echo $!; wait"))
    )
    helper = int(desk.output("slow", "setup.out")[0])
    desk.stop("slow")
    assert desk.end("slow") == JobStopped(job="slow", attempt=1, cause="cancelled")
    assert started_ticks(helper) is None
    assert not desk.path("slow", "0.out").exists()


def test_code_that_is_not_there_fails_the_job_as_not_started(desk: Desk) -> None:
    desk.start(shell("lost", "true", code="../../../etc"))
    assert failed(desk, "lost").kind == "start"
    desk.start(shell("absent", "true", code="def"))
    end = failed(desk, "absent")
    assert (end.kind, end.reason) == ("start", "cannot start: the job's code is not on this machine: def")


def test_cores_are_pinned_one_to_a_replica(desk: Desk) -> None:
    script = "import os; print(*os.sched_getaffinity(0))"
    desk.start(python("pinned", script), on("local", 2))
    assert isinstance(desk.end("pinned"), JobFinished)
    cores = [desk.output("pinned", f"{rank}.out")[0] for rank in range(2)]
    here = sorted(os.sched_getaffinity(0))
    if len(here) >= 2:
        assert cores == [str(here[0]), str(here[1])]
    desk.start(python("floating", script), on("n0"))
    assert isinstance(desk.end("floating"), JobFinished)
    assert desk.output("floating")[0].split() == [str(core) for core in here]


def test_more_replicas_than_a_node_has_gpus_are_refused(desk: Desk) -> None:
    spec = shell("greedy", "sleep 600", roles=(Role(demand=Resources(gpus=2)),))
    desk.start(spec, on("n0", 3))
    end = failed(desk, "greedy")
    assert (end.kind, end.reason) == ("start", "cannot start: node n0 has 0 free GPUs, a replica needs 2")
    desk.start(shell("modest", "exit 0"), on("n0", 4))  # all were given back
    assert isinstance(desk.end("modest"), JobFinished)


@pytest.mark.parametrize(
    ("name", "script", "kind", "exit_code"),
    [
        ("raises", "raise ValueError('no')", "exception", 1),
        ("memory", "import sys; sys.exit('torch.OutOfMemoryError: CUDA out of memory')", "oom", 1),
        (
            "waits",
            "import sys; sys.exit('[Rank 0] NCCL watchdog: collective operation timed out')",
            "collective",
            1,
        ),
        ("shot", "import os; os.kill(os.getpid(), 9)", "killed", 137),
        ("crash", "import os; os.kill(os.getpid(), 11)", "exception", 139),
    ],
)
def test_failures_are_told_apart(desk: Desk, name: str, script: str, kind: str, exit_code: int) -> None:
    desk.start(python(name, script))
    end = failed(desk, name)
    assert (end.kind, end.rank, end.exit_code) == (kind, 0, exit_code)


def test_first_failing_rank_is_named_with_its_last_lines_and_without_secrets(desk: Desk) -> None:
    script = (
        "import os, sys, time\n"
        "if os.environ['RANK'] == '2': sys.exit('wrong key ' + os.environ['API_KEY'])\n"
        "time.sleep(600)\n"
    )
    desk.start(python("third", script, envs={"API_KEY": "sk-12345678"}), on("n0", 4))
    end = failed(desk, "third")
    assert (end.rank, end.kind, end.tail) == (2, "exception", "wrong key ***")
    assert end.reason == "replica 2 exited with 1"


def test_sigterm_of_somebody_else_is_a_preemption(desk: Desk) -> None:
    desk.start(shell("taken", "echo $$; exec sleep 600"), on("n0", 2))
    os.kill(int(desk.output("taken")[0]), signal.SIGTERM)
    assert desk.end("taken") == JobStopped(job="taken", attempt=1, cause="preempted")


def test_hang_shows_the_stacks_of_each_rank_and_is_a_failure(desk: Desk) -> None:
    script = (
        "import faulthandler, os, signal, time\n"
        "if os.environ['RANK'] == '0': faulthandler.register(signal.SIGUSR1)\n"
        "def waits_for_ever():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
        "waits_for_ever()\n"
    )
    desk.start(python("hangs", script), on("n0", 2))
    for rank in range(2):
        desk.output("hangs", f"{rank}.out")
    desk.stop("hangs", "hang")
    end = failed(desk, "hangs")
    assert (end.kind, end.reason) == ("hang", "no step for too long")
    assert "rank 0:" in end.tail
    assert "in waits_for_ever" in end.tail
    whole = desk.path("hangs", "stacks.txt").read_text()
    assert whole.count("process ") == 2  # also of the one that cannot answer


def test_time_limit_is_a_failure_of_its_own(desk: Desk) -> None:
    desk.start(shell("long", "echo ready; exec sleep 600"))
    desk.output("long")
    desk.stop("long", "time-limit")
    end = failed(desk, "long")
    assert (end.kind, end.reason) == ("time-limit", "its time limit has passed")


@pytest.mark.parametrize(
    ("says", "outcome"), [("", "failed"), ("""echo 'COADAPT {"done":true}'; """, "succeeded")]
)
def test_job_that_exits_with_0_at_its_time_limit_has_succeeded_only_if_it_says_so(
    tmp_path: Path, says: str, outcome: str
) -> None:
    desk = Desk(tmp_path, grace_s=DEADLINE_S)  # it is not killed, however long its own end takes
    desk.start(
        shell("just", f"bye() {{ {says}exit 0; }}; trap bye TERM; echo ready; while :; do sleep 0.05; done")
    )
    desk.output("just")
    desk.stop("just", "time-limit")
    end = desk.end("just")
    assert isinstance(end, JobFinished)
    assert end.outcome == outcome
    desk.executor.shutdown()


def test_what_the_first_replica_prints_is_measured_before_its_end(desk: Desk) -> None:
    script = (
        "import os, time\n"
        'print(\'COADAPT\', \'{"epoch": 2, "step_time": 0.25, "batch": 64}\')\n'
        "print('accuracy=0.75 of rank', os.environ['RANK'])\n"
        "print('COADAPT {nonsense')\n"
    )
    desk.start(python("tells", script, metrics={"acc": r"accuracy=([\d.]+)"}), on("n0", 2))
    assert isinstance(desk.end("tells"), JobFinished)
    first, second = (event.measurement for event in desk.measured("tells"))
    assert (first.epoch, first.step_s, first.config.batch, first.config.replicas) == (2.0, 0.25, 64, 2)
    assert second.metrics == {"acc": 0.75}
    assert [type(e) for e in desk.events if getattr(e, "job", "") == "tells"][-1] is JobFinished


def test_numbers_of_an_attempt_come_once_though_it_is_restarted_at_another_size(desk: Desk) -> None:
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "print('COADAPT {\"epoch\": %s}' % os.environ['WORLD_SIZE'], flush=True)\n"
        "if os.environ['WORLD_SIZE'] == '1': time.sleep(600)\n"
    )
    desk.start(python("grows", script), on("n0", 1))
    desk.output("grows")
    desk.resize("grows", on("n0", 1), on("n0", 2))
    assert isinstance(desk.end("grows"), JobFinished)
    assert [event.measurement.epoch for event in desk.measured("grows")] == [1.0, 2.0]


def test_nodes_that_a_new_keeper_does_not_offer_are_lost(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.start(shell("a", "exit 0"))
    desk.end("a")
    desk.executor.shutdown()
    desk = Desk(tmp_path, nodes=NODES[:2])
    desk.actions = 1
    desk.start(shell("b", "exit 0"))
    desk.end("b")
    assert [e for e in desk.events if isinstance(e, NodeJoined | NodeLost)] == [
        NodeLost(node="n1"),
        NodeJoined(node=NODES[0]),
        NodeJoined(node=NODES[1]),
    ]
    desk.executor.shutdown()


def test_keeper_killed_in_a_set_up_leaves_nothing_of_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    # the helper has neither the token nor, once its leader is gone, a parent: its session betrays it
    desk.start(shell("a", "echo never", setup=("sh", "-c", "env -i sleep 600 & echo $!; wait")))
    helper = int(desk.output("a", "setup.out")[0])
    os.kill(int((tmp_path / "keeper.lock").read_text()), signal.SIGKILL)
    assert desk.end("a") == JobStopped(job="a", attempt=1, cause="lost")
    until(lambda: started_ticks(helper) is None)
    assert not desk.path("a", "0.out").exists()
    desk.executor.shutdown()


def test_placement_nowhere_starts_nothing(desk: Desk) -> None:
    desk.start(shell("nowhere", "true"), Placement())
    assert desk.end("nowhere").attempt == 1
