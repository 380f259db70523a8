"""What a job may request and set: refused when it is submitted, not when it starts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coadapt.errors import InputError
from coadapt.model import Batch, JobSpec, Node, Resources, Role, parse_cluster
from coadapt.spec.job_file import parse_job
from coadapt.spec.job_rules import JOB_FLAGS, Surroundings, check_spec
from coadapt.wire.agent import Variable


def _check(**envs: str) -> None:
    check_spec(JobSpec(name="a", command=("x",), envs=envs), Surroundings())


@pytest.mark.parametrize("name", JOB_FLAGS)
def test_job_may_set_the_flags_that_the_documents_name(name: str) -> None:
    _check(**{name: "1"})
    _check(**{name: "0"})
    for value in ("", "yes", "2"):
        with pytest.raises(InputError, match=f"{name} must be 0 or 1"):
            _check(**{name: value})


def test_job_sets_no_other_variable_of_ours() -> None:
    ours = {value for name, value in vars(Variable).items() if name.isupper()} - set(JOB_FLAGS)
    assert len(ours) > 10
    for name in ours:
        with pytest.raises(
            InputError, match=f"'{name}' is set by coadapt.*COADAPT_IN_PLACE and COADAPT_SKEWED"
        ):
            _check(**{name: "1"})


def test_flags_are_those_that_the_keeper_and_the_placer_read() -> None:
    from coadapt.placement.skew import MARK

    assert set(JOB_FLAGS) == {Variable.IN_PLACE, MARK}


def test_flags_are_written_as_numbers_in_a_job_file() -> None:
    given = {"run": "python train.py", "envs": dict.fromkeys(JOB_FLAGS, 1)}
    spec = parse_job(given, where="job.yaml").spec
    assert spec.envs == dict.fromkeys(JOB_FLAGS, "1")
    check_spec(spec, Surroundings())


NODES = parse_cluster("2x4").nodes


def a_plain_job(gpus: int, **fields: object) -> JobSpec:
    return JobSpec(
        **{
            "name": "job",
            "user": "ada",
            "command": ("true",),
            "roles": (Role(min=gpus, max=gpus),),
            "requested": gpus,
            **fields,
        }  # type: ignore[arg-type]
    )


def test_a_job_above_its_users_quota_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        check_spec(a_plain_job(4), Surroundings(nodes=NODES, quotas={"ada": 2}))
    assert "needs 4 GPUs; the quota of ada is 2, so it could never start; ask for at most 2" in str(
        caught.value
    )
    check_spec(a_plain_job(2), Surroundings(nodes=NODES, quotas={"ada": 2}))
    check_spec(a_plain_job(4), Surroundings(nodes=NODES, quotas={"bob": 2}))


def test_a_job_above_its_teams_quota_is_refused() -> None:
    with pytest.raises(InputError, match="quota of vision is 1"):
        check_spec(a_plain_job(2, team="vision"), Surroundings(nodes=NODES, quotas={"vision": 1, "ada": 8}))


def test_an_elastic_job_whose_least_is_within_the_quota_is_accepted() -> None:
    batch = Batch(initial=32, max=512, per_gpu_min=4, per_gpu_max=64)
    spec = a_plain_job(4, roles=(Role(min=1, max=8),), batch=batch)
    check_spec(spec, Surroundings(nodes=NODES, quotas={"ada": 2}))


def test_a_job_above_the_whole_cluster_is_refused() -> None:
    with pytest.raises(InputError, match="even the empty cluster has room for only 8"):
        check_spec(a_plain_job(9), Surroundings(nodes=NODES))


MIXED = (
    Node(name="a0", gpus=4, gpu_type="a", cpus=32, memory_bytes=64 << 30),
    Node(name="a1", gpus=4, gpu_type="a", cpus=32, memory_bytes=64 << 30, extras={"nic": 1}),
    Node(name="b0", gpus=8, gpu_type="b", cpus=8, memory_bytes=16 << 30),
)


def needing(count: int, **demand: Any) -> JobSpec:
    """A job of so many replicas, each with this demand."""
    return a_plain_job(count, roles=(Role(min=count, max=count, demand=Resources(**demand)),))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            needing(1, gpus=9),
            "each replica needs 9 GPUs on one node; the largest node has 8; request at most 8",
        ),
        (
            needing(1, gpus=1, cpus=64.0),
            "each replica needs 64.0 of cpus on one node; the largest node has 32",
        ),
        (needing(1, gpus=1, memory_bytes=1e12), "of memory_bytes on one node; the largest node has"),
        (
            needing(1, gpus=1, extras={"fpga": 1.0}),
            "each replica needs 1.0 of fpga on one node; no node has any",
        ),
        (needing(1, gpus=8, cpus=16.0), "no node has all that one replica needs"),
        (needing(9, gpus=1), "needs 9 replicas (9 GPUs); even the empty cluster has room for only 8"),
        (needing(3, gpus=1, cpus=20.0), "3 replicas with their CPUs and memory; even the empty cluster"),
        (needing(2, gpus=1, extras={"nic": 1.0}), "has room for only 1"),
        (needing(4, gpus=4), "has room for only 2"),
        (msgspec.structs.replace(needing(1, gpus=1), gpu_types=("h100",)), "unknown GPU type 'h100'"),
        (msgspec.structs.replace(needing(1, gpus=5), gpu_types=("a",)), "the largest node has 4"),
    ],
)
def test_what_no_node_has_is_refused_and_named(spec: JobSpec, said: str) -> None:
    with pytest.raises(InputError) as caught:
        check_spec(spec, Surroundings(nodes=MIXED))
    assert said in str(caught.value)


def test_a_server_that_no_node_has_is_refused() -> None:
    server = Role(name="server", min=1, max=1, demand=Resources(gpus=0, memory_bytes=1e12))
    spec = a_plain_job(1, roles=(Role(), server), sync="ps")
    with pytest.raises(InputError, match="memory_bytes on one node"):
        check_spec(spec, Surroundings(nodes=MIXED))


def test_what_some_nodes_have_is_accepted() -> None:
    for spec in (
        needing(8, gpus=1),
        needing(2, gpus=4),
        needing(1, gpus=8, cpus=8.0),
        needing(6, gpus=1, cpus=10.0),
    ):
        check_spec(spec, Surroundings(nodes=MIXED))
