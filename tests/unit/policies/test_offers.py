"""What jobs could be given: sizes, speeds and lengths."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import inf

import numpy as np
import pytest

from coadapt.configure import Curve, RigidCurve, ServerCurve
from coadapt.model import (
    SERVER,
    Batch,
    Cluster,
    Configuration,
    JobSpec,
    Measured,
    Measurement,
    Node,
    NodeDrained,
    Resources,
    Role,
    Woke,
)
from coadapt.policies.coadapt.offers import Offers, offers, usual_sizes
from coadapt.prediction.remaining.work import evidence_for
from tests.unit.placement.world import World
from tests.unit.policies.made_up import PowerCurve, elastic, rigid


def offered(
    world: World, curves: Mapping[str, Curve] | None = None, *, staying: str = "", growth: float = 4.0
) -> Offers:
    """Of all jobs but those in ``staying``; a curve is one of unit speed unless it is named."""
    jobs = [job for job in world.state if job.id not in staying.split()]
    made: dict[str, Curve] = {job.id: PowerCurve(100.0) for job in jobs}
    return offers(world.state, {**made, **(curves or {})}, jobs, growth=growth)


def gpus(found: Offers, row: int = 0, kind: int = 0) -> list[int]:
    """The sizes that a job may have of a type."""
    return [int(s) for s in found.size[(found.goodput[row] > 0) & (found.kind == kind)]]


def test_sizes_are_powers_of_two_and_whole_nodes() -> None:
    assert sorted(usual_sizes(4, 20)) == [1, 2, 4, 8, 12, 16, 20]
    assert sorted(usual_sizes(8, 20)) == [1, 2, 4, 8, 16]
    assert sorted(usual_sizes(6, 12)) == [1, 2, 4, 6, 12]
    assert sorted(usual_sizes(1, 3)) == [1, 2, 3]
    assert sorted(usual_sizes(8, 3)) == [1, 2]
    assert usual_sizes(0, 8) == usual_sizes(4, 0) == set()


def test_sizes_of_large_clusters_are_few_and_reach_far() -> None:
    sizes = sorted(usual_sizes(4, 10_000))
    assert len(sizes) < 50
    assert sizes[-1] > 8_000
    assert all(b / a <= 1.26 for a, b in pairwise(sizes) if a > 64)


def test_an_elastic_job_has_all_sizes_within_its_bounds_and_what_was_measured() -> None:
    world = World("4x4")
    world.submit("a", elastic())
    world.submit("b", elastic(8))
    world.submit("c", elastic())
    world.submit("d", elastic(least=3))
    found = offered(world, {"c": PowerCurve(100, measured=2), "d": PowerCurve(100, measured=0)})
    assert gpus(found, 0) == [1, 2, 4, 8, 12, 16]
    assert gpus(found, 1) == [1, 2, 4, 8]
    assert gpus(found, 2) == [1, 2, 4, 8]  # four times two
    assert gpus(found, 3) == [3]  # nothing measured: its least
    assert gpus(offered(world, {"c": PowerCurve(100, measured=2)}, growth=1.0), 2) == [1, 2]
    assert found.expected[2][found.size == 16] > 0  # what it may have one day


@pytest.mark.parametrize("size", [3, 6])
def test_a_rigid_size_is_an_option_of_its_job_alone(size: int) -> None:
    world = World("3x4")
    world.submit("odd", rigid(size))
    world.submit("a", elastic())
    curves = {"odd": RigidCurve(spec=rigid(size))}
    found = offered(world, curves)
    assert gpus(found, 0) == [size]
    assert gpus(found, 1) == [1, 2, 4, 8, 12]


def test_replicas_of_several_gpus_fill_nodes_as_far_as_they_go() -> None:
    world = World("4x4")
    world.submit("two", elastic(per=2))
    world.submit("three", elastic(per=3))
    world.submit("eight", elastic(per=8))
    found = offered(world)
    assert gpus(found, 0) == [2, 4, 8, 12, 16]
    assert gpus(found, 1) == [3, 6, 9, 12]  # one replica on each node
    assert gpus(found, 2) == []
    assert found.goodput[1][found.size == 12][0] == pytest.approx(4**0.7)


def test_sizes_of_one_type_are_not_those_of_another() -> None:
    world = World("2x6:t4,2x4:a100")
    world.submit("a", elastic())
    world.submit("b", elastic(gpu_types=("a100",)))
    world.submit("six", rigid(6))
    found = offered(world, {"six": RigidCurve(spec=rigid(6))})
    assert found.types == ("t4", "a100")
    assert (gpus(found, 0, 0), gpus(found, 0, 1)) == ([1, 2, 4, 6, 12], [1, 2, 4, 8])
    assert (gpus(found, 1, 0), gpus(found, 1, 1)) == ([], [1, 2, 4, 8])
    assert (gpus(found, 2, 0), gpus(found, 2, 1)) == ([6], [6])


def test_speed_is_that_of_the_type() -> None:
    world = World("1x4:t4,1x4:a100")
    world.submit("a", elastic())
    found = offered(world, {"a": PowerCurve(100, by_type={"a100": 3.0})})
    at_four = found.goodput[0][found.size == 4]
    assert at_four[1] == pytest.approx(3 * at_four[0])
    assert found.least[0] == pytest.approx(1.0)


def test_capacity_is_what_is_free_and_what_the_jobs_have() -> None:
    world = World("2x4")
    world.run("a", {"n0": 3}, elastic())
    world.run("b", {"n1": 2}, elastic(preemptible=False))
    assert offered(world).capacity == (8,)
    assert offered(world, staying="b").capacity == (6,)
    world.tell(NodeDrained(node="n1"))
    assert offered(world, staying="b").capacity == (4,)


def test_what_others_keep_is_no_option_but_counts_for_a_jobs_length() -> None:
    world = World("2x4")
    world.run("b", {"n1": 2}, rigid(2, preemptible=False))
    world.submit("large", rigid(8, duration_s=100.0))
    found = offered(world, {"large": RigidCurve(spec=rigid(8, 100.0))}, staying="b")
    assert gpus(found) == []
    assert found.expected[0].max() > 0
    assert found.left_s[0] == pytest.approx(100 * 8**0.7, rel=1e-3)
    world.submit("larger", rigid(9))
    assert not offered(world, {"larger": RigidCurve(spec=rigid(9))}, staying="b").expected[1].any()


def test_a_job_that_fits_no_node_has_no_option() -> None:
    nodes = tuple(Node(name=f"n{i}", gpus=4, cpus=8.0) for i in range(2))
    world = World(Cluster(nodes=nodes))

    def with_cpus(cpus: float, most: int = 8) -> JobSpec:
        return elastic(roles=(Role(max=most, demand=Resources(gpus=1, cpus=cpus)),))

    world.submit("light", with_cpus(2.0))
    world.submit("heavy", with_cpus(4.0))
    world.submit("too heavy", with_cpus(9.0))
    served = (Role(), Role(name=SERVER, min=2, max=2, demand=Resources(gpus=0, cpus=9.0)))
    world.submit("served", rigid(1, roles=served))
    found = offered(world)
    assert gpus(found, 0) == [1, 2, 4, 8]
    assert gpus(found, 1) == [1, 2, 4]  # two on each node
    assert gpus(found, 2) == gpus(found, 3) == []


def test_current_is_the_option_a_job_has() -> None:
    world = World("2x4:t4,1x4:a100")
    world.submit("waits", elastic())
    world.run("a", {"n0": 2}, elastic())
    world.run("b", {"n2": 2}, elastic())
    world.run("odd", {"n1": 3}, elastic())
    found = offered(world)
    options = [(found.types[found.kind[o]], int(found.size[o])) for o in found.current[:3]]
    assert options[1:] == [("t4", 2), ("a100", 2)]
    assert found.current[[0, 3]].tolist() == [0, -1]


# -- how long ----------------------------------------------------------------------------------------------------------


def report(world: World, job: str, work: float, at: float, *, replicas: int = 2, servers: int = 0) -> None:
    config = Configuration(nodes=1, replicas=replicas, atomic_batch=16, servers=servers)
    world.tell(
        Measured(job=job, attempt=1, measurement=Measurement(config=config, step_s=1.6, work=work)), at
    )


def test_an_unknown_job_counts_as_nearly_done() -> None:
    world = World("1x4")
    world.submit("new", elastic())
    world.submit("old", elastic())
    found = offered(world, {"new": PowerCurve(1e6, measured=0)})
    assert found.unknown.tolist() == [True, False]
    assert found.left_s[0] == 0
    assert found.left_s[1] == pytest.approx(100.0)


def test_work_since_the_last_report_counts_as_done() -> None:
    world = World("1x4")
    world.run("a", {"n0": 4}, elastic())
    report(world, "a", 50.0, at=100.0, replicas=4)
    world.tell(Woke(), at=110.0)
    found = offered(world, {"a": PowerCurve(100.0, power=0.5)})
    assert found.left_s[0] == pytest.approx(100.0 - 10 * 2.0)
    world.tell(Woke(), at=1e6)  # overdue by far: nearly done, not less than nothing
    assert 0 < offered(world, {"a": PowerCurve(100.0, power=0.5)}).left_s[0] < 1


def test_levels_follow_the_spread_of_what_is_left() -> None:
    world = World("1x4")
    world.submit("a", elastic())
    levels = offered(world, {"a": PowerCurve(100.0, spread=1.0)}).left_levels_s[0]
    assert (np.diff(levels) > 0).all()
    assert levels[2] == pytest.approx(100.0)
    assert offered(world, {"a": PowerCurve(inf)}).left_s[0] == inf


def test_a_job_that_reports_nothing_gets_on_all_the_same() -> None:
    """Of a job known by its duration what is left is what it has not been held for; 4 GPUs count as 4^0.7."""
    world = World("1x4")
    world.run("a", {"n0": 4}, rigid(4, duration_s=100.0))
    curves = {"a": RigidCurve(spec=rigid(4, 100.0))}
    assert offered(world, curves).left_s[0] == pytest.approx(100 * 4**0.7, rel=1e-3)
    world.tell(Woke(), at=75.0)
    assert offered(world, curves).left_s[0] == pytest.approx(25 * 4**0.7, rel=1e-2)


def test_a_job_with_servers_is_known_from_its_first_report_and_as_fast_as_seen() -> None:
    batch = Batch(initial=32, max=32, per_gpu_min=1, per_gpu_max=32, mode="fixed")
    roles = (Role(min=2, max=4), Role(name=SERVER, min=1, max=2, demand=Resources(gpus=0)))
    spec = JobSpec(name="ps", roles=roles, requested=2, batch=batch, sync="ps", epochs=10.0, data_size=1000)
    world = World("1x4")
    world.run("ps", {"n0": 2}, spec, servers={"n0": 1})

    def curve() -> ServerCurve:
        job = world.state.jobs["ps"]
        return ServerCurve(
            spec=spec, table=job.server_table, evidence=evidence_for(spec, done=job.work or 0.0)
        )

    assert offered(world, {"ps": curve()}).unknown[0]
    report(world, "ps", 600.0, at=30.0, servers=1)
    found = offered(world, {"ps": curve()})
    assert not found.unknown[0]
    assert gpus(found) == [2]
    assert found.goodput[0].max() == pytest.approx(20.0)
    assert found.left_s[0] * found.least[0] == pytest.approx(9400.0, rel=1e-2)
