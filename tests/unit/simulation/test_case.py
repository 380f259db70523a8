from __future__ import annotations

import pytest

from coadapt.errors import InputError
from coadapt.model import parse_cluster
from coadapt.simulation.case import check_profiles, fitting
from coadapt.simulation.traces import Submission
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for
from tests.unit.cli.traces import a_trace_job, a_workload


def test_workload_that_fits_is_not_touched() -> None:
    workload = a_workload(a_trace_job("a", 4), a_trace_job("b", 8))
    assert fitting(workload, parse_cluster("2x4"), chooses_size=False) == (workload, [])


def test_first_job_that_is_too_large_is_named_and_the_others_counted() -> None:
    workload = a_workload(
        a_trace_job("a", 1), a_trace_job("b", 9), a_trace_job("c", 10), a_trace_job("d", 11)
    )
    with pytest.raises(
        InputError,
        match=r"job 'b' does not fit: it requests 9 GPUs, but the cluster 2x4 has 8 .2 other jobs do not fit either",
    ):
        fitting(workload, parse_cluster("2x4"), chooses_size=False)


def test_skip_bad_drops_too_large_jobs_and_those_that_wait_for_them() -> None:
    workload = a_workload(
        a_trace_job("a", 9),
        a_trace_job("b", 1, after=("a",)),
        a_trace_job("c", 1, after=("b",)),
        a_trace_job("d", 1),
    )
    kept, notes = fitting(workload, parse_cluster("2x4"), chooses_size=False, skip_bad=True)
    assert [job.job for job in kept.jobs] == ["d"]
    assert notes[0].startswith("dropped 1 job for which the cluster has no place")
    assert notes[1] == "dropped 2 jobs that depend on a dropped job"


def test_cluster_that_no_job_fits_is_an_error_even_if_bad_jobs_are_skipped() -> None:
    with pytest.raises(
        InputError, match=r"no job of trace\.csv fits the cluster 1x1.*smallest job requests 2 GPUs"
    ):
        fitting(
            a_workload(a_trace_job("a", 4), a_trace_job("b", 2)),
            parse_cluster("1x1"),
            chooses_size=False,
            skip_bad=True,
        )


def test_gpu_type_that_the_cluster_lacks_is_named() -> None:
    workload = a_workload(a_trace_job("a"), a_trace_job("b", types=("v100",)))
    with pytest.raises(
        InputError, match="'b' does not fit: it requests v100 GPUs, but the cluster 1x4:t4 has t4"
    ):
        fitting(workload, parse_cluster("1x4:t4"), chooses_size=False)
    with pytest.raises(InputError, match="has no GPU type"):
        fitting(workload, parse_cluster("1x4"), chooses_size=False)


def test_job_of_one_type_must_fit_the_gpus_of_one_type() -> None:
    cluster = parse_cluster("1x4:t4+1x4:a100")
    with pytest.raises(InputError, match="has 4 of one type"):
        fitting(a_workload(a_trace_job("a"), a_trace_job("b", 6)), cluster, chooses_size=False)
    mixed = a_workload(a_trace_job("b", 6, mixed=True))
    assert fitting(mixed, cluster, chooses_size=False)[0] is mixed


def test_elastic_job_fits_a_small_cluster_if_the_policy_chooses_sizes() -> None:
    truth = shipped_profiles()["cifar10"]
    spec = spec_for("a", truth, "cifar10", replicas=12, batch=4096)
    workload = a_workload(Submission(at=0.0, job="a", spec=spec))
    assert fitting(workload, parse_cluster("1x4"), chooses_size=True)[0] is workload
    with pytest.raises(InputError):
        fitting(workload, parse_cluster("1x4"), chooses_size=False)


def test_profile_must_know_the_gpus_of_the_cluster() -> None:
    truths = shipped_profiles()
    spec = spec_for("a", truths["ncf"], "ncf", replicas=1, batch=256)
    workload = a_workload(Submission(at=0.0, job="a", spec=spec))
    check_profiles(workload, parse_cluster("1x4:t4"), truths)
    with pytest.raises(InputError, match="h200"):
        check_profiles(workload, parse_cluster("1x4:h200"), truths)
    with pytest.raises(InputError, match="profile 'ncf'"):
        check_profiles(workload, parse_cluster("1x4"), {"bert": truths["bert"]})
