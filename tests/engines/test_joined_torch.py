"""Real PyTorch (gloo) over two machines that joined, each with a network of its own: resized in place, and it learns the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.model import (
    JobFinished,
    JobResized,
    JobStarted,
    JobStopped,
    Measured,
    Placement,
    ResizeJob,
    Slot,
    StartJob,
    StopJob,
)
from tests.engines.hub_bench import JoinedBench
from tests.engines.namespaces import network, why_not
from tests.integration.test_local_in_place import a_training, steps
from tests.integration.test_torch_elastic import alone, committed, made_again


def on(*slots: tuple[str, int]) -> Placement:
    return Placement(slots=tuple(Slot(node=node, replicas=count, gpu_type="t4") for node, count in slots))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[JoinedBench]:
    if reason := why_not():
        pytest.skip(reason)
    with network(("m1", "m2")) as (here, places):
        made = JoinedBench(tmp_path, grace_s=60.0, host=here, places=places)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.long
def test_job_is_resized_in_place_across_machines(bench: JoinedBench, tmp_path: Path) -> None:
    bench.specs["t"] = a_training(tmp_path)
    way = [
        on(("m1", 1)),
        on(("m1", 1), ("m2", 1)),
        on(("m1", 2), ("m2", 2)),
        on(("m1", 1), ("m2", 1)),
        on(("m2", 1)),
    ]
    bench.executor.apply([StartJob(id=1, job="t", attempt=1, placement=way[0])])
    seen = _until(bench, JobStarted)
    steps(tmp_path, 2)
    for number, (before, after) in enumerate(pairwise(way), start=2):
        bench.executor.apply([ResizeJob(id=number, job="t", attempt=1, before=before, placement=after)])
        seen += _until(bench, JobResized)
        event = seen[-1]
        assert isinstance(event, JobResized)
        assert event.placement == after
        steps(tmp_path, 2)
    bench.executor.apply([StopJob(id=9, job="t", attempt=1, why="pause")])
    seen += _until(bench, JobStopped)
    assert seen[-1] == JobStopped(job="t", attempt=1, cause="paused")
    disturbed = committed(tmp_path / "audit")
    undisturbed = alone(tmp_path / "quiet", len(disturbed))
    assert [step["replicas"] for step in disturbed if step["replicas"] == 4]
    assert made_again(tmp_path / "audit") == []  # no restart
    for ours, theirs in zip(disturbed, undisturbed, strict=False):
        assert ours["parameters"] == pytest.approx(theirs["parameters"], abs=1e-5)
    measured = [event for event in seen if isinstance(event, Measured)]
    assert {event.measurement.config.nodes for event in measured} >= {1, 2}


def _until(bench: JoinedBench, kind: type) -> list[object]:
    """Events to the first of a kind. The end of the job before it fails the test at once."""
    found: list[object] = []
    while not found or not isinstance(found[-1], kind):
        found.append(bench.next())
        if isinstance(found[-1], JobFinished | JobStopped) and not isinstance(found[-1], kind):
            raise AssertionError(f"no {kind.__name__}, but {found[-1]}")
    return found
