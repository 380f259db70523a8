"""Our own format: what it says, and that writing and reading are inverse."""

from __future__ import annotations

import io
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import a_profiled_spec

from coadapt.errors import InputError
from coadapt.model import JobSpec, Recorded, Resources, Role
from coadapt.simulation.traces import Submission, Workload, profile_for, read_trace, write


def written(workload, format):
    stream = io.StringIO(newline="")
    write(workload, stream, format)
    return stream.getvalue()


def test_ours_reads_every_column(sample):
    workload = sample("ours.csv")
    jobs = {submission.job: submission for submission in workload.jobs}
    assert [submission.job for submission in workload.jobs] == ["train, big", "prep", "tuned", "eval"]
    big = jobs["train, big"].spec
    assert (big.worker.min, big.worker.max, big.requested) == (4, 4, 4)
    assert (big.gpu_types, big.priority, big.deadline_s) == (("t4", "a100"), 5, 7200)
    assert (big.preemptible, big.time_limit_s, big.duration_s) == (False, 4000, 3600)
    assert jobs["prep"].spec.recorded == Recorded(start_s=12, end_s=72)
    assert (jobs["prep"].spec.user, jobs["prep"].spec.team) == ("ada", "vision")
    tuned = jobs["tuned"].spec
    assert (tuned.profile, tuned.requested_batch, tuned.epochs, tuned.worker.max) == ("cifar10", 256, 30, 16)
    assert jobs["eval"].spec.duration_s == 60  # from start and end
    assert jobs["eval"].spec.after == ("prep", "train, big")


def test_ours_json_lines_take_lists_numbers_and_null(sample):
    first, second = sample("ours.jsonl").jobs
    assert (first.job, first.spec.requested, first.spec.duration_s) == ("a", 2, 30.5)
    assert (second.job, second.spec.after, second.spec.preemptible) == ("7", ("a",), False)


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@pytest.mark.parametrize("name", ["ours.csv", "slurm.txt", "log.swf", "pai", "spot.csv", "pollux.csv"])
def test_write_converts_any_sample_without_loss(sample, name, format):
    workload = sample(name)
    again = read_trace(io.StringIO(written(workload, format), newline=""), file="x", profiles=a_profiled_spec)
    assert again.jobs == workload.jobs
    assert again.recorded == workload.recorded


names = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp", "Zs")), min_size=1, max_size=8
)
ids = names.filter(lambda name: "|" not in name and name.isprintable())
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
seconds = st.one_of(st.integers(0, 10**7).map(float), st.floats(0, 1e9))
maybe = st.one_of(st.none(), seconds)


@st.composite
def workloads(draw):
    jobs = []
    for job in draw(st.lists(ids, min_size=1, max_size=5, unique=True)):
        gpus, at = draw(st.integers(1, 64)), draw(seconds)
        start_s = draw(st.one_of(st.none(), seconds.map(lambda wait, at=at: at + wait)))
        end_s = (
            None
            if start_s is None
            else draw(st.one_of(st.none(), seconds.map(lambda run, s=start_s: s + run)))
        )
        most_s = inf if start_s is None or end_s is None else max(end_s - start_s, 1.0)
        spec = JobSpec(
            name=job,
            user=draw(words),
            team=draw(words),
            roles=(Role(min=gpus, max=gpus),),
            requested=gpus,
            duration_s=min(draw(seconds.filter(lambda s: s > 0)), most_s),
            recorded=None if start_s is None and end_s is None else Recorded(start_s=start_s, end_s=end_s),
            gpu_types=tuple(draw(st.lists(ids, max_size=2, unique=True))),
            priority=draw(st.integers(-9, 9)),
            deadline_s=draw(maybe),
            time_limit_s=draw(maybe),
            epochs=draw(maybe),
            after=tuple(
                draw(st.lists(st.sampled_from([s.job for s in jobs]), max_size=2, unique=True))
                if jobs
                else ()
            ),
            preemptible=draw(st.booleans()),
        )
        jobs.append(Submission(at=at, job=job, spec=spec))
    return Workload(jobs=tuple(jobs), source="x")


def test_write_refuses_what_has_no_column():
    spec = JobSpec(name="a", duration_s=1.0, roles=(Role(demand=Resources(gpus=2)),))
    with pytest.raises(InputError, match="cannot be written"):
        written(Workload(jobs=(Submission(at=0.0, job="a", spec=spec),), source="x"), "csv")


@settings(max_examples=60, deadline=None)
@given(workloads())
def test_write_then_read_gives_the_same_jobs(workload):
    expected = sorted(workload.jobs, key=lambda submission: submission.at)
    for format in ("csv", "jsonl"):
        stream = io.StringIO(written(workload, format), newline="")
        assert list(read_trace(stream, file="x", format=format).jobs) == expected


@pytest.mark.parametrize(
    ("gpu_hours", "expected"),
    [
        (0.99, {"cifar10", "ncf"}),
        (1, {"deepspeech2", "bert"}),
        (9.99, {"deepspeech2", "bert"}),
        (10, {"yolov3"}),
        (99.9, {"yolov3"}),
        (100, {"imagenet"}),
    ],
)
def test_profile_for_uses_all_profiles_of_a_class(gpu_hours, expected):
    assert {profile_for(f"job-{n}", gpu_hours * 3600) for n in range(40)} == expected


def test_profile_for_is_the_same_in_every_process():
    found = [profile_for(f"job-{n}", 10.0) for n in range(6)]
    assert found == ["cifar10", "cifar10", "ncf", "cifar10", "cifar10", "cifar10"]


def test_write_refuses_bounds_without_a_profile():
    spec = JobSpec(name="a", duration_s=1.0, requested=2, roles=(Role(min=1, max=4),))
    with pytest.raises(InputError, match="need a profile"):
        written(Workload(jobs=(Submission(at=0.0, job="a", spec=spec),), source="x"), "csv")


def test_epochs_of_a_mapped_job_are_not_those_of_its_profile():
    lines = ["job,submit_s,gpus,duration_s,epochs\n", "a,0,1,60,500\n"]
    (job,) = read_trace(lines, file="x", map_profiles="profiles", profiles=a_profiled_spec).jobs
    assert (job.spec.profile != "", job.spec.epochs) == (True, 100.0)
