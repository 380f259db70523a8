"""The local executor with a real keeper; one keeper serves most tests of this file."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.executors.job_source import SpecJobSource
from coadapt.executors.local import LocalExecutor
from coadapt.executors.node.processes import started_ticks
from coadapt.executors.node.protocol import PROTOCOL, Hello, line, socket_path
from coadapt.model import (
    JobFinished,
    JobSpec,
    JobStarted,
    JobStopped,
    Node,
    NodeJoined,
    ReplicasReleased,
    StartJob,
)
from coadapt.runtime import Cursor
from tests.desk import NODES, Desk, on
from tests.waiting import DEADLINE_S

IGNORES_SIGTERM = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
SAVES_AND_LEAVES = ("sh", "-c", "trap 'exit 143' TERM; echo ready; while :; do sleep 0.05; done")


class LocalDesk(Desk):
    """A desk of one node, ``local``. A job that ends by itself when it is asked to stop needs a long ``grace_s``."""

    def __init__(self, directory: Path, *, grace_s: float = 0.3) -> None:
        super().__init__(directory, grace_s=grace_s, nodes=NODES[:1])

    def run(self, job: str, *command: str, replicas: int = 1) -> None:
        spec = JobSpec(name=job, command=command, envs={"GREETING": "hello"})
        self.start(spec, on("local", replicas))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDesk]:
    # a directory whose socket would not fit into an address
    desk = LocalDesk(tmp_path_factory.mktemp("x" * 120))
    yield desk
    desk.executor.shutdown()


def test_replicas_know_their_place(desk: LocalDesk) -> None:
    names = "$GREETING $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $COADAPT_JOB $COADAPT_ATTEMPT $NODE"
    desk.run("env", "sh", "-c", f"echo {names}; echo $MASTER_ADDR:$MASTER_PORT", replicas=2)
    assert desk.end("env") == JobFinished(job="env", attempt=1, outcome="succeeded", exit_code=0)
    assert desk.output("env", "0.out")[0] == "hello 0 2 0 2 env 1 local"
    assert desk.output("env", "1.out")[0] == "hello 1 2 1 2 env 1 local"
    assert desk.output("env", "0.out")[1] == desk.output("env", "1.out")[1]


def test_exit_code_of_a_failed_job_is_told(desk: LocalDesk) -> None:
    desk.run("fails", "sh", "-c", "exit 3")
    assert desk.end("fails") == JobFinished(
        job="fails",
        attempt=1,
        outcome="failed",
        exit_code=3,
        reason="replica 0 exited with 3",
        kind="exception",
        rank=0,
    )


def test_replica_that_fails_takes_the_others_along(desk: LocalDesk) -> None:
    desk.run("half", "sh", "-c", "echo $$; [ $RANK = 0 ] || exit 4; exec sleep 600", replicas=2)
    end = desk.end("half")
    assert isinstance(end, JobFinished)
    assert (end.outcome, end.exit_code, end.reason) == ("failed", 4, "replica 1 exited with 4")
    assert started_ticks(int(desk.output("half", "0.out")[0])) is None


def test_command_that_cannot_start_fails_the_job_with_a_reason(desk: LocalDesk) -> None:
    desk.run("missing", "/no/such/program")
    end = desk.end("missing")
    assert isinstance(end, JobFinished)
    assert end.outcome == "failed"
    assert "/no/such/program" in end.reason
    desk.run("empty")
    end = desk.end("empty")
    assert isinstance(end, JobFinished)
    assert "no command" in end.reason


def test_job_that_ignores_sigterm_is_killed_after_the_grace(desk: LocalDesk) -> None:
    desk.run("deaf", *IGNORES_SIGTERM)
    desk.output("deaf")
    desk.stop("deaf")
    assert desk.end("deaf") == JobStopped(job="deaf", attempt=1, cause="cancelled")


def test_job_that_saves_and_leaves_is_stopped(tmp_path: Path) -> None:
    desk = LocalDesk(tmp_path, grace_s=DEADLINE_S)
    desk.run("saves", *SAVES_AND_LEAVES)
    desk.output("saves")
    desk.stop("saves")
    assert desk.end("saves") == JobStopped(job="saves", attempt=1, cause="cancelled")
    desk.executor.shutdown()


def test_job_that_leaves_unasked_with_143_is_preempted(desk: LocalDesk) -> None:
    desk.run("leaves", "sh", "-c", "exit 143")
    assert desk.end("leaves") == JobStopped(job="leaves", attempt=1, cause="preempted")


def test_attempt_ends_only_with_its_last_helper(desk: LocalDesk) -> None:
    desk.run("helped", "sh", "-c", "setsid sleep 600 & echo $!")
    assert isinstance(desk.end("helped"), JobFinished)
    assert started_ticks(int(desk.output("helped")[0])) is None


EXITS_WITH_0 = "echo ready; while :; do sleep 0.05; done"


def test_job_that_exits_with_0_because_it_was_asked_to_stop_is_stopped(tmp_path: Path) -> None:
    desk = LocalDesk(tmp_path, grace_s=DEADLINE_S)
    desk.run("polite", "sh", "-c", f"trap 'exit 0' TERM; {EXITS_WITH_0}")
    desk.output("polite")
    desk.stop("polite", "pause")
    assert desk.end("polite") == JobStopped(job="polite", attempt=1, cause="paused")
    desk.executor.shutdown()


def test_job_that_exits_with_0_because_it_is_resized_starts_again(tmp_path: Path) -> None:
    desk = LocalDesk(tmp_path, grace_s=DEADLINE_S)
    desk.run("polite", "sh", "-c", f"[ $WORLD_SIZE = 2 ] && exit 0; trap 'exit 0' TERM; {EXITS_WITH_0}")
    desk.output("polite")
    desk.resize("polite", on("local"), on("local", 2))
    end = desk.end("polite")
    assert isinstance(end, JobFinished)
    assert any(isinstance(event, ReplicasReleased) for event in desk.events)
    desk.executor.shutdown()


def test_job_that_says_that_it_is_done_although_it_was_asked_to_stop_has_succeeded(tmp_path: Path) -> None:
    desk = LocalDesk(tmp_path, grace_s=DEADLINE_S)
    says = "echo 'COADAPT {\"done\": true}'; exit 0"
    desk.run("quick", "sh", "-c", f"bye() {{ {says}; }}; trap bye TERM; {EXITS_WITH_0}", replicas=2)
    for rank in range(2):
        desk.output("quick", f"{rank}.out")
    desk.stop("quick", "pause")
    assert desk.end("quick") == JobFinished(job="quick", attempt=1, outcome="succeeded", exit_code=0)
    desk.executor.shutdown()


def test_job_names_never_leave_the_log_directory(desk: LocalDesk) -> None:
    desk.run("../../etc/..", "true")
    desk.run("long" * 100, "true")
    assert isinstance(desk.end("../../etc/.."), JobFinished)
    assert isinstance(desk.end("long" * 100), JobFinished)
    names = [path.name for path in (desk.directory / "logs").iterdir()]
    assert "..%2F..%2Fetc%2F...1" in names


def test_socket_is_for_the_user_alone(desk: LocalDesk) -> None:
    assert stat.S_IMODE((desk.directory / "keeper.sock").stat().st_mode) == 0o600


def test_what_the_keeper_writes_is_for_the_user_alone(desk: LocalDesk) -> None:
    desk.run("a", "true")
    assert isinstance(desk.end("a"), JobFinished)
    paths = list(desk.directory.rglob("*"))
    assert {"keeper.db", "keeper.lock", "keeper.log", "logs", "0.out"} <= {path.name for path in paths}
    assert [path for path in paths if path.stat().st_mode & 0o077] == []


def test_second_keeper_of_a_directory_ends_at_once(desk: LocalDesk) -> None:
    before = (desk.directory / "keeper.lock").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "coadapt.executors.node.keeper", desk.directory],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert b"another keeper" in done.stderr
    assert (desk.directory / "keeper.lock").read_text() == before


def test_keeper_does_not_carry_numpy_along() -> None:
    script = "import sys, coadapt.executors.node.keeper; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_keeper_refuses_the_actions_of_another_log(desk: LocalDesk) -> None:
    with pytest.raises(InputError, match="belongs to another event log"):
        LocalExecutor(
            desk.directory,
            log="other",
            jobs=SpecJobSource(desk.specs.__getitem__),
            nodes=(Node(name="local", gpus=2, gpu_type="cpu"),),
        )
    desk.run("undisturbed", "true")
    assert isinstance(desk.end("undisturbed"), JobFinished)


def test_keeper_refuses_a_controller_that_was_replaced(tmp_path: Path) -> None:
    def controller(epoch: int) -> LocalExecutor:
        return LocalExecutor(
            tmp_path,
            log="test",
            jobs=SpecJobSource({"a": JobSpec(name="a", command=("true",))}.__getitem__),
            nodes=(Node(name="local", gpus=2, gpu_type="cpu"),),
            epoch=epoch,
        )

    old, new = controller(7), controller(8)
    start = StartJob(id=1, job="a", attempt=1, placement=on("local", 1))
    # it connects again, as after any lost connection, and is turned away before its action counts
    with pytest.raises(
        InputError, match=r"this controller \(epoch 7\) was replaced by another one \(epoch 8\)"
    ):
        old.apply([start])
    assert list(new.inventory()) == []
    os.kill(int((tmp_path / "keeper.lock").read_text()), signal.SIGKILL)
    with pytest.raises(InputError, match="was replaced"):  # the next keeper knows it, too
        controller(7)
    new.apply([start])
    assert [held.job for held in new.inventory()] == ["a"]
    old.close()
    new.shutdown()


def test_keeper_refuses_a_controller_of_another_version(desk: LocalDesk) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with socket_path(desk.directory) as path:
            connection.connect(path)
        connection.sendall(line(Hello(log="test", protocol=PROTOCOL + 1)))
        assert b"another version of coadapt" in connection.recv(4096)
    desk.run("still", "true")  # nobody was replaced
    assert isinstance(desk.end("still"), JobFinished)


def test_cursor_of_another_source_is_refused(desk: LocalDesk) -> None:
    with pytest.raises(ValueError, match="no source 'elsewhere'"):
        desk.executor.acknowledge(Cursor(source="elsewhere", number=1))


def test_acknowledgement_of_a_controller_that_died_still_counts(tmp_path: Path) -> None:
    first = LocalDesk(tmp_path)
    first.run("a", "true")
    first.end("a")
    first.executor.close()
    second = LocalDesk(tmp_path)
    assert list(second.executor.inventory()) == []
    assert second.executor.take(0.0) == []
    second.executor.shutdown()


def test_request_survives_the_death_of_the_keeper(tmp_path: Path) -> None:
    desk = LocalDesk(tmp_path)
    desk.run("a", "sleep", "600")
    while JobStarted(job="a", attempt=1) not in desk.events:
        desk.events += [event for _, event in desk.executor.take(0.1)]
    os.kill(int((tmp_path / "keeper.lock").read_text()), signal.SIGKILL)
    desk.run("b", "true")
    assert desk.end("a") == JobStopped(job="a", attempt=1, cause="lost")
    assert isinstance(desk.end("b"), JobFinished)
    assert sum(isinstance(event, NodeJoined) for event in desk.events) == 2
    desk.executor.shutdown()


def test_request_to_a_keeper_that_closes_down_goes_to_the_next(tmp_path: Path) -> None:
    desk = LocalDesk(tmp_path)
    desk.run("a", *IGNORES_SIGTERM)
    desk.output("a")
    os.kill(int((tmp_path / "keeper.lock").read_text()), signal.SIGTERM)
    desk.run("b", "true")
    assert desk.end("a") == JobStopped(job="a", attempt=1, cause="shutdown")
    assert isinstance(desk.end("b"), JobFinished)
    desk.executor.shutdown()
