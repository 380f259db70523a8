"""Real processes, and controllers and keepers that are killed at any moment.

What must hold whatever dies: each job succeeds exactly once, no replica ever runs beside its twin, nothing
is left behind, and the log folds to the state the controller had.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coadapt.errors import InputError
from coadapt.executors.job_source import SpecJobSource
from coadapt.executors.local import LocalExecutor
from coadapt.executors.node.processes import started_ticks
from coadapt.model import (
    CancelRequested,
    ControllerStarted,
    JobFinished,
    JobSpec,
    JobStopped,
    JobSubmitted,
    Node,
    Role,
    workers,
)
from coadapt.model.snapshot import ENDED, Phase, Snapshot
from coadapt.policies import Curves, Memory, Policy, Proposal, Rng
from coadapt.scheduler import SchedulerState
from coadapt.store import SqliteInbox, SqliteLog
from tests.integration.local_loop import Controller, Crashed, Fuse
from tests.waiting import DEADLINE_S, until

HERE = Path(__file__).parent


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A store and a keeper in one directory; whatever the test did, nothing of it survives."""
    yield tmp_path
    with_log = SqliteLog(tmp_path / "store.db")
    keeper = LocalExecutor(
        tmp_path / "keeper",
        log=with_log.identity,
        jobs=SpecJobSource(lambda job: JobSpec(name=job)),
        nodes=(Node(name="local", gpus=2, gpu_type="cpu"),),
        grace_s=0.2,
        patience_s=DEADLINE_S,
    )
    keeper.shutdown()
    with_log.close()
    assert _processes_of(tmp_path) == set()


def test_controller_killed_at_random_moments_loses_and_repeats_nothing(directory: Path) -> None:
    moments = random.Random(7)
    inbox = SqliteInbox(directory / "store.db")
    jobs = [f"job-{i}" for i in range(5)]
    for round_, job in enumerate(jobs):
        inbox.put(_submission(directory, job, "0.6", replicas=2 if round_ == 3 else 1), key=job)
        controller = _controller(directory)
        # this pause is the moment of the kill, not a wait: start-up takes about a second, so that kills fall
        # before its first record and long after
        time.sleep(moments.uniform(0.3, 1.5))
        controller.kill()
        controller.wait()
    inbox.close()
    controller = _controller(directory)
    try:
        until(lambda: _last_controller(directory) == controller.pid)
        with pytest.raises(InputError, match="in use by controller"):
            Controller(directory)
        until(lambda: {job for job, phase in _phases(directory).items() if phase in ENDED} == set(jobs))
    finally:
        controller.kill()
        controller.wait()
    assert _phases(directory) == dict.fromkeys(jobs, Phase.SUCCEEDED)
    _each_ran_once(directory, {job: 2 if job == "job-3" else 1 for job in jobs})


def test_controller_that_dies_at_any_point_loses_and_repeats_nothing(directory: Path) -> None:
    """Every point before and after an append, an apply and an acknowledgement, one after the other."""
    inbox = SqliteInbox(directory / "store.db", synchronous="OFF")
    jobs: dict[str, int] = {}
    for fuse in _fuses(at_least=25):
        names = [f"p{fuse.n}-{i}" for i in range(2)]
        for name in names:
            jobs[name] = 1
            inbox.put(_submission(directory, name, "0.02"))
        if _run(directory, _all_ended(names), fuse=fuse):
            assert not _run(directory, _all_ended(names))
    assert set(_phases(directory).values()) == {Phase.SUCCEEDED}
    _each_ran_once(directory, jobs)
    inbox.close()


def test_controller_that_dies_at_any_point_of_a_cancellation_still_stops_the_job(directory: Path) -> None:
    inbox = SqliteInbox(directory / "store.db", synchronous="OFF")
    names = []
    for fuse in _fuses(at_least=10):
        name = f"p{fuse.n}"
        names.append(name)
        inbox.put(_submission(directory, name, "600"))
        assert not _run(directory, _running(name))
        until(lambda: len(_records(directory)) == len(names))
        inbox.put(CancelRequested(job=name))
        if _run(directory, _all_ended([name]), fuse=fuse):
            assert not _run(directory, _all_ended([name]))
    assert _phases(directory) == dict.fromkeys(names, Phase.CANCELLED)
    assert [(r["what"], r["job"]) for r in _records(directory)] == [("start", name) for name in names]
    assert all(started_ticks(r["pid"]) is None for r in _records(directory))
    inbox.close()


def test_controller_that_dies_at_any_point_of_a_resize_still_completes_it(directory: Path) -> None:
    inbox = SqliteInbox(directory / "store.db", synchronous="OFF")
    names = []
    for fuse in _fuses(at_least=15):
        name = f"p{fuse.n}"
        names.append(name)
        inbox.put(_submission(directory, name, "0.02", replicas=2, least=1, envs={"END_AT_SIZE": "2"}))
        if _run(directory, _all_ended([name]), fuse=fuse, policy=GrowingPolicy()):
            assert not _run(directory, _all_ended([name]), policy=GrowingPolicy())
    assert _phases(directory) == dict.fromkeys(names, Phase.SUCCEEDED)
    for name in names:
        found = [(r["what"], r["rank"], r["attempt"]) for r in _records(directory) if r["job"] == name]
        # once alone, unless it was told to grow before it could write; then both ranks, once
        assert found[:-4] in ([], [("start", 0, 1)])
        assert sorted(found[-4:]) == [("end", 0, 1), ("end", 1, 1), ("start", 0, 1), ("start", 1, 1)]
    inbox.close()


def test_keeper_killed_takes_its_replicas_along_and_the_job_starts_anew(directory: Path) -> None:
    inbox = SqliteInbox(directory / "store.db")
    inbox.put(_submission(directory, "a", "600", "0.05", envs={"HELPER": "1"}))
    controller = Controller(directory)
    controller.start()
    _steps(controller, lambda: len(_records(directory)) == 2)
    first, helper = _records(directory)
    os.kill(int((directory / "keeper" / "keeper.lock").read_text()), signal.SIGKILL)
    until(lambda: started_ticks(first["pid"]) is None)
    _steps(controller, lambda: controller.scheduler.state.jobs["a"].phase in ENDED)
    job = controller.scheduler.state.jobs["a"]
    assert (job.phase, job.attempt) == (Phase.SUCCEEDED, 2)
    assert [r["what"].split()[0] for r in _records(directory)] == [
        "start",
        "helper",
        "start",
        "helper",
        "end",
    ]
    assert started_ticks(int(helper["what"].split()[1])) is None
    ends = [r.event for r in controller.events.read() if isinstance(r.event, JobFinished | JobStopped)]
    assert ends == [
        JobStopped(job="a", attempt=1, cause="lost"),
        JobFinished(job="a", attempt=2, outcome="succeeded", exit_code=0),
    ]
    _folds_alike(controller)
    controller.close()
    inbox.close()


class GrowingPolicy:
    """One replica at first, and two as soon as that one runs."""

    placer = "packed"
    adapts_batch = False
    chooses_size = False

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        small = [job for job in snapshot.active.values() if job.target.replicas < 2]
        wanted = {job.id: workers(2 if job.phase is Phase.RUNNING else 1) for job in small}
        return Proposal(allocations=wanted, wake_at=snapshot.now + 0.01 if small else None)


# -- running -----------------------------------------------------------------------------------------


def _submission(
    directory: Path,
    job: str,
    *seconds: str,
    replicas: int = 1,
    least: int = 0,
    envs: dict[str, str] | None = None,
) -> JobSubmitted:
    command = (sys.executable, "-I", "-S", str(HERE / "recorded_process.py"), str(directory), *seconds)
    roles = (Role(min=least or replicas, max=replicas),)
    spec = JobSpec(name=job, command=command, envs=envs or {}, requested=replicas, roles=roles)
    return JobSubmitted(job=job, spec=spec)


def _controller(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, HERE / "local_loop.py", directory], stderr=subprocess.DEVNULL)


def _fuses(*, at_least: int) -> Iterator[Fuse]:
    """Fuses that crash at the first point, the second ..., until one has lasted."""
    fuse = Fuse()
    while fuse.passed == fuse.n:
        fuse = Fuse(fuse.n + 1)
        yield fuse
    assert fuse.n > at_least, "the fuse does not reach the ports"


def _all_ended(jobs: list[str]) -> Callable[[SchedulerState], bool]:
    return lambda state: all(job in state.jobs and state.jobs[job].phase in ENDED for job in jobs)


def _running(job: str) -> Callable[[SchedulerState], bool]:
    return lambda state: job in state.jobs and state.jobs[job].phase is Phase.RUNNING


def _run(
    directory: Path,
    done: Callable[[SchedulerState], bool],
    *,
    fuse: Fuse | None = None,
    policy: Policy | None = None,
) -> bool:
    """A controller until ``done``; True if its fuse crashed it before."""
    controller = Controller(directory, fuse=fuse, policy=policy, synchronous="OFF")
    try:
        controller.start()
        _steps(controller, lambda: done(controller.scheduler.state))
        _folds_alike(controller)
        return False
    except Crashed:
        return True
    finally:
        controller.close()


def _steps(controller: Controller, done: Callable[[], bool]) -> None:
    deadline = controller.clock() + DEADLINE_S
    while not done():
        # a deadline of the test's own: the feed waits for ever where nothing happens
        arrived = controller.feed.next(
            min(controller.scheduler.wake_at or deadline, controller.clock() + 0.05)
        )
        if arrived is not None:
            controller.loop.take(*arrived)
        elif (wake_at := controller.scheduler.wake_at) is not None and wake_at <= controller.clock():
            controller.loop.step()
        assert controller.clock() < deadline, "not done in time"


# -- looking -----------------------------------------------------------------------------------------


def _records(directory: Path) -> list[dict[str, Any]]:
    path = directory / "records"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _each_ran_once(directory: Path, replicas: dict[str, int]) -> None:
    """By the processes' own records: one start and one end per rank, all in the first attempt."""
    expected = {(job, rank) for job, count in replicas.items() for rank in range(count)}
    for what in ("start", "end"):
        found = [(r["job"], r["rank"]) for r in _records(directory) if r["what"] == what]
        assert sorted(found) == sorted(expected)
    assert all(r["what"] in ("start", "end") and r["attempt"] == 1 for r in _records(directory))
    log = SqliteLog(directory / "store.db")
    ends = [
        r.event.job for r in log.read() if isinstance(r.event, JobFinished) and r.event.outcome == "succeeded"
    ]
    log.close()
    assert set(ends) == set(replicas)


def _fold(directory: Path) -> SchedulerState:
    log = SqliteLog(directory / "store.db")
    state = SchedulerState()
    for record in log.read():
        state.apply(record)
    log.close()
    return state


def _phases(directory: Path) -> dict[str, Phase]:
    return {name: job.phase for name, job in _fold(directory).jobs.items()}


def _last_controller(directory: Path) -> object:
    log = SqliteLog(directory / "store.db")
    started = [record.event for record in log.read() if isinstance(record.event, ControllerStarted)]
    log.close()
    return started[-1].options["pid"] if started else None


def _folds_alike(controller: Controller) -> None:
    folded = SchedulerState()
    for record in controller.events.read():
        folded.apply(record)
    assert _essence(folded) == _essence(controller.scheduler.state)


def _essence(state: SchedulerState) -> dict[str, Any]:
    jobs = {
        name: {slot: getattr(job, slot) for slot in type(job).__slots__ if slot != "table"}
        for name, job in state.jobs.items()
    }
    nodes = {name: (node.node, node.held, node.promised, node.open) for name, node in state.all_nodes.items()}
    counts = (
        state.now,
        state.seq,
        state.decisions,
        state.actions,
        state.gpus,
        state.free_gpus,
        state.undecided,
    )
    return {"jobs": jobs, "nodes": nodes, "counts": counts, "unsettled": list(state.unsettled)}


def _processes_of(directory: Path) -> set[int]:
    """Living processes that name ``directory`` on their command line."""
    found = set()
    for entry in Path("/proc").iterdir():
        if (
            entry.name.isdigit()
            and int(entry.name) != os.getpid()
            and started_ticks(int(entry.name)) is not None
        ):
            try:
                if str(directory).encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found
