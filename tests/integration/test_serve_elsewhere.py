"""``coadapt serve`` in the background, on PostgreSQL and on a disk that fills up; and what was, asked later."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.executors.node.keeper_shutdown import pid_in
from coadapt.executors.node.processes import started_ticks
from coadapt.model.snapshot import ENDED
from tests import postgres_server
from tests.integration.serving import Served, serving
from tests.waiting import until

pytest.importorskip("starlette", reason="the API is not installed (the extra server)")
SMALL = ("--virtual", "2x2:t4", "--policy", "fifo", "--listen", "127.0.0.1:0", "--grace-period", "5")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        yield served


def test_detached_serve_listens_when_it_returns_and_knows_what_was(served: Served) -> None:
    started = served.coadapt("serve", "--detach", *SMALL)
    assert started.returncode == 0, started.stderr
    assert served.home.address.read_text().strip() in started.stdout + started.stderr
    before = time.time()
    job = served.submit("past")  # it answers at once
    until(lambda: len(served.lives("past")) == 1)
    again = served.coadapt("serve", "--detach", *SMALL)
    assert again.returncode == 2
    assert "is already running in" in again.stderr

    served.end("past")
    until(lambda: job in served.state().jobs and served.state().jobs[job].phase in ENDED)
    known = served.state().jobs[job]
    assert known.started_at is not None
    assert known.finished_at is not None
    middle = (known.started_at + known.finished_at) / 2
    then = served.ask("GET", f"/v1/jobs/{job}/why?at={middle}")
    assert (then["job"], then["at"]) == (job, middle)
    assert then["state"] in ("STARTING", "RUNNING")
    assert served.ask("GET", f"/v1/jobs/{job}/why")["state"] == "SUCCEEDED"
    with pytest.raises(urllib.error.HTTPError) as refused:
        served.ask("GET", f"/v1/jobs/{job}/why?at={before - 3600}")
    assert refused.value.code == 422
    with refused.value as answer:
        assert b"had not been submitted then" in answer.read()
    said = served.coadapt("why", job, "--at", str(middle))
    assert said.returncode == 0, said.stderr
    assert f"{job} ({then['state']})" in said.stdout

    down = served.coadapt("down")
    assert down.returncode == 0, down.stderr
    assert not served.home.address.exists()


def test_cluster_on_postgresql_lives_through_the_death_of_its_controller(served: Served) -> None:
    if reason := postgres_server.why_not():
        pytest.skip(reason)
    with postgres_server.server() as url:
        served.serve(*SMALL, "--store", url)
        long, short = served.submit("long"), served.submit("short", short=True)
        until(lambda: len(served.lives("long")) == 1)
        controller = served.controller()
        assert controller is not None
        os.kill(controller, signal.SIGKILL)
        until(lambda: served.controller() not in (None, controller), "no new controller")
        served.end("long")
        until(lambda: served.done("long", "short"))
        until(lambda: all(job.phase in ENDED for job in served.state().jobs.values()))
        assert {job: state.phase.value for job, state in served.state().jobs.items()} == {
            long: "SUCCEEDED",
            short: "SUCCEEDED",
        }
        assert len(served.lives("long")) == 1
        assert not (served.home.path / "store.db").exists()
        doctor = served.coadapt("doctor")
        assert doctor.returncode == 0, doctor.stdout
        assert served.coadapt("down").returncode == 0


def processes_of(served: Served) -> list[int]:
    """The supervisor and its children: those who write the store."""
    assert served.process is not None
    own = served.process.pid
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    return [own, *map(int, children)]


def room(served: Served, size: int) -> None:
    """From now on nobody of them can make a file longer than this."""
    for pid in processes_of(served):
        try:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        except ProcessLookupError:
            continue


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set on Linux only")
def test_full_disk_stops_nothing_that_runs_and_all_goes_on_when_there_is_room(served: Served) -> None:
    """No file may grow: the controller cannot write what happens, and ends, again and again."""
    served.serve(*SMALL)
    kept = served.submit("kept")
    until(lambda: len(served.lives("kept")) == 1)
    until(lambda: served.state().jobs[kept].phase == "RUNNING")
    (pid,) = served.lives("kept")
    controller = served.controller()
    assert controller is not None
    room(served, 1)
    until(lambda: started_ticks(controller) is None, "the controller writes on a full disk")
    with pytest.raises(urllib.error.HTTPError) as refused:
        served.submit("refused", short=True)
    assert refused.value.code == 503
    refused.value.close()
    served.end("kept")
    until(lambda: served.done("kept"), "the job does not go on")
    assert served.lives("kept") == [pid]
    assert served.process is not None
    assert served.process.poll() is None
    assert pid_in(served.home.lock) == served.process.pid
    assert served.ask("GET", f"/v1/jobs/{kept}")["line"]["state"] == "RUNNING"  # as far as is written

    room(served, resource.RLIM_INFINITY)
    until(lambda: served.state().jobs[kept].phase in ENDED, "no controller goes on")
    after = served.submit("after", short=True)
    until(lambda: after in served.state().jobs and served.state().jobs[after].phase in ENDED)
    phases = {name: job.phase.value for name, job in served.state().jobs.items()}
    assert phases == {kept: "SUCCEEDED", after: "SUCCEEDED"}
    assert served.lives("kept") == [pid]
    assert served.lives("refused") == []
