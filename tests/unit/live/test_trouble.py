"""What ``doctor`` finds of hangs, crashes, quarantines, snapshots and damaged pages; and a supervisor with a child that hangs."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from coadapt.errors import InputError, StoreError
from coadapt.executors.node.processes import started_ticks
from coadapt.live import hang_culprit, health_checks, serve_process
from coadapt.live.child_lives import Hang, Lives, next_hang, read_lives, write_lives
from coadapt.live.controller_progress import ProgressFile, Reached, read_progress
from coadapt.live.supervisor import Child, Supervisor
from coadapt.model import (
    JobQuarantined,
    JobStarted,
    JobSubmitted,
    NodeJoined,
    Record,
    Woke,
)
from coadapt.model.snapshot import Snapshot
from coadapt.placement.packed import PackedPlacer
from coadapt.policies import Curves, Memory, Proposal, Rng
from coadapt.policies.fifo import FifoPolicy
from coadapt.runtime.controller import ControllerStatus
from coadapt.scheduler import Scheduler
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions
from tests.builders import a_cluster, a_job, records_of


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    home.write_options(ServeOptions())
    return home


def append(home: Home, *records: Record) -> None:
    with closing(open_store(home.store(home.read_options())).log()) as log:
        log.append(list(records))


def found(home: Home, subject: str) -> list[health_checks.Finding]:
    return [each for each in health_checks.examine(home) if each.subject == subject]


def test_doctor_names_quarantined_jobs(home: Home) -> None:
    append(
        home,
        *records_of(
            (0.0, JobSubmitted(job="a-1", spec=a_job(1, user="ada"))),
            (0.0, JobQuarantined(job="a-1", reason="decisions with it do not end")),
        ),
    )
    (finding,) = found(home, "quarantine")
    assert finding.verdict == "bad"
    assert "a-1 of ada is left out of decisions: decisions with it do not end" in finding.text
    assert "coadapt retry a-1" in finding.remedy


def test_doctor_reports_restarts_hangs_and_a_crash_loop(home: Home) -> None:
    write_lives(home.children, {"api": Lives(starts=1), "controller": Lives(starts=1)})
    assert found(home, "controller") == []
    hang = Hang(stage="decision", times=2, at=time.time())
    lives = Lives(
        starts=3, ended="was killed by signal 9", ended_at=time.time(), quick_ends=1, hangs=2, hang=hang
    )
    write_lives(home.children, {"controller": lives})
    (finding,) = found(home, "controller")
    assert finding.verdict == "warn"
    assert "started again 2 times" in finding.text
    assert "hung 2 times and was killed, the last time in a decision" in finding.text
    looping = Lives(starts=9, ended="ended with 1: OverflowError", ended_at=time.time(), quick_ends=8)
    write_lives(home.children, {"controller": looping})
    (finding,) = found(home, "controller")
    assert finding.verdict == "bad"
    assert "ended with 1: OverflowError" in finding.text


def test_doctor_does_not_date_an_end_that_nobody_saw(home: Home) -> None:
    """A standby starts the API anew after the first supervisor was killed."""
    write_lives(home.children, {"api": Lives(starts=2), "controller": Lives(starts=1)})
    (finding,) = found(home, "api")
    assert finding.verdict == "warn"
    assert finding.text == "started again 1 time, after another supervisor took over"


def test_doctor_reports_a_snapshot_that_could_not_be_saved(home: Home) -> None:
    status = ControllerStatus()
    status.snapshot(OverflowError("int too large"))
    with closing(open_store(home.store(home.read_options())).log()) as log:
        log.save_status(msgspec.json.encode(status).decode())
    assert [each.verdict for each in found(home, "snapshots")] == ["ok", "bad"]
    assert "OverflowError: int too large" in found(home, "snapshots")[1].text
    status.snapshot(None)
    with closing(open_store(home.store(home.read_options())).log()) as log:
        log.save_status(msgspec.json.encode(status).decode())
    assert [each.verdict for each in found(home, "snapshots")] == ["ok", "warn"]


def damage(path: Path) -> None:
    """Inverts bytes of pages in the middle of the file."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    for at in range(middle, middle + 5000):
        data[at] ^= 0xFF
    path.write_bytes(data)


def test_damaged_pages_are_found_by_doctor_and_before_serving(home: Home) -> None:
    submitted = [
        (float(number), JobSubmitted(job=f"j-{number}", spec=a_job(1, command=("x" * 300,))))
        for number in range(400)
    ]
    append(home, *records_of(*submitted))
    options = home.read_options()
    assert found(home, "store")[0].verdict == "ok"
    serve_process._check_pages(home, options)
    with closing(open_store(home.store(options)).log()):
        pass  # the last connection moves the write-ahead log into the file
    damage(Path(home.store(options)))
    assert "bad" in {each.verdict for each in found(home, "store")}
    with pytest.raises(InputError, match="is damaged"):
        serve_process._check_pages(home, options)
    copy = home.path / "copy.db"
    with pytest.raises(StoreError, match="a copy would be damaged, too"):
        open_store(home.store(options)).backup(copy)
    assert not copy.exists()


def test_truncated_store_is_named_by_doctor_with_what_to_do(home: Home) -> None:
    store = Path(home.store(home.read_options()))
    with closing(open_store(str(store)).log()):
        pass
    store.write_bytes(store.read_bytes()[:5000])
    (finding,) = [each for each in found(home, "store") if each.verdict == "bad"]
    assert "restore a backup" in finding.remedy


def test_progress_is_read_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    assert read_progress(path) is None
    progress = ProgressFile(path)
    first = read_progress(path)
    assert first is not None
    assert first.stage == "idle"
    progress.handling(Record(seq=7, at=0.0, event=Woke()))
    assert read_progress(path) == Reached(first.steps + 1, "decision", 7, "")
    progress.handling(Record(seq=8, at=0.0, event=JobStarted(job="ä" * 200, attempt=1)))
    reached = read_progress(path)
    assert reached is not None
    assert (reached.stage, reached.seq, reached.job[:10]) == ("record", 8, "ä" * 10)
    progress.advanced()
    # the next controller counts on, so that its first sign is progress, too
    assert ProgressFile(path) is not progress
    again = read_progress(path)
    assert again is not None
    assert (again.stage, again.steps) == ("idle", first.steps + 4)


def test_progress_goes_on_without_a_file(tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path / "missing" / "progress")
    progress.handling(Record(seq=7, at=0.0, event=Woke()))
    progress.advanced()


def test_hangs_on_the_same_thing_are_counted() -> None:
    decision = Reached(9, "decision", 4, "")
    one = next_hang(None, decision, good=False, at=1.0)
    two = next_hang(one, Reached(19, "decision", 6, ""), good=False, at=2.0)
    assert (one.times, two.times) == (1, 2)
    assert next_hang(two, Reached(29, "record", 8, "a"), good=False, at=3.0).times == 1
    assert next_hang(two, decision, good=True, at=3.0).times == 1
    assert next_hang(None, None, good=False, at=3.0) == Hang(stage="idle", at=3.0)


#: Makes progress a few times, then none.
HANGS = """
import os, sys, time
from pathlib import Path
from coadapt.live.controller_progress import ProgressFile
from coadapt.model import Record, Woke
progress = ProgressFile(Path(sys.argv[1]) / "progress")
open(sys.argv[1] + "/lives", "a").write(str(os.getpid()) + "\\n")
progress.handling(Record(seq=3, at=0.0, event=Woke()))
time.sleep(3600)
"""


def test_child_without_progress_is_killed_and_started_again(tmp_path: Path) -> None:
    said: list[str] = []
    lives, children = tmp_path / "lives", tmp_path / "children.json"
    child = Child(
        "controller",
        [sys.executable, "-c", HANGS, str(tmp_path)],
        tmp_path / "log",
        progress=tmp_path / "progress",
    )
    supervisor = Supervisor([child], said.append, liveness_s=1.0, lives_file=children)

    def pids() -> list[int]:
        return [int(line) for line in lives.read_text().split()] if lives.exists() else []

    supervisor.run(lambda: supervisor.stop() if read_lives(children)["controller"].hangs == 2 else None)
    assert "has made no progress for 1 s and is killed" in said[0]
    assert "was killed by signal 9" in said[1]
    recorded = read_lives(children)["controller"]
    assert recorded.hang is not None
    assert (recorded.hang.stage, recorded.hang.seq, recorded.hang.times) == ("decision", 3, 2)
    assert all(started_ticks(pid) is None for pid in pids())


def test_child_that_dies_in_a_decision_counts_like_one_that_hangs_there(tmp_path: Path) -> None:
    children = tmp_path / "children.json"
    script = HANGS.replace("time.sleep(3600)", "sys.exit(7)")
    child = Child(
        "controller",
        [sys.executable, "-c", script, str(tmp_path)],
        tmp_path / "log",
        progress=tmp_path / "progress",
    )
    supervisor = Supervisor([child], lambda text: None, liveness_s=60.0, lives_file=children)

    def look() -> None:
        hang = read_lives(children)["controller"].hang
        if hang is not None and hang.times == 2:
            supervisor.stop()

    supervisor.run(look)
    recorded = read_lives(children)["controller"]
    assert recorded.hang is not None
    assert (recorded.hang.stage, recorded.hangs) == ("decision", 0)


class Endless(FifoPolicy):
    """Decisions that see one of ``poison`` do not end."""

    def __init__(self, *poison: str) -> None:
        super().__init__()
        self.poison = poison

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        while any(job.id in self.poison for job in snapshot):
            signal.pause()
        return super().decide(snapshot, curves, memory, rng)


class Ending(FifoPolicy):
    """Decisions that see one of ``poison`` end the process."""

    def __init__(self, *poison: str) -> None:
        super().__init__()
        self.poison = poison

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        if any(job.id in self.poison for job in snapshot):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decide(snapshot, curves, memory, rng)


def a_scheduler(policy: FifoPolicy, jobs: int = 5) -> Scheduler:
    scheduler = Scheduler(policy, PackedPlacer())
    events = [NodeJoined(node=node) for node in a_cluster("1x4").nodes]
    submitted = [JobSubmitted(job=f"j{n}", spec=a_job(1)) for n in range(jobs)]
    scheduler.fold(records_of(*((0.0, event) for event in [*events, *submitted])))
    return scheduler


@pytest.mark.parametrize("poison", [(), ("j0",), ("j1", "j4")])
def test_jobs_on_which_decisions_hang_are_found_in_other_processes(poison: tuple[str, ...]) -> None:
    beats: list[int] = []
    found = hang_culprit.endless_jobs(a_scheduler(Endless(*poison)), 1.0, lambda: beats.append(1))
    assert sorted(found) == sorted(poison)
    assert bool(beats) or not poison


def test_jobs_on_which_decisions_crash_are_found_in_other_processes() -> None:
    found = hang_culprit.endless_jobs(a_scheduler(Ending("j1", "j4")), 30.0, lambda: None)
    assert sorted(found) == ["j1", "j4"]


def test_two_hangs_on_a_record_quarantine_its_job() -> None:
    controller = SimpleNamespace(scheduler=a_scheduler(Endless()), beat=lambda: None)

    def suspects(hang: Hang | None) -> list[str]:
        return [each.job for each in hang_culprit.suspects(controller, hang, 1.0)]  # type: ignore[arg-type]

    assert suspects(None) == []
    assert suspects(Hang(stage="record", job="j1", times=1)) == []
    assert suspects(Hang(stage="record", job="j1", times=2)) == ["j1"]
    assert suspects(Hang(stage="record", job="gone", times=2)) == []
    assert suspects(Hang(stage="idle", times=5)) == []
    assert suspects(Hang(stage="decision", times=2)) == []
