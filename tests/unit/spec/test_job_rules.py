"""Which environment variables a job may set."""

from __future__ import annotations

import pytest

from coadapt.errors import InputError
from coadapt.model import JobSpec
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
