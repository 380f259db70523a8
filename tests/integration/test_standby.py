"""A standby takes over from a controller that hangs, and the old one writes nothing more: real processes, both stores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from coadapt.executors.node.processes import started_ticks
from coadapt.model import ControllerStarted, Record
from coadapt.model.snapshot import Phase
from coadapt.store import open_store
from tests import postgres_server
from tests.integration.serving import Served, serving, until

pytest.importorskip("starlette", reason="the API is not installed (the extra server)")

OPTIONS = ("--virtual", "1x4:t4", "--policy", "fifo", "--listen", "127.0.0.1:0", "--grace-period", "5")
#: The supervisor of the stopped controller must not be the one that replaces it.
PATIENT = (*OPTIONS, "--liveness", "1h")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        yield served


@contextmanager
def standby(served: Served) -> Iterator[subprocess.Popen[str]]:
    """A second supervisor, whose controller waits for the lease."""
    command = [
        sys.executable,
        "-m",
        "coadapt.cli.main",
        "serve",
        "--standby",
        "--home",
        str(served.home.path),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        until(
            lambda: "standing by" in log_of(served, "standby") or process.poll() is not None,
            "the standby does not wait",
        )
        assert process.poll() is None, process.communicate()[0]
        yield process
    finally:
        process.terminate()
        process.communicate()


def log_of(served: Served, name: str) -> str:
    file = served.home.log(name)
    return file.read_text() if file.exists() else ""


def starts(served: Served) -> list[Record]:
    return [record for record in served.log() if isinstance(record.event, ControllerStarted)]


def epoch(served: Served) -> int:
    with closing(open_store(served.home.store(served.home.read_options())).log()) as log:
        ((value,),) = log._database.rows("SELECT value FROM meta WHERE key = 'epoch'")
        return int(value)


def take_over(served: Served) -> None:
    """SIGSTOP of the first controller, work by the second, SIGCONT of the first: it writes nothing and waits."""
    job = served.submit("long")
    until(lambda: served.lives("long") != [])
    first = served.controller()
    assert first is not None
    before = epoch(served)
    with standby(served):
        os.kill(first, signal.SIGSTOP)
        until(lambda: served.controller() not in (None, first), "nobody took over")
        second = served.controller()
        assert epoch(served) > before
        other = served.submit("short", short=True)
        until(lambda: served.done("short"))
        until(lambda: served.state().jobs[other].phase is Phase.SUCCEEDED)
        records = len(served.log())
        owners = len(starts(served))
        # the old one goes on where it stood, and finds that it was replaced
        os.kill(first, signal.SIGCONT)
        until(lambda: started_ticks(first) is None, "the replaced controller goes on")
        assert "lost its lease" in log_of(served, "controller") or "was replaced" in log_of(
            served, "controller"
        )
        until(lambda: "standing by" in log_of(served, "controller"), "its successor does not stand by")
        assert served.controller() == second
        assert len(starts(served)) == owners == 2
        # whatever was written since is the work of the second
        served.end("long")
        until(lambda: served.state().jobs[job].phase is Phase.SUCCEEDED)
        assert len(served.log()) > records
        assert len(served.lives("long")) == 1
        # and now the other way round: the second ends with its supervisor, and the first takes over again
    until(lambda: served.controller() not in (None, second), "the first did not take over again")
    third = served.submit("third", short=True)
    until(lambda: served.done("third"))
    until(lambda: served.state().jobs[third].phase is Phase.SUCCEEDED)


def test_standby_takes_over_a_stopped_controller_which_then_writes_nothing(served: Served) -> None:
    served.serve(*PATIENT)
    take_over(served)


@pytest.mark.skipif(bool(postgres_server.why_not()), reason=postgres_server.why_not())
def test_standby_takes_over_on_postgresql(served: Served) -> None:
    with postgres_server.server() as url:
        served.serve(*PATIENT, "--store", url)
        take_over(served)
        assert served.coadapt("down").returncode == 0


def test_standby_becomes_the_first_when_the_whole_of_it_is_killed(served: Served) -> None:
    served.serve(*OPTIONS)
    job = served.submit("long")
    until(lambda: served.lives("long") != [])
    address = served.home.address.read_text()
    with standby(served) as second:
        refused = served.coadapt("serve", "--standby")
        assert refused.returncode == 2
        assert f"a standby is already running in {served.home.path} (process {second.pid})" in refused.stderr
        assert "\n" not in refused.stderr.strip()
        findings = served.coadapt("doctor").stdout
        assert f"standby: running as process {second.pid}" in findings
        assert served.process is not None
        served.process.kill()
        until(
            lambda: served.home.address.exists() and f"{second.pid} " in served.home.lock.read_text(),
            "the standby is not the first",
        )
        until(lambda: served.home.address.exists() and served.home.address.read_text() == address)
        other = served.submit("short", short=True)
        until(lambda: served.done("short"))
        assert served.state().jobs[other].phase is not None
        served.end("long")
        until(lambda: served.state().jobs[job].phase is Phase.SUCCEEDED)
        assert len(served.lives("long")) == 1
        again = served.coadapt("serve", *OPTIONS)
        assert again.returncode == 2
        assert f"process {second.pid}" in again.stderr


def test_down_ends_the_standby_too(served: Served) -> None:
    served.serve(*OPTIONS)
    with standby(served) as second:
        result = served.coadapt("down")
        assert result.returncode == 0
        assert "Stopped the standby." in result.stdout
        assert second.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--standby",), "is not the home of a cluster"),
        (("--standby", "--policy", "fifo"), "--standby takes its options from the cluster"),
        (("--standby", "--detach"), "--standby takes its options from the cluster"),
    ],
    ids=str,
)
def test_standby_that_cannot_be_is_refused_in_one_line(
    served: Served, arguments: tuple[str, ...], said: str
) -> None:
    refused = served.coadapt("serve", *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr
