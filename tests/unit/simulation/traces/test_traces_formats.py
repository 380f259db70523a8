"""Every format by a small file whose values were worked out by hand."""

from __future__ import annotations

import pytest

from coadapt.model import JobSpec, Recorded, Role
from coadapt.plugins import FORMATS
from coadapt.simulation.traces import Submission, SwfFormat, Workload, describe


def by_job(workload):
    return {submission.job: submission for submission in workload.jobs}


def facts(workload):
    """(job, at, GPUs, duration) in order of submission."""
    return [(s.job, s.at, s.spec.requested_gpus, s.spec.duration_s) for s in workload.jobs]


def test_rigid_jobs_have_one_role_of_fixed_size(sample):
    spec = by_job(sample("philly.csv"))["philly-2"].spec
    assert (spec.worker.min, spec.worker.max, spec.requested, spec.worker.demand.gpus) == (4, 4, 4, 1)
    assert not spec.elastic
    assert spec.preemptible
    assert spec.profile == ""


def test_pollux_keeps_seconds_as_given_and_sorts(sample):
    workload = sample("pollux.csv")
    assert facts(workload) == [("cifar10-0", 107, 6, None), ("bert-2", 110, 2, None), ("ncf-1", 135, 1, None)]
    spec = workload.jobs[0].spec
    assert (spec.profile, spec.requested_batch, spec.name) == ("cifar10", 2048, "cifar10-0")
    assert workload.started_at is None
    assert not workload.recorded


def test_philly_csv_counts_from_the_first_submission(sample):
    workload = sample("philly.csv")
    assert facts(workload) == [
        ("philly-2", 0, 4, 2951),
        ("philly-1", 2932, 1, 66),  # 06:13:03 -> 07:01:55
        ("philly-4", 86400, 8, 40000),
    ]
    assert workload.started_at == 1507529583  # 2017-10-09 06:13:03 UTC
    assert workload.jobs[0].spec.team == "6214e9"
    assert workload.jobs[0].spec.recorded is None


def test_philly_json_adds_up_attempts(sample):
    workload = sample("philly.json")
    assert facts(workload) == [("application_1", 0, 3, 900)]
    spec = workload.jobs[0].spec
    assert spec.recorded == Recorded(start_s=600, end_s=3900)
    assert (spec.user, spec.team) == ("u1", "ee9e8c")
    assert workload.left_out == {"never started": 1, "not finished": 1}
    assert workload.recorded


def test_helios_leaves_out_cpu_only_and_never_started(sample):
    workload = sample("helios.csv")
    assert facts(workload) == [("102", 0, 1, 40), ("100", 3600, 8, 3600)]
    spec = workload.jobs[1].spec
    assert spec.recorded == Recorded(start_s=3900, end_s=7500)
    assert (spec.user, spec.team) == ("uA", "vcX")
    assert workload.left_out == {"never started": 1, "no GPUs": 1, "ran for 0 seconds": 1}


@pytest.mark.parametrize("path", ["pai", "pai/pai_job_table.csv", "pai/pai_task_table.csv"])
def test_pai_joins_jobs_and_tasks_from_directory_or_either_file(sample, path):
    workload = sample(path)
    # j1: 5 workers of half a GPU are 2.5, rounded up; runs from its first task's start to its last one's end.
    assert facts(workload) == [("j1", 0, 3, 590), ("j2", 200, 2, 270)]
    assert workload.jobs[0].spec.recorded == Recorded(start_s=10, end_s=600)
    assert workload.jobs[0].spec.user == "userA"
    assert workload.jobs[0].spec.gpu_types == ()
    assert workload.left_out == {
        "never started": 1,
        "no GPUs": 1,
        "not finished": 1,
        "not in the task table": 1,
    }
    assert workload.started_at is None


def test_openb_takes_pods_with_whole_gpus(sample):
    workload = sample("openb.csv")
    assert facts(workload) == [("openb-pod-0000", 0, 1, 12537491), ("openb-pod-0001", 427061, 2, 10000)]
    assert workload.jobs[1].spec.gpu_types == ("v100m16", "v100m32")
    assert workload.left_out == {"never started": 1, "no GPUs": 1}


def test_spot_multiplies_workers_and_protects_high_priority(sample):
    workload = sample("spot.csv")
    assert facts(workload) == [
        ("239255", 0, 1, 2764799),
        ("437260", 9589663, 16, 41060),
        ("437261", 9589664, 2, 60),
    ]
    high, spot, _ = (submission.spec for submission in workload.jobs)
    assert (high.priority, high.preemptible) == (1, False)
    assert (spot.priority, spot.preemptible, spot.gpu_types, spot.team) == (
        0,
        True,
        ("a100-sxm4-80gb",),
        "57",
    )


def test_slurm_reads_attempts_arrays_heterogeneous_jobs_and_steps(sample):
    workload = sample("slurm.txt")
    # Second 0 is 07:00:00. 1002 ran twice (300 s + 1200 s); 1020 is 1 + 2 GPUs for the longer part.
    assert facts(workload) == [
        ("1002", 0, 2, 1500),
        ("1001", 3600, 4, 3600),
        ("1003_4", 5400, 1, 40),
        ("1020", 6000, 3, 100),
    ]
    jobs = by_job(workload)
    assert jobs["1002"].spec.recorded == Recorded(start_s=30, end_s=4800)
    assert jobs["1001"].spec.recorded == Recorded(start_s=4200, end_s=7800)
    assert jobs["1001"].spec.time_limit_s == 7200
    assert jobs["1002"].spec.time_limit_s is None  # UNLIMITED
    assert jobs["1003_4"].spec.time_limit_s is None  # Partition_Limit
    assert (jobs["1001"].spec.user, jobs["1001"].spec.team) == ("ada", "vision")
    assert workload.left_out == {"never started": 2, "no GPUs": 1, "not finished": 1}
    assert workload.started_at == 1767596400  # 2026-01-05 07:00:00 UTC


def test_slurm_binds_jobs_only_to_the_type_they_asked_for(sample):
    jobs = by_job(sample("slurm.txt"))
    assert jobs["1001"].spec.gpu_types == ()  # got a100, asked for any
    assert jobs["1002"].spec.gpu_types == ("h100",)
    assert by_job(sample("slurm.txt", any_gpu_type=True))["1002"].spec.gpu_types == ()


def test_swf_reads_processors_waits_and_preceding_jobs(sample):
    workload = sample("log.swf")
    assert facts(workload) == [("1", 0, 4, 100), ("2", 50, 8, 30), ("5", 80, 2, 20)]
    first, second, fifth = (submission.spec for submission in workload.jobs)
    assert first.recorded == Recorded(start_s=10, end_s=110)
    assert (first.user, first.team, first.time_limit_s) == ("3", "1", 200)
    assert (second.recorded, second.user, second.time_limit_s) == (None, "", None)  # -1 everywhere
    assert second.after == ("1",)
    assert fifth.after == ()  # job 3 ran for no time and is not there
    assert workload.cluster_hint == "16x4"
    assert workload.started_at == 844354800
    assert workload.left_out == {"never started": 1, "part of another row": 1, "ran for 0 seconds": 1}


def test_swf_can_be_restricted_to_a_partition(sample):
    workload = sample("log.swf", format=SwfFormat(partition=2))
    assert [submission.job for submission in workload.jobs] == ["2"]
    assert workload.left_out == {"in another partition": 5}


ALIKE = {
    "csv": "ours.csv",
    "jsonl": "ours.jsonl",
    "philly-json": "philly.json",
    "slurm": "slurm.txt",
    "swf": "log.swf",
}


@pytest.mark.parametrize("name", FORMATS.names())
def test_format_is_told_from_the_head(sample, name):
    path = ALIKE.get(name, "pai" if name == "pai" else f"{name}.csv")
    assert sample(path) == sample(path, format=name)


def test_profiles_follow_gpu_time(sample):
    workload = sample("philly.csv", map_profiles="profiles")
    jobs = by_job(workload)
    assert jobs["philly-1"].spec.profile in ("cifar10", "ncf")  # 66 GPU-s
    assert jobs["philly-2"].spec.profile in ("deepspeech2", "bert")  # 3.3 GPU-h
    assert jobs["philly-4"].spec.profile == "yolov3"  # 88.9 GPU-h
    assert jobs["philly-2"].spec.requested == 4
    assert jobs["philly-2"].spec.team == "6214e9"
    assert workload == sample("philly.csv", map_profiles="profiles")


def _described(*jobs):
    return describe(Workload(jobs=jobs, source="t"))


def _job(name, at, gpus, duration_s, gpu_type="", start_s=None):
    recorded = None if start_s is None else Recorded(start_s=start_s, end_s=start_s + duration_s)
    spec = JobSpec(
        name=name,
        roles=(Role(min=gpus, max=gpus),),
        requested=gpus,
        duration_s=duration_s,
        gpu_types=(gpu_type,) if gpu_type else (),
        recorded=recorded,
    )
    return Submission(at=at, job=name, spec=spec)


def test_describe_takes_the_middle_of_two_durations():
    assert _described(_job("a", 0, 1, 600), _job("b", 0, 1, 86400))["median_duration_s"] == 43500


def test_describe_finds_the_most_gpus_in_use_by_type():
    about = _described(
        _job("a", 0, 8, 100, "a100", start_s=0),
        _job("b", 0, 4, 100, "a100", start_s=50),
        # starts when a ends
        _job("c", 0, 8, 100, "a100", start_s=100),
        _job("d", 0, 2, 100, "t4", start_s=0),
        _job("e", 0, 1, 300, start_s=0),
    )
    assert about["gpu_types"] == {"a100": 3, "t4": 1}
    assert about["peak_gpus"] == {"a100": 13, "t4": 2}
    assert about["peak_cluster"] == "2x8:a100,1x2:t4"


def test_describe_takes_submissions_where_no_start_was_recorded():
    about = _described(_job("a", 0, 16, 100), _job("b", 99, 4, 100), _job("c", 150, 16, 100))
    assert (about["peak_gpus"], about["peak_cluster"]) == ({"": 20}, "3x8")


def test_describe_reduces_a_workload_to_plain_data(sample):
    about = describe(sample("helios.csv"))
    assert about["jobs"] == 2
    assert about["span_s"] == 3600
    assert about["gpu_hours"] == pytest.approx(8 + 40 / 3600)
    assert about["sizes"] == {1: 1, 8: 1}
    assert about["recorded"] is True
    assert about["left_out"] == {"never started": 1, "no GPUs": 1, "ran for 0 seconds": 1}
