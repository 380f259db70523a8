from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from coadapt.executors.node import processes
from coadapt.wire.agent import Variable
from tests.waiting import until


def a_process(tmp_path: Path, command: tuple[str, ...], token: str) -> subprocess.Popen[bytes]:
    envs = {**os.environ, Variable.TOKEN: token}
    return processes.start(command, envs, tmp_path / "out", tmp_path / "err")


def test_process_is_known_by_pid_and_start_time(tmp_path: Path) -> None:
    assert not processes.is_gone(processes.this_process())
    host, boot, pid, started = processes.this_process().split("/")
    assert processes.is_gone(f"{host}/{boot}/{pid}/{int(started) + 1}")
    assert processes.is_gone(f"{host}/another-boot/{pid}/{started}")
    assert not processes.is_gone(f"another-host/{boot}/{pid}/1")


def test_start_time_is_read_whatever_the_process_is_called(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "600"]) as process:
        until(lambda: "a) R 1 (b" in Path(f"/proc/{process.pid}/comm").read_text())
        own = processes.started_ticks(os.getpid())
        found = processes.started_ticks(process.pid)
        process.kill()
    assert own is not None
    assert found is not None
    assert found >= own


def test_zombie_counts_as_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert processes.started_ticks(process.pid) is None


def test_replica_leads_its_own_session_and_writes_its_output(tmp_path: Path) -> None:
    with a_process(tmp_path, ("sh", "-c", "echo out; echo err >&2; ps -o sid= -p $$"), "t") as process:
        assert process.wait() == 0
    assert (tmp_path / "out").read_text().split() == ["out", str(process.pid)]
    assert (tmp_path / "err").read_text() == "err\n"


def test_remaining_finds_helpers_by_session_and_by_token(tmp_path: Path) -> None:
    # the first helper scrubs its environment, the second leaves the session
    script = "env -i sleep 600 & setsid sleep 601 & exec sleep 602"
    with a_process(tmp_path, ("sh", "-c", script), "token-of-this-test") as process:
        leader = processes.leader_of(process)
        until(lambda: len(processes.remaining("token-of-this-test", [leader])) == 3)
        assert process.pid in processes.remaining("token-of-this-test")
        process.kill()
        process.wait()
        left = processes.remaining("token-of-this-test", [leader])
        assert len(left) == 2
        assert processes.remaining("another-token", [msgspec.structs.replace(leader, boot="x")]) == set()
        processes.signal_each(left, signal.SIGKILL)
        until(lambda: not processes.remaining("token-of-this-test", [leader]))


def test_pid_used_again_is_not_taken_for_the_old_process(tmp_path: Path) -> None:
    with a_process(tmp_path, ("sleep", "600"), "t") as process:
        leader = processes.leader_of(process)
        earlier = msgspec.structs.replace(leader, started=leader.started - 1)
        assert processes.remaining("none", [leader]) == {process.pid}
        assert processes.remaining("none", [earlier]) == set()
        process.kill()


def test_command_that_does_not_exist_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        a_process(tmp_path, ("/no/such/program",), "t")
