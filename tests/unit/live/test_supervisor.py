"""The supervisor with children that are small scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.errors import InputError
from coadapt.executors.node.keeper_shutdown import is_locked, pid_in
from coadapt.executors.node.processes import started_ticks
from coadapt.live.supervisor import Child, Supervisor, locked
from tests.waiting import until


def a_child(path: Path, code: str, name: str = "worker") -> Child:
    return Child(name, [sys.executable, "-c", code, str(path)], path / f"{name}.log")


COUNTS = "import os, sys, time; open(sys.argv[1] + '/lives', 'a').write(str(os.getpid()) + '\\n'); "


def lives(path: Path) -> list[int]:
    file = path / "lives"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_child_that_dies_is_started_again_and_it_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    child = a_child(tmp_path, COUNTS + "time.sleep(3600)")
    supervisor = Supervisor([child], said.append)

    def look() -> None:
        pids = lives(tmp_path)
        if len(pids) == 1 and child.process is not None and pids[0] == child.process.pid:
            os.kill(pids[0], signal.SIGKILL)
        if len(pids) == 2:
            supervisor.stop()

    supervisor.run(look)
    assert len(lives(tmp_path)) == 2
    assert "the worker was killed by signal 9" in said[0]
    assert all(started_ticks(pid) is None for pid in lives(tmp_path))


def test_pauses_grow_while_it_keeps_dying(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor([a_child(tmp_path, COUNTS + "print('disk full'); sys.exit(75)")], said.append)
    supervisor.run(lambda: supervisor.stop() if len(said) == 3 else None)
    assert ["in 0.25 s" in said[0], "in 0.5 s" in said[1], "in 1 s" in said[2]] == [True] * 3
    assert "ended with exit code 75: disk full" in said[0]


def test_wrong_input_at_the_first_start_ends_everything_with_what_was_said(tmp_path: Path) -> None:
    code = "import sys; print('2026-01-01 10:00:00,123 ERROR some.module: port 80 is taken'); sys.exit(2)"
    other = a_child(tmp_path, COUNTS + "time.sleep(3600)", "other")
    with pytest.raises(InputError, match=r"^port 80 is taken$"):
        Supervisor([other, a_child(tmp_path, code)], lambda line: None).run()
    assert other.process is not None
    assert other.process.poll() is not None


def test_children_that_ignore_sigterm_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coadapt.live.supervisor._END_S", 0.5)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + COUNTS + "time.sleep(3600)"
    supervisor = Supervisor([a_child(tmp_path, code)], lambda line: None)
    supervisor.run(lambda: supervisor.stop() if lives(tmp_path) else None)
    assert started_ticks(lives(tmp_path)[0]) is None


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from coadapt.live.supervisor import Child, Supervisor\n"
        "path = Path(sys.argv[1])\n"
        f"code = {COUNTS + 'time.sleep(3600)'!r}\n"
        "Supervisor([Child('a', [sys.executable, '-c', code, str(path)], path / 'log')], print).run()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) as process:
        until(lambda: len(lives(tmp_path)) == 1)
        process.kill()
    until(lambda: started_ticks(lives(tmp_path)[0]) is None)


def test_log_is_its_owners_only_and_goes_on(tmp_path: Path) -> None:
    child = a_child(tmp_path, "print('hello')")
    for _ in range(2):
        child.start()
        assert child.process is not None
        child.process.wait()
    assert child.log.read_text() == "hello\nhello\n"
    assert child.log.stat().st_mode & 0o777 == 0o600


def test_lock_names_its_holder_and_is_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "serve.lock"
    assert not is_locked(path)
    with locked(path, "taken by {pid}"):
        assert is_locked(path)
        assert pid_in(path) == os.getpid()
        with pytest.raises(InputError, match=f"taken by {os.getpid()}"), locked(path, "taken by {pid}"):
            raise AssertionError("two have it")
    assert not is_locked(path)
