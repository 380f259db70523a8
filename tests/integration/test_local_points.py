"""The keeper is killed at every point of a job's life with a set-up, a store, and resizes in place: nothing is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

from coadapt.executors.node.processes import started_ticks
from coadapt.model import JobFinished, JobResized, JobSpec, JobStarted, JobStopped, Measured
from tests.desk import Desk, on
from tests.waiting import until

HERE = Path(__file__).parent
WAY = [on("n0"), on("n0", 1, ("n1", 1)), on("n1", 1), on("n0", 2)]


def a_python(directory: Path) -> str:
    """An interpreter whose store needs no PyTorch."""
    path = directory / "python3"
    path.write_text(
        "#!/bin/sh\n"
        f'if [ "$2" = coadapt.torch.elastic.rendezvous_process ]; then exec {sys.executable} -S {HERE / "fake_store.py"}; fi\n'
        f'exec {sys.executable} -S "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def a_meeting_job(name: str, directory: Path, *, generation: int, size: int, held: bool = False) -> JobSpec:
    meeting = directory / f"meeting-{name}"
    meeting.mkdir(exist_ok=True)
    return JobSpec(
        name=name,
        command=(a_python(directory), str(HERE / "light_agent.py")),
        setup=("true",),
        envs={
            "PYTHON_MEETING": str(meeting),
            "LAST_GENERATION": str(generation),
            "LAST_SIZE": str(size),
            "HELD": "1" if held else "",
        },
    )


def pids(directory: Path, name: str) -> list[int]:
    path = directory / f"meeting-{name}" / "pids"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def lead(desk: Desk, spec: JobSpec) -> JobFinished | JobStopped:
    """Starts the job and resizes it along the way, as far as it lives."""
    desk.start(spec, WAY[0])
    job = spec.name

    def ended() -> bool:
        return any(isinstance(e, JobFinished | JobStopped) and e.job == job for e in desk.events)

    def until_said(count: int) -> bool:
        """Whether it has been started or resized so often; False if it ended before."""

        def there() -> bool:
            desk.take()
            said = [e for e in desk.events if isinstance(e, JobStarted | JobResized) and e.job == job]
            return len(said) >= count or ended()

        until(there)
        return not ended()

    for number, (before, after) in enumerate(itertools.pairwise(WAY), start=1):
        if not until_said(number):
            break
        if number == 1:  # its agent listens
            until(
                lambda: (
                    any(p.name.endswith("listening0") for p in spec_files(spec))
                    or not desk_alive(desk, ended)
                )
            )
        desk.resize(job, before, after)
    if spec.envs["HELD"]:
        until_said(len(WAY))
        (Path(spec.envs["PYTHON_MEETING"]) / "end").touch()
    return desk.end(job)


def spec_files(spec: JobSpec) -> list[Path]:
    return list(Path(spec.envs["PYTHON_MEETING"]).iterdir())


def desk_alive(desk: Desk, ended: object) -> bool:
    desk.take()
    assert callable(ended)
    return not ended()


def test_light_agent_goes_the_whole_way_in_place(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "keeper", grace_s=20.0)
    # generations: 1 grows, 2 shrinks and the first leaves, 3 and 4 move and grow again
    spec = a_meeting_job("a", tmp_path, generation=4, size=2, held=True)
    end = lead(desk, spec)
    assert isinstance(end, JobFinished), desk.events
    assert end.outcome == "succeeded"
    assert [e.placement for e in desk.events if isinstance(e, JobResized)] == WAY[1:]
    assert len(pids(tmp_path, "a")) == 4  # nobody was started twice
    assert [p.name for p in spec_files(spec) if p.name.startswith("1-")] == []
    epochs = [e.measurement.epoch for e in desk.events if isinstance(e, Measured)]
    assert epochs == [0.0, 1.0, 2.0, 3.0, 4.0]  # three different replicas were the first, one after the other
    desk.executor.shutdown()
    assert all(started_ticks(pid) is None for pid in pids(tmp_path, "a"))


def test_job_that_ends_as_soon_as_it_was_resized_has_succeeded(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "keeper", grace_s=20.0)
    end = lead(desk, a_meeting_job("a", tmp_path, generation=4, size=2))
    assert isinstance(end, JobFinished), desk.events
    assert end.outcome == "succeeded"
    assert len(pids(tmp_path, "a")) == 4
    desk.executor.shutdown()


def test_store_that_dies_ends_the_attempt_as_preempted(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "keeper", grace_s=0.5)
    desk.start(a_meeting_job("a", tmp_path, generation=9, size=9), on("n0"))
    until(lambda: len(pids(tmp_path, "a")) == 1)
    (store,) = _children(tmp_path, "fake_store.py")
    os.kill(store, signal.SIGKILL)
    assert desk.end("a") == JobStopped(job="a", attempt=1, cause="preempted")
    desk.start(a_meeting_job("b", tmp_path, generation=0, size=1), on("n0"))  # with a new store
    assert isinstance(desk.end("b"), JobFinished)
    desk.executor.shutdown()
    until(lambda: _children(tmp_path, "fake_store.py") == [])


def test_keeper_killed_at_any_point_leaves_nothing_behind(tmp_path: Path) -> None:
    keeper = (sys.executable, str(HERE / "fused_keeper.py"))
    directory = tmp_path / "keeper"
    directory.mkdir()
    point, lasted = 0, False
    while not lasted:
        point += 1
        (directory / "fuse").write_text(str(point))
        desk = Desk(directory, grace_s=20.0, keeper=keeper)
        desk.actions = 100 * point
        name = f"p{point}"
        end = lead(desk, a_meeting_job(name, tmp_path, generation=4, size=2))
        desk.executor.shutdown()
        lasted = (directory / "fuse").exists()
        # a keeper that died with the job tells of it; one that died before or after it lost nothing
        assert isinstance(end, JobFinished) or end.cause == "lost"
        if isinstance(end, JobFinished):
            assert end.outcome == "succeeded", end
        until(lambda n=name: all(started_ticks(pid) is None for pid in pids(tmp_path, n)))  # type: ignore[misc]
        until(lambda: _children(tmp_path, "fake_store.py") == [])
        (directory / "fuse").unlink(missing_ok=True)
    assert point > 25, "the fuse does not reach the keeper"


def _children(directory: Path, script: str) -> list[int]:
    """Living processes of ``script`` that meet in ``directory``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and started_ticks(int(entry.name)) is not None:
            try:
                if (
                    script.encode() in (entry / "cmdline").read_bytes()
                    and f"PYTHON_MEETING={directory}".encode() in (entry / "environ").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
