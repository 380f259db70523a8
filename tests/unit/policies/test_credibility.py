"""Whose length is believed: newcomers, jobs that stay silent, jobs beyond what they declared."""

from __future__ import annotations

import numpy as np

from coadapt.model import Configuration, Measured, Measurement, Woke
from coadapt.policies.coadapt.credibility import MEASURING_S, SILENT_S, believed
from coadapt.policies.coadapt.offers import offers
from tests.unit.placement.world import World
from tests.unit.policies.made_up import PowerCurve, elastic, rigid


def found_in(world: World, curves: dict[str, PowerCurve]) -> tuple[np.ndarray, dict[int, str], list[str]]:
    jobs = list(world.state)
    made = {job.id: curves.get(job.id, PowerCurve(100.0)) for job in jobs}
    trusted, notes = believed(
        offers(world.state, made, jobs, growth=4.0), world.state.now, world.state.free_gpus
    )
    return trusted.left_s, notes, [job.id for job in jobs]


def test_only_as_many_newcomers_come_first_as_an_eighth_of_the_gpus_takes() -> None:
    world = World("2x8")
    for n in range(16):
        world.run(f"old{n}", {f"n{n // 8}": 1}, elastic())
    for n in range(4):
        world.submit(f"new{n}", elastic())
    left, notes, _ = found_in(world, {f"new{n}": PowerCurve(50.0, measured=0) for n in range(4)})
    # two of 16 GPUs: the others count as a job of median length
    assert left[16:].tolist() == [0.0, 0.0, 100.0, 100.0]
    assert notes == {}


def test_newcomers_use_all_gpus_that_are_free() -> None:
    world = World("1x8")
    for n in range(8):
        world.submit(f"new{n}", elastic())
    left, _, _ = found_in(world, {f"new{n}": PowerCurve(50.0, measured=0) for n in range(8)})
    assert left.tolist() == [0.0] * 8


def test_a_job_that_never_reports_counts_as_long_after_its_time() -> None:
    world = World("1x4")
    world.run("silent", {"n0": 1}, elastic())
    world.run("honest", {"n0": 1}, elastic())
    world.tell(Measured(job="honest", attempt=1, measurement=a_report(10.0)), at=290.0)
    unknown = {"silent": PowerCurve(50.0, measured=0)}
    world.tell(Woke(), at=MEASURING_S - 1)
    assert found_in(world, unknown)[0][0] == 0.0
    world.tell(Woke(), at=MEASURING_S + 1)
    left, notes, _ = found_in(world, unknown)
    assert left[0] >= 2 * left[1]
    assert notes == {0: "It has not reported its speed, so it counts as a long job."}


def test_a_job_that_falls_silent_counts_as_long() -> None:
    world = World("1x4")
    world.run("a", {"n0": 1}, elastic())
    world.run("b", {"n0": 1}, elastic())
    for name in "ab":
        world.tell(Measured(job=name, attempt=1, measurement=a_report(10.0)), at=60.0)
    world.tell(Measured(job="b", attempt=1, measurement=a_report(20.0)), at=60.0 + SILENT_S)
    world.tell(Woke(), at=62.0 + SILENT_S)
    left, notes, _ = found_in(world, {})
    assert left[0] >= 2 * left[1] * 0.9
    assert list(notes) == [0]


def test_work_beyond_what_was_declared_counts_as_long() -> None:
    world = World("1x4")
    world.run("liar", {"n0": 1}, elastic(epochs=1.0, data_size=100))
    world.run("honest", {"n0": 1}, elastic(epochs=10.0, data_size=100))
    for name in ("liar", "honest"):
        world.tell(Measured(job=name, attempt=1, measurement=a_report(150.0)), at=60.0)
    left, notes, _ = found_in(world, {"liar": PowerCurve(1.0), "honest": PowerCurve(850.0)})
    assert left[0] >= 2 * 850.0 * 0.9
    assert notes == {0: "It has done more work than was declared, so it counts as a long job."}


def test_a_plain_script_beyond_its_declared_duration_counts_as_long() -> None:
    world = World("1x4")
    world.run("a", {"n0": 1}, rigid(1, duration_s=100.0))
    world.tell(Woke(), at=102.0)
    assert list(found_in(world, {})[1]) == [0]


def a_report(work: float) -> Measurement:
    config = Configuration(nodes=1, replicas=1, atomic_batch=32, accumulation=0)
    return Measurement(config=config, count=1, step_s=0.1, work=work)
