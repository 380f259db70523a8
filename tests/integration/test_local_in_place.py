"""The keeper resizes real PyTorch replicas in place: they grow, move to another node and shrink, and learn the same."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.executors.node.processes import started_ticks
from coadapt.model import (
    JobFinished,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    ReplicasReleased,
)
from tests.desk import (
    Desk,
    on,
    until,
)
from tests.integration.test_torch_elastic import (
    ENDLESS,
    STEPS,
    alone,
    committed,
    made_again,
)
from tests.integration.torch_forks import SCRIPTS


def a_training(directory: Path, **envs: str) -> JobSpec:
    own = {
        "RESULT": str(directory / "result"),
        "COADAPT_AUDIT": str(directory / "audit"),
        "EPOCHS": ENDLESS,
        "STEP_S": "0.2",
    }
    return JobSpec(
        name="t",
        command=(sys.executable, str(SCRIPTS / "steady.py")),
        envs={**own, **envs},
        epochs=float(ENDLESS),
    )


def steps(directory: Path, more: int) -> None:
    audit = directory / "audit"
    goal = (audit.read_bytes().count(b"\n") if audit.exists() else 0) + more
    until(lambda: audit.exists() and audit.read_bytes().count(b"\n") >= goal, "no progress")


def test_job_grows_moves_and_shrinks_without_a_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "keeper", home=tmp_path, grace_s=60.0)
    try:
        one, spread, moved, two = on("n0"), on("n0", 1, ("n1", 2)), on("n1", 1), on("n0", 2)
        desk.start(a_training(tmp_path), one)
        steps(tmp_path, 2)
        # grown over two nodes; the first replica leaves; all leave for another node; and grown again
        for nth, (before, after) in enumerate([(one, spread), (spread, moved), (moved, two)], start=1):
            desk.resize("t", before, after)
            event = desk.wait(JobResized, "t", nth=nth)
            assert event.placement == after, desk.path("t", "0.err").read_text()[-2000:]
            assert [h.placement for h in desk.executor.inventory()] == [after]
            steps(tmp_path, 2)
        starts = [path.name for path in sorted(desk.path("t", "").glob("*.out"))]
        desk.stop("t", "pause")
        assert desk.end("t") == JobStopped(job="t", attempt=1, cause="paused")
    finally:
        desk.executor.shutdown()
    disturbed = committed(tmp_path / "audit")
    undisturbed = alone(tmp_path / "quiet", len(disturbed))
    shapes = [step["replicas"] for step in disturbed]
    assert list(dict.fromkeys(shapes)) == [1, 3, 2]
    for ours, theirs in zip(disturbed, undisturbed, strict=False):
        assert [ours[k] for k in ("step", "position")] == [theirs[k] for k in ("step", "position")]
        assert ours["parameters"] == pytest.approx(theirs["parameters"], abs=1e-5)
    assert made_again(tmp_path / "audit") == []  # no restart
    assert len(starts) <= 4
    released = [e.placement for e in desk.events if isinstance(e, ReplicasReleased)]
    assert released == [spread, moved, two]
    epochs = [event.measurement.epoch for event in desk.measured("t")]
    known = [epoch for epoch in epochs if epoch is not None]
    assert known == sorted(known)  # each first replica goes on with the reports of the one before
    assert {event.measurement.config.nodes for event in desk.measured("t")} >= {1, 2}


def test_newcomer_that_dies_leads_to_a_restart_at_the_new_size(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "keeper", home=tmp_path, grace_s=60.0)
    try:
        script = str(SCRIPTS / "steady.py")
        # no newcomer joins; and the end comes two epochs after the restart at two replicas, wherever that is
        unwilling = (
            "import os, runpy\n"
            "if 'COADAPT_JOIN' in os.environ: exit(9)\n"
            "if os.environ['WORLD_SIZE'] == '2':\n"
            "    made = open(os.environ['COADAPT_AUDIT']).read().count('\\n')\n"
            f"    os.environ['EPOCHS'] = str(made // {STEPS} + 2)\n"
            f"runpy.run_path({script!r})  # coadapt"
        )
        spec = replace(a_training(tmp_path), command=(sys.executable, "-c", unwilling))
        desk.start(spec, on("n0"))
        desk.wait(JobStarted, "t")
        steps(tmp_path, 2)
        desk.resize("t", on("n0"), on("n0", 2))
        assert desk.wait(JobResized, "t").placement == on("n0", 2)
        end = desk.end("t")
        assert isinstance(end, JobFinished)
        assert end.outcome == "succeeded", end
        assert {step["replicas"] for step in committed(tmp_path / "audit")} == {1, 2}
    finally:
        desk.executor.shutdown()


def test_keeper_killed_while_newcomers_get_ready_leaves_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "keeper", home=tmp_path, grace_s=60.0)
    try:
        desk.start(a_training(tmp_path), on("n0"))
        steps(tmp_path, 2)
        desk.resize("t", on("n0"), on("n0", 2))
        keeper = int((tmp_path / "keeper" / "keeper.lock").read_text())
        until(lambda: len(_descendants(keeper)) >= 3, "two replicas and the store")
        children = _descendants(keeper)
        os.kill(keeper, signal.SIGKILL)
        assert desk.end("t") == JobStopped(job="t", attempt=1, cause="lost")
        until(lambda: all(started_ticks(pid) is None for pid in children))
    finally:
        desk.executor.shutdown()


def _descendants(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found
