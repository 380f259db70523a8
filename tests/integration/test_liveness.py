"""A controller that hangs is replaced, and the job on which it hangs is quarantined: real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coadapt.executors.node.processes import started_ticks
from coadapt.live.child_lives import read_lives
from coadapt.model import JobQuarantined
from coadapt.model.snapshot import Phase
from tests.integration.serving import Served, serving, until

pytest.importorskip("starlette", reason="the API is not installed (the extra server)")

OPTIONS = ("--virtual", "1x4:t4", "--listen", "127.0.0.1:0", "--grace-period", "5", "--liveness", "5s")
#: First come, first served; a decision that sees a job called "endless" never ends.
POLICY = """
from coadapt.policies.fifo import FifoPolicy


class EndlessPolicy(FifoPolicy):
    name = "endless"
    order = 99
    help = "Hangs on some jobs."

    def decide(self, snapshot, curves, memory, rng):
        for job in snapshot:
            while job.spec.name == "endless":
                pass
        return super().decide(snapshot, curves, memory, rng)
"""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    plugins = tmp_path / "plugins"
    info = plugins / "endless-1.dist-info"
    info.mkdir(parents=True)
    (plugins / "endless_policy.py").write_text(POLICY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: endless\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[coadapt.policies]\nendless = endless_policy:EndlessPolicy\n")
    monkeypatch.setenv("PYTHONPATH", str(plugins))
    with serving(tmp_path) as served:
        yield served


def test_stopped_controller_is_replaced_and_jobs_go_on(served: Served) -> None:
    served.serve("--policy", "fifo", *OPTIONS)
    job = served.submit("long")
    until(lambda: served.lives("long") != [])
    first = served.controller()
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    until(lambda: started_ticks(first) is None, "the stopped controller still lives")
    until(lambda: served.controller() not in (None, first), "no other controller came")
    other = served.submit("short", short=True)
    until(lambda: served.done("short"))
    served.end("long")
    until(lambda: served.state().jobs[job].phase is Phase.SUCCEEDED)
    until(lambda: served.state().jobs[other].phase is Phase.SUCCEEDED)
    assert len(served.lives("long")) == 1
    lives = read_lives(served.home.children)["controller"]
    assert (lives.starts, lives.hangs) == (2, 1)
    findings = json.loads(served.coadapt("doctor", "--json").stdout)
    (found,) = [each for each in findings if each["subject"] == "controller"]
    assert found["verdict"] == "warn"
    assert "hung 1 time" in found["text"]


def test_job_on_which_decisions_hang_is_quarantined_and_the_others_go_on(served: Served) -> None:
    served.serve("--policy", "endless", *OPTIONS)
    before = served.submit("before")
    until(lambda: served.lives("before") != [])
    liar = served.submit("endless")
    after = served.submit("after", short=True)
    until(lambda: served.done("after"), "the cluster does not go on")
    state = served.state()
    assert [job.id for job in state.jobs.values() if job.quarantine] == [liar]
    assert state.jobs[before].phase is Phase.RUNNING
    (event,) = [record.event for record in served.log() if isinstance(record.event, JobQuarantined)]
    assert "decisions with it do not end: 2 controllers hung" in event.reason
    until(lambda: served.state().jobs[after].phase is Phase.SUCCEEDED)

    said = served.coadapt("why", liar)
    assert "(QUARANTINED): Left out of decisions" in said.stdout
    assert f"coadapt retry {liar}" in said.stdout
    assert "QUARANTINED" in served.coadapt("ps").stdout
    doctor = served.coadapt("doctor")
    assert doctor.returncode == 1
    assert f"quarantine: {liar}" in doctor.stdout
    served.end("before")


def api_of(served: Served) -> list[int]:
    """Pids of the API processes of this home that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"coadapt.live.api_process" in words and str(served.home.path).encode() in words:
                    found.append(int(entry.name))
    return [pid for pid in found if started_ticks(pid) is not None]


def test_stopped_api_is_replaced_on_the_same_port(served: Served) -> None:
    served.serve("--policy", "fifo", *OPTIONS)
    address = served.home.address.read_text()
    (first,) = api_of(served)
    os.kill(first, signal.SIGSTOP)
    until(lambda: started_ticks(first) is None, "the stopped API still lives")
    until(lambda: api_of(served) not in ([], [first]))
    until(lambda: read_lives(served.home.children)["api"].hangs == 1)

    def answers() -> bool:
        with suppress(OSError):
            return served.ask("GET", "/v1/me") is not None
        return False

    until(answers)
    assert served.home.address.read_text() == address
    assert "it hung 1 time and was killed" in served.coadapt("doctor").stdout
    assert read_lives(served.home.children)["controller"].hangs == 0
