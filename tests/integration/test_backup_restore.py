"""A restore drill with real processes: back up a running cluster, lose it, restore it elsewhere, and go on."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coadapt.model import JobStopped
from coadapt.model.snapshot import Phase
from coadapt.scheduler.state.job_state import JobState
from tests.integration.serving import Served, serving, until

pytest.importorskip("starlette", reason="the API is not installed (the extra server)")

#: Counts steps in checkpoints until it is let end; notes from which step each life began, and a twin as an error.
TRAIN = """
import fcntl, os, pathlib, signal, sys, time
notes, saves = pathlib.Path(sys.argv[1]), sys.argv[2] == "saves"
lock = os.open(f"{notes}.alive", os.O_CREAT | os.O_RDWR)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    pathlib.Path(f"{notes}.twice").write_text("two at once")
signal.signal(signal.SIGTERM, lambda *a: sys.exit(143))
saved = pathlib.Path(os.environ["COADAPT_CHECKPOINTS"])
steps = sorted(int(each.name[5:]) for each in saved.glob("step-*")) if saved.is_dir() else []
step = steps[-1] if steps else 0
with open(f"{notes}.lives", "a") as lives:
    lives.write(f"{step}\\n")
while not os.path.exists(f"{notes}.end"):
    step += 1
    if saves and step <= 3:
        saved.mkdir(parents=True, exist_ok=True)
        part = saved / ".part"
        part.write_text("x" * step)
        part.rename(saved / f"step-{step}")
    time.sleep(0.02)
open(f"{notes}.done", "a").write("done\\n")
"""
OPTIONS = ("--policy", "fifo", "--listen", "127.0.0.1:0", "--grace-period", "5")


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    with ExitStack() as stack:
        found = []
        for name in ("old", "new"):
            (tmp_path / name).mkdir()
            found.append(stack.enter_context(serving(tmp_path / name)))
        yield found[0], found[1]


def submit(served: Served, name: str, kind: str) -> str:
    """Submits a job with code of its own; what it notes is in the directory of ``served``, wherever it runs later."""
    code = served.path / f"code-{name}"
    code.mkdir()
    (code / "train.py").write_text(f"# {name}\n{TRAIN}")
    spec = code / "job.yaml"
    words = [sys.executable, "train.py", str(served.path / name), kind]
    spec.write_text(f"name: {name}\npreemptible: true\nworkdir: {code}\nrun: {shlex.join(words)}\n")
    done = served.coadapt("submit", str(spec), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["job"])


def lives(served: Served, name: str) -> list[int]:
    file = served.path / f"{name}.lives"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def down(served: Served) -> None:
    assert served.coadapt("down").returncode == 0
    assert served.process is not None
    served.process.communicate()
    served.process = None


def job(served: Served, name: str) -> JobState:
    return served.state().jobs[name]


def test_cluster_is_lost_and_restored_elsewhere(homes: tuple[Served, Served], tmp_path: Path) -> None:
    old, new = homes
    old.serve("--virtual", "1x2:t4", *OPTIONS)
    saver, plain = submit(old, "saver", "saves"), submit(old, "plain", "not")
    until(lambda: lives(old, "saver") and lives(old, "plain"))
    saves = old.home.checkpoints / saver
    until(lambda: (saves / "step-3").exists())

    # a shutdown is no failure, and the time until the next start is no training
    down(old)
    old.serve("--virtual", "1x2:t4", *OPTIONS)
    until(lambda: len(lives(old, "plain")) == 2 and len(lives(old, "saver")) == 2)
    ends = [r.event for r in old.log() if isinstance(r.event, JobStopped)]
    started = [r for r in old.log() if type(r.event).__name__ == "ControllerStarted"][-1]
    assert {(e.job, e.cause) for e in ends} == {(saver, "shutdown"), (plain, "shutdown")}
    assert all(e.ended_at is not None and e.ended_at <= started.at for e in ends)
    assert job(old, plain).tries.preempted == ()
    assert lives(old, "saver") == [0, 3]

    waits, lost = submit(old, "waits", "not"), submit(old, "lost", "not")
    until(lambda: lost in old.state().jobs)
    sha = job(old, lost).spec.code
    shutil.move(old.home.code / sha, tmp_path / "rescued")
    file = tmp_path / "monday.coadapt"
    done = old.coadapt("backup", str(file))
    assert done.returncode == 0, done.stderr
    assert "4 jobs, 4 of them unfinished; 3 checkpoints" in done.stdout
    assert f"Without their code, which is not in the home: {lost}" in done.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = hashlib.sha256(file.read_bytes()).hexdigest()

    # beside the running one: refused, or without running anything
    refused = new.coadapt("restore", str(file))
    assert refused.returncode == 2
    assert "is running in" in refused.stderr
    assert not new.home.path.exists()
    drill = Served(tmp_path / "drill")
    assert drill.coadapt("restore", str(file), "--hold").returncode == 0
    assert all(each.on_hold for each in drill.state().jobs.values())
    assert drill.state().all_nodes == {}
    assert not old.home.fence.exists()

    # the old one is lost: nothing of it runs, its checkpoints were rescued
    down(old)
    seen = {name: len(lives(old, name)) for name in ("saver", "plain")}
    done = new.coadapt("restore", str(file), "--checkpoints", str(old.home.checkpoints))
    assert done.returncode == 0, done.stderr
    for line in (
        f"Waiting as before: {waits}.",
        f"Continuing from their checkpoints: {saver}.",
        f"Starting from their beginning, because no checkpoint of them is here: {plain}.",
        f"Waiting for their code, which was not in the backup ('coadapt why JOB'): {lost}.",
        f"{old.home.path} is fenced",
    ):
        assert line in done.stdout, done.stdout
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before
    fenced = old.coadapt("serve")
    assert fenced.returncode == 2
    assert "must not be served any more" in fenced.stderr
    again = new.coadapt("restore", str(file))
    assert "is not empty" in again.stderr
    assert stat.S_IMODE((new.home.path / "token").stat().st_mode) == 0o600

    # on another machine, with other nodes: all jobs go on, each once
    new.serve("--virtual", "2x1:v100", *OPTIONS)
    until(lambda: len(lives(old, "saver")) > seen["saver"] and len(lives(old, "plain")) > seen["plain"])
    assert (lives(old, "saver")[-1], lives(old, "plain")[-1]) == (3, 0)
    assert job(new, saver).attempt == 3
    assert {node["gpu_type"] for node in new.ask("GET", "/v1/nodes")["nodes"]} == {"v100"}
    said = new.ask("GET", f"/v1/jobs/{lost}/why")
    assert (said["code"], job(new, lost).phase) == ("code-missing", Phase.PENDING)
    for name in ("saver", "plain", "waits", "lost"):
        old.end(name)
    until(lambda: old.done("saver", "plain", "waits"))
    assert job(new, lost).phase is Phase.PENDING
    shutil.move(tmp_path / "rescued", new.home.code / sha)
    until(lambda: old.done("lost"))
    until(lambda: all(each.phase is Phase.SUCCEEDED for each in new.state().jobs.values()))
