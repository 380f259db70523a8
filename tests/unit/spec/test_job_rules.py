"""Jobs that could never start are refused when they are submitted."""

from __future__ import annotations

import pytest

from coadapt.errors import InputError
from coadapt.model import Batch, JobSpec, Role, parse_cluster
from coadapt.spec.job_rules import Surroundings, check_spec

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
    with pytest.raises(InputError, match="room for 8 even when it is empty"):
        check_spec(a_plain_job(9), Surroundings(nodes=NODES))
