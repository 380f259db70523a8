"""The local executor with a real keeper; one keeper serves most tests of this file."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.executors.job_source import SpecJobSource
from coadapt.executors.local import LocalExecutor
from coadapt.executors.node.processes import started_ticks
from coadapt.executors.node.protocol import PROTOCOL, Hello, line, socket_path
from coadapt.model import (
    AnyEvent,
    JobFinished,
    JobSpec,
    JobStarted,
    JobStopped,
    Node,
    NodeJoined,
    Placement,
    ResizeJob,
    Slot,
    StartJob,
    StopJob,
)
from coadapt.runtime import Cursor

#: The machine may stand still for minutes.
LIMIT_S = 300.0
IGNORES_SIGTERM = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
SAVES_AND_LEAVES = ("sh", "-c", "trap 'exit 143' TERM; echo ready; while :; do sleep 0.05; done")


def slots(replicas: int) -> Placement:
    return Placement(slots=(Slot(node="local", replicas=replicas, gpu_type="cpu"),))


class Desk:
    """An executor, and the events that have come from it. Who ends by itself when told needs a long ``grace_s``."""

    def __init__(self, directory: Path, *, grace_s: float = 0.3) -> None:
        self.directory, self.specs, self.actions = directory, dict[str, JobSpec](), 0
        self.executor = LocalExecutor(
            directory,
            log="test",
            jobs=SpecJobSource(self.specs.__getitem__),
            nodes=(Node(name="local", gpus=2, gpu_type="cpu"),),
            grace_s=grace_s,
            patience_s=LIMIT_S,
        )
        self.events: list[AnyEvent] = []

    def start(self, job: str, *command: str, replicas: int = 1) -> None:
        self.specs[job] = JobSpec(name=job, command=command, envs={"GREETING": "hello"})
        self.actions += 1
        self.executor.apply([StartJob(id=self.actions, job=job, attempt=1, placement=slots(replicas))])

    def stop(self, job: str) -> None:
        self.actions += 1
        self.executor.apply([StopJob(id=self.actions, job=job, attempt=1, why="cancel")])

    def end(self, job: str) -> JobFinished | JobStopped:
        deadline = time.monotonic() + LIMIT_S
        while True:
            for event in self.events:
                if isinstance(event, JobFinished | JobStopped) and event.job == job:
                    return event
            assert time.monotonic() < deadline, "no end came"
            for cursor, event in self.executor.take(0.1):
                self.executor.acknowledge(cursor)
                self.events.append(event)

    def output(self, job: str, rank: int = 0, *, lines: int = 1) -> list[str]:
        path = self.directory / "logs" / f"{job}.1" / f"{rank}.out"
        deadline = time.monotonic() + LIMIT_S
        while not path.exists() or len(path.read_text().splitlines()) < lines:
            assert time.monotonic() < deadline, "no output came"
            time.sleep(0.005)
        return path.read_text().splitlines()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    # a directory whose socket would not fit into an address
    desk = Desk(tmp_path_factory.mktemp("x" * 120))
    yield desk
    desk.executor.shutdown()


def test_replicas_know_their_place(desk: Desk) -> None:
    names = "$GREETING $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $COADAPT_JOB $COADAPT_ATTEMPT $NODE"
    desk.start("env", "sh", "-c", f"echo {names}; echo $MASTER_ADDR:$MASTER_PORT", replicas=2)
    assert desk.end("env") == JobFinished(job="env", attempt=1, outcome="succeeded", exit_code=0)
    assert desk.output("env", 0)[0] == "hello 0 2 0 2 env 1 local"
    assert desk.output("env", 1)[0] == "hello 1 2 1 2 env 1 local"
    assert desk.output("env", 0)[1] == desk.output("env", 1)[1]


def test_exit_code_of_a_failed_job_is_told(desk: Desk) -> None:
    desk.start("fails", "sh", "-c", "exit 3")
    assert desk.end("fails") == JobFinished(
        job="fails",
        attempt=1,
        outcome="failed",
        exit_code=3,
        reason="replica 0 exited with 3",
        kind="exception",
        rank=0,
    )


def test_replica_that_fails_takes_the_others_along(desk: Desk) -> None:
    desk.start("half", "sh", "-c", "echo $$; [ $RANK = 0 ] || exit 4; exec sleep 600", replicas=2)
    end = desk.end("half")
    assert isinstance(end, JobFinished)
    assert (end.outcome, end.exit_code, end.reason) == ("failed", 4, "replica 1 exited with 4")
    assert started_ticks(int(desk.output("half", 0)[0])) is None


def test_command_that_cannot_start_fails_the_job_with_a_reason(desk: Desk) -> None:
    desk.start("missing", "/no/such/program")
    end = desk.end("missing")
    assert isinstance(end, JobFinished)
    assert end.outcome == "failed"
    assert "/no/such/program" in end.reason
    desk.start("empty")
    end = desk.end("empty")
    assert isinstance(end, JobFinished)
    assert "no command" in end.reason


def test_job_that_ignores_sigterm_is_killed_after_the_grace(desk: Desk) -> None:
    desk.start("deaf", *IGNORES_SIGTERM)
    desk.output("deaf")
    desk.stop("deaf")
    assert desk.end("deaf") == JobStopped(job="deaf", attempt=1, cause="cancelled")


def test_job_that_saves_and_leaves_is_stopped(tmp_path: Path) -> None:
    desk = Desk(tmp_path, grace_s=LIMIT_S)
    desk.start("saves", *SAVES_AND_LEAVES)
    desk.output("saves")
    desk.stop("saves")
    assert desk.end("saves") == JobStopped(job="saves", attempt=1, cause="cancelled")
    desk.executor.shutdown()


def test_job_that_leaves_unasked_with_143_is_preempted(desk: Desk) -> None:
    desk.start("leaves", "sh", "-c", "exit 143")
    assert desk.end("leaves") == JobStopped(job="leaves", attempt=1, cause="preempted")


def test_attempt_ends_only_with_its_last_helper(desk: Desk) -> None:
    desk.start("helped", "sh", "-c", "setsid sleep 600 & echo $!")
    assert isinstance(desk.end("helped"), JobFinished)
    assert started_ticks(int(desk.output("helped")[0])) is None


def test_job_that_finishes_while_it_is_resized_has_succeeded(tmp_path: Path) -> None:
    desk = Desk(tmp_path, grace_s=LIMIT_S)
    desk.start("quick", "sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    desk.output("quick")
    desk.actions += 1
    desk.executor.apply(
        [ResizeJob(id=desk.actions, job="quick", attempt=1, before=slots(1), placement=slots(2))]
    )
    end = desk.end("quick")
    assert isinstance(end, JobFinished)
    assert end.outcome == "succeeded"
    desk.executor.shutdown()


def test_job_names_never_leave_the_log_directory(desk: Desk) -> None:
    desk.start("../../etc/..", "true")
    desk.start("long" * 100, "true")
    assert isinstance(desk.end("../../etc/.."), JobFinished)
    assert isinstance(desk.end("long" * 100), JobFinished)
    names = [path.name for path in (desk.directory / "logs").iterdir()]
    assert "..%2F..%2Fetc%2F...1" in names


def test_socket_is_for_the_user_alone(desk: Desk) -> None:
    assert stat.S_IMODE((desk.directory / "keeper.sock").stat().st_mode) == 0o600


def test_what_the_keeper_writes_is_for_the_user_alone(desk: Desk) -> None:
    desk.start("a", "true")
    assert isinstance(desk.end("a"), JobFinished)
    paths = list(desk.directory.rglob("*"))
    assert {"keeper.db", "keeper.lock", "keeper.log", "logs", "0.out"} <= {path.name for path in paths}
    assert [path for path in paths if path.stat().st_mode & 0o077] == []


def test_second_keeper_of_a_directory_ends_at_once(desk: Desk) -> None:
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


def test_keeper_refuses_the_actions_of_another_log(desk: Desk) -> None:
    with pytest.raises(InputError, match="belongs to another event log"):
        LocalExecutor(
            desk.directory,
            log="other",
            jobs=SpecJobSource(desk.specs.__getitem__),
            nodes=(Node(name="local", gpus=2, gpu_type="cpu"),),
        )
    desk.start("undisturbed", "true")
    assert isinstance(desk.end("undisturbed"), JobFinished)


def test_keeper_refuses_a_controller_of_another_version(desk: Desk) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        with socket_path(desk.directory) as path:
            connection.connect(path)
        connection.sendall(line(Hello(log="test", protocol=PROTOCOL + 1)))
        assert b"another version of coadapt" in connection.recv(4096)
    desk.start("still", "true")  # nobody was replaced
    assert isinstance(desk.end("still"), JobFinished)


def test_cursor_of_another_source_is_refused(desk: Desk) -> None:
    with pytest.raises(ValueError, match="no source 'elsewhere'"):
        desk.executor.acknowledge(Cursor(source="elsewhere", number=1))


def test_acknowledgement_of_a_controller_that_died_still_counts(tmp_path: Path) -> None:
    first = Desk(tmp_path)
    first.start("a", "true")
    while not any(isinstance(event, JobFinished) for event in first.events):
        for cursor, event in first.executor.take(0.1):
            first.executor.acknowledge(cursor)
            first.events.append(event)
    first.executor.close()
    second = Desk(tmp_path)
    assert list(second.executor.inventory()) == []
    assert second.executor.take(0.0) == []
    second.executor.shutdown()


def test_request_survives_the_death_of_the_keeper(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.start("a", "sleep", "600")
    while JobStarted(job="a", attempt=1) not in desk.events:
        desk.events += [event for _, event in desk.executor.take(0.1)]
    os.kill(int((tmp_path / "keeper.lock").read_text()), signal.SIGKILL)
    desk.start("b", "true")
    assert desk.end("a") == JobStopped(job="a", attempt=1, cause="lost")
    assert isinstance(desk.end("b"), JobFinished)
    assert sum(isinstance(event, NodeJoined) for event in desk.events) == 2
    desk.executor.shutdown()


def test_request_to_a_keeper_that_closes_down_goes_to_the_next(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.start("a", *IGNORES_SIGTERM)
    desk.output("a")
    os.kill(int((tmp_path / "keeper.lock").read_text()), signal.SIGTERM)
    desk.start("b", "true")
    assert desk.end("a") == JobStopped(job="a", attempt=1, cause="preempted")
    assert isinstance(desk.end("b"), JobFinished)
    desk.executor.shutdown()
