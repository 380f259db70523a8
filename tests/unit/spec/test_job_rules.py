"""What a job may request and set: refused when it is submitted, not when it starts."""

from __future__ import annotations

import pytest

from coadapt.errors import InputError
from coadapt.model import Batch, JobSpec, Role, parse_cluster
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
