"""``coadapt serve`` as a user meets it: real processes, killed at any point; ``down`` leaves nothing.

The machine may stop for minutes: conditions are waited for, with generous limits.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.executors.node.keeper_shutdown import is_locked, keeper_runs, pid_in
from coadapt.executors.node.processes import started_ticks
from coadapt.model import ControllerStarted
from coadapt.model.snapshot import ENDED
from coadapt.store.home import Home
from tests.integration.serving import Served, serving
from tests.waiting import DEADLINE_S, until

pytest.importorskip("starlette", reason="the API is not installed (the extra server)")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        yield served


def test_a_whole_life(served: Served) -> None:
    served.serve()
    assert served.home.path.stat().st_mode & 0o777 == 0o700
    for path in (served.home.token, served.home.options_file, served.home.path / "store.db"):
        assert path.stat().st_mode & 0o077 == 0, path
    job = served.submit("short", short=True)
    assert re.fullmatch(r"short-\d+", job)
    until(lambda: served.state().jobs[job].phase in ENDED if job in served.state().jobs else False)
    assert served.state().jobs[job].phase == "SUCCEEDED"

    second = served.coadapt("serve")
    assert second.returncode == 2
    assert f"process {pid_in(served.home.lock)}" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1

    healthy = served.coadapt("doctor")
    assert healthy.returncode == 0, healthy.stdout
    assert "bad" not in healthy.stdout.split()

    backup = subprocess.run(
        [
            sys.executable,
            "-m",
            "coadapt.cli.main",
            "backup",
            str(served.path / "copy.tar"),
            "--home",
            str(served.home.path),
        ],
        check=True,
        capture_output=True,
    )
    assert b"bytes" in backup.stdout
    with tarfile.open(served.path / "copy.tar") as archive:
        assert any(name.endswith("store.db") for name in archive.getnames())

    down = served.coadapt("down")
    assert (down.returncode, "Nothing is left running." in down.stdout) == (0, True), down.stderr
    assert not keeper_runs(served.home.keeper)
    assert served.coadapt("down").stdout == "Nothing was running.\n"


def test_ctrl_c_leaves_jobs_running_and_the_next_serve_adopts_them(served: Served) -> None:
    served.serve()
    job = served.submit("long")
    until(lambda: len(served.lives("long")) == 1)
    output = served.stop()
    assert served.process is not None
    assert served.process.returncode == 0
    assert "1 job keeps running" in output
    assert f"coadapt submit --home {served.home.path} -- python" in output
    (pid,) = served.lives("long")
    assert started_ticks(pid) is not None
    assert not is_locked(served.home.lock)
    served.serve()
    assert served.keeper() > 0
    served.end("long")
    until(lambda: served.done("long"))
    until(lambda: served.state().jobs[job].phase in ENDED)
    assert served.lives("long") == [pid]
    assert served.state().jobs[job].attempt == 1


def test_everything_is_killed_and_no_job_is_lost_or_runs_twice(served: Served) -> None:
    served.serve()
    served.submit("a")
    until(lambda: len(served.lives("a")) == 1)

    controller = served.controller()
    assert controller is not None
    os.kill(controller, signal.SIGKILL)
    until(lambda: served.controller() not in (None, controller), "no new controller")
    # the API took a job while nobody was at the wheel, or took it up at once
    served.submit("b", short=True)
    until(lambda: len(served.lives("b")) >= 1)
    assert len(served.lives("a")) == 1

    keeper = served.keeper()
    os.kill(keeper, signal.SIGKILL)
    until(lambda: len(served.lives("a")) == 2, "the job does not start again after its keeper was killed")
    assert served.keeper() != keeper

    assert served.process is not None
    served.process.kill()
    served.process.communicate()
    until(lambda: not is_locked(served.home.lock))
    served.serve()
    served.end("a")
    until(lambda: served.done("a", "b"))
    until(lambda: all(job.phase in ENDED for job in served.state().jobs.values()))
    assert {job.phase.value for job in served.state().jobs.values()} == {"SUCCEEDED"}
    assert (served.path / "a.done").read_text() == "done\n"


def test_second_controller_on_the_store_waits_and_decides_nothing(served: Served) -> None:
    served.serve()
    first, said = served.controller(), served.path / "second.out"
    with said.open("wb") as output:
        command = [sys.executable, "-m", "coadapt.live.controller_process", str(served.home.path)]
        second = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until(lambda: "standing by" in said.read_text())
        assert second.poll() is None
        assert served.controller() == first
    finally:
        second.terminate()
        assert second.wait(DEADLINE_S) == 0
    assert served.controller() == first
    assert sum(isinstance(record.event, ControllerStarted) for record in served.log()) == 1


def test_port_in_use_is_one_clear_line(served: Served) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = served.coadapt("serve", "--virtual", "1x1", "--listen", f"127.0.0.1:{port}")
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert str(port) in line
    assert "--listen 127.0.0.1:0" in line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "fufo"), "did you mean 'fifo'?"),
        (("--policy", "pollux", "--policy-option", "q=1"), "unknown pollux option 'q'"),
        (("--virtual", "4by4"), "4by4"),
        (("--gpus", "10000"), "10000"),
        (("--store", "mysql://x/y"), "postgresql://"),
        (("--tls-cert", "/nowhere.pem"), "no such file"),
        (("--tls-cert", "/etc/hosts", "--tls-key", "/etc/hosts"), "no certificate and its key"),
        (("--prices", "/etc/hosts"), "/etc/hosts"),
        (("--webhook", "nowhere"), "http://"),
        (("--interval", "0"), "from 1s"),
        (("--store", "/etc/hosts"), "no coadapt store"),
        (("--listen", "0.0.0.0:0"), "without TLS"),
        (("--listen", "192.0.2.1:0", "--tls-cert", "/etc/hosts"), "both"),
    ],
)
def test_wrong_options_are_said_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    result = Served(tmp_path).coadapt("serve", "--listen", "127.0.0.1:0", *options)
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert said in line
    # nothing of it is remembered, or left running
    assert not Home(tmp_path / "home").options_file.exists()
    assert Served(tmp_path).left() == set()


def test_detached_serve_names_its_own_address_and_not_that_of_one_that_was_killed(served: Served) -> None:
    served.serve()
    assert served.process is not None
    served.process.kill()
    served.process.wait()
    until(lambda: served.controller() is None)
    old = served.home.address.read_text().strip()
    result = served.coadapt("serve", "--detach", "--listen", "127.0.0.1:0")
    assert result.returncode == 0, result.stderr
    new = served.home.address.read_text().strip()
    assert new != old
    assert f" at {new} " in result.stdout
    assert served.coadapt("ps").returncode == 0


def test_store_of_another_home_is_refused_at_once(served: Served, tmp_path: Path) -> None:
    served.serve()
    other = Served(tmp_path / "other")
    store = served.home.store(served.home.read_options())
    result = other.coadapt("serve", "--listen", "127.0.0.1:0", "--store", store)
    assert result.returncode == 2
    assert "belongs to another home" in result.stderr
    assert not other.home.options_file.exists()


def test_down_stops_everything_though_the_options_cannot_be_read(served: Served) -> None:
    served.serve()
    options = served.home.options_file.read_bytes()
    served.home.options_file.write_bytes(b"{")
    result = served.coadapt("down")
    assert (result.returncode, served.left()) == (0, set())
    assert "Nothing is left running." in result.stdout
    assert "serve.json cannot be read" in result.stderr
    served.home.options_file.write_bytes(options)


def test_a_token_that_is_no_text_is_made_anew(served: Served) -> None:
    served.home.make()
    served.home.token.write_bytes(b"\xff\xfe\n")
    served.serve()
    assert served.coadapt("ps").returncode == 0


def test_network_without_tls_is_refused_before_anything_starts(tmp_path: Path) -> None:
    served = Served(tmp_path)
    result = served.coadapt("serve", "--virtual", "1x1:t4", "--listen", "0.0.0.0:0")
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert "without TLS" in line
    assert not served.home.options_file.exists()
    assert not keeper_runs(served.home.keeper)


def test_down_and_doctor_without_a_cluster(tmp_path: Path) -> None:
    served = Served(tmp_path)
    assert served.coadapt("down").returncode == 0
    doctor = served.coadapt("doctor")
    assert doctor.returncode == 1
    assert "create one: coadapt serve --home" in doctor.stdout
