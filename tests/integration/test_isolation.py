"""No process outlives its attempt: real daemons that have left session and environment, with control groups and without."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.executors.local import LocalExecutor
from coadapt.executors.node import control_groups
from coadapt.executors.node.keeper_shutdown import end_everything, examine, is_locked, orphans_of
from coadapt.model import JobFinished, JobSpec, JobStarted, JobStopped, Node, Resources, Role, StopJob
from tests.desk import Desk
from tests.waiting import until

HOSTILE = Path(__file__).parent / "scripts" / "hostile.py"
WAYS = ("v2", "v1", "none")


def may_make_groups() -> bool:
    return os.getuid() == 0 and bool(control_groups.hierarchies())


def keeper_of(way: str, tmp_path: Path) -> tuple[str, ...]:
    """The command of a keeper with control groups of one kind, or without."""
    if way == "none":
        return (*LocalExecutor.keeper, "--groups", "none")
    if not may_make_groups():
        pytest.skip("only root makes control groups here")
    code = f"""
import sys
from coadapt.executors.node import control_groups, keeper
found = [each for each in control_groups.hierarchies() if each.kind == {way!r}]
make_base = control_groups.make_base
keeper.make_base = lambda directory: make_base(directory, found)
sys.exit(keeper.main())
"""
    seen = [each for each in control_groups.hierarchies() if each.kind == way]
    base = control_groups.make_base(tmp_path / "probe", seen)
    if base is None:
        pytest.skip(f"this machine has no control groups {way}")
    control_groups.ControlGroups(base).remove("")
    return (sys.executable, "-c", code)


@pytest.fixture(params=WAYS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "keeper", keeper=keeper_of(request.param, tmp_path))
    yield desk
    desk.executor.shutdown()
    for base in control_groups.bases(tmp_path / "keeper"):
        assert not Path(base.path).exists()


def hostile(name: str, witness: Path, *modes: str, end: str = "exit") -> JobSpec:
    return JobSpec(name=name, command=(sys.executable, "-S", str(HOSTILE), str(witness), end, *modes))


MODES = (
    (),
    ("deaf",),
    ("hopping",),
    ("deaf", "hopping"),
    ("early",),
    ("moving",),
    ("moving", "early", "deaf"),
)


@pytest.mark.parametrize("modes", MODES, ids=lambda modes: "-".join(modes) or "plain")
def test_daemon_is_gone_when_its_job_has_ended(desk: Desk, tmp_path: Path, modes: tuple[str, ...]) -> None:
    if "moving" in modes and os.getuid() != 0:
        pytest.skip("only root leaves a control group")
    witness = tmp_path / "witness"
    desk.start(hostile("a", witness, *modes))
    end = desk.end("a")
    assert isinstance(end, JobFinished)
    assert end.outcome == "succeeded"
    assert (tmp_path / "witness.ready").exists()
    assert not is_locked(witness), "its GPUs were free while a process of it lived"


def test_daemon_that_was_seen_in_its_group_and_left_it_is_gone_too(desk: Desk, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root leaves a control group")
    witness = tmp_path / "witness"
    desk.start(hostile("a", witness, "moving", "late"))
    # the machine looks at its processes whenever a job ends
    while not Path(f"{witness}.ready").exists():
        desk.start(JobSpec(name="b", command=("true",)))
        desk.end("b")
    desk.end("a")
    assert not is_locked(witness)


def test_daemon_is_gone_when_its_job_was_stopped(desk: Desk, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    desk.start(hostile("a", witness, "deaf", end="stay"))
    until((tmp_path / "witness.ready").exists)
    desk.stop("a")
    assert isinstance(desk.end("a"), JobStopped)
    assert not is_locked(witness)


def test_daemon_of_a_running_job_is_left_alone(desk: Desk, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    desk.start(hostile("a", first, end="stay"))
    until(Path(f"{first}.ready").exists)
    desk.start(hostile("b", second))
    desk.end("b")
    assert not is_locked(second)
    assert is_locked(first)
    os.kill(int(Path(f"{first}.ready").read_text()), 0)
    desk.stop("a")
    desk.end("a")
    assert not is_locked(first)


def test_killed_keeper_leaves_no_daemon(desk: Desk, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    desk.start(hostile("a", witness, "deaf", end="stay"))
    until(Path(f"{witness}.ready").exists)
    os.kill(int((desk.directory / "keeper.lock").read_text()), signal.SIGKILL)
    assert desk.end("a") == JobStopped(job="a", attempt=1, cause="lost")
    assert not is_locked(witness)


@pytest.mark.parametrize("way", WAYS)
def test_down_after_a_killed_keeper_ends_what_it_left_and_says_so(tmp_path: Path, way: str) -> None:
    directory, witness = tmp_path / "keeper", tmp_path / "witness"
    desk = Desk(directory, keeper=keeper_of(way, tmp_path))
    before = {subject: text for subject, _, text, _ in examine(directory, served=True)}
    assert f"cgroup {way}" in before["isolation"] or way == "none"
    desk.start(hostile("a", witness, "deaf", end="stay"))
    until(Path(f"{witness}.ready").exists)
    found = {subject: text for subject, _, text, _ in examine(directory, served=True)}
    assert "of running jobs" in found["orphans"]
    assert ("no control groups" in found["isolation"]) == (way == "none")
    os.kill(int((directory / "keeper.lock").read_text()), signal.SIGKILL)
    desk.executor.close()
    if way != "none":  # nobody but the control group knows it now
        until(lambda: len(control_groups.grouped(directory)) == 1)
        assert [
            verdict for subject, verdict, _, _ in examine(directory, served=False) if subject == "orphans"
        ] == ["bad"]
    end_everything(directory, 1.0)
    assert not is_locked(witness)
    assert control_groups.grouped(directory) == {}


def test_orphan_without_control_groups_is_said(tmp_path: Path) -> None:
    directory, witness = tmp_path / "keeper", tmp_path / "witness"
    desk = Desk(directory, keeper=keeper_of("none", tmp_path))
    desk.start(hostile("a", witness))
    desk.end("a")
    count, last = orphans_of(directory)
    assert count >= 1
    assert last.endswith("of a")
    (said,) = [text for subject, _, text, _ in examine(directory, served=True) if subject == "orphans"]
    assert f"{count} that had left their jobs were killed" in said
    assert "had left its job" in (directory / "keeper.log").read_text()
    desk.executor.shutdown()


def test_limit_of_memory_is_enforced_and_said(tmp_path: Path) -> None:
    keeper_of("v1", tmp_path)
    if not any("memory" in each.controllers for each in control_groups.hierarchies()):
        pytest.skip("this machine has no controller of memory for version 1")
    desk = Desk(tmp_path / "keeper")
    code = "import os\nkept = bytearray(300 << 20)\nprint(len(kept))"
    demand = Resources(memory_bytes=100 << 20, cpus=0.5)
    role = Role(name="worker", demand=demand)
    spec = JobSpec(name="a", command=(sys.executable, "-S", "-c", code), roles=(role,))
    desk.start(spec)
    end = desk.end("a")
    assert isinstance(end, JobFinished)
    assert end.outcome == "failed"
    assert end.kind == "oom"
    desk.executor.shutdown()


def test_many_stops_at_once_cost_one_look_per_turn(tmp_path: Path) -> None:
    # counted by the keeper itself, and written at its end
    code = """
import sys
from pathlib import Path
from coadapt.executors.node import gang_host, keeper, processes
turns, turn = [0], gang_host.GangHost.turn
def counted(host):
    turns[0] += 1
    turn(host)
gang_host.GangHost.turn = counted
code = keeper.main()
text = f"{processes.ProcessTable.looks} {turns[0]}"
(Path(sys.argv[1]) / "counts").write_text(text)
sys.exit(code)
"""
    jobs = [f"j{number}" for number in range(40)]
    nodes = (Node(name="n0", gpus=len(jobs), gpu_type="t4"),)
    desk = Desk(tmp_path, keeper=(sys.executable, "-c", code), nodes=nodes, grace_s=30.0)
    for job in jobs:
        desk.start(JobSpec(name=job, command=("sleep", "600")))
    for job in jobs:
        desk.wait(JobStarted, job)
    stops = [StopJob(id=1000 + i, job=job, attempt=1, why="cancel") for i, job in enumerate(jobs)]
    desk.executor.apply(stops)
    for job in jobs:
        assert isinstance(desk.end(job), JobStopped)
    desk.executor.shutdown()
    until((tmp_path / "counts").exists)
    looks, turns = map(int, (tmp_path / "counts").read_text().split())
    assert looks <= turns + 2
