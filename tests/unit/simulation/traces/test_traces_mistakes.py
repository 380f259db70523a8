"""Bad rows are named with file, line and column, or skipped and kept on record."""

from __future__ import annotations

import io

import pytest
from trace_samples import a_profiled_spec

from coadapt.errors import InputError, TraceError, UnknownNameError
from coadapt.simulation.traces import BadRow, read_trace

OURS = "job,submit_s,gpus,duration_s\n"
POLLUX = "name,time,application,num_replicas,batch_size\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
SLURM = "JobID|Submit|Start|End|ElapsedRaw|State|AllocTRES\n"
DAY = "2026-01-05T"


def read(text, **options):
    return read_trace(io.StringIO(text, newline=""), file="t.csv", profiles=a_profiled_spec, **options)


MISTAKES = [
    (OURS + "a,0,1,5\nb,-1,1,5\n", 3, "submit_s", "less than 0"),
    (OURS + "a,0,0,5\n", 2, "gpus", "less than 1"),
    (OURS + "a,0,-4,5\n", 2, "gpus", "less than 1"),
    (OURS + "a,0,1.5,5\n", 2, "gpus", "whole number"),
    (OURS + "a,0,1,five\n", 2, "duration_s", "'five' is not a number"),
    (OURS + "a,0,1,inf\n", 2, "duration_s", "not a number"),
    (OURS + "a,0,1,1e300\n", 2, "duration_s", "too large"),
    (OURS + "a,0,1,-5\n", 2, "duration_s", "less than 0"),
    (OURS + "a,0,1,\n", 2, "duration_s", "give duration_s"),
    (OURS + "a,0,1\n", 2, None, "3 columns, the header has 4"),
    (OURS + "a,0,1,5,6\n", 2, None, "5 columns"),
    (OURS + "a,0,1,5\n\na,0,1,5\n", 4, "job", "already on line 2"),
    (OURS + ",0,1,5\n", 2, "job", "not a job id"),
    (OURS + "a|b,0,1,5\n", 2, "job", "must not contain"),
    (OURS + 'a,0,1,5\n"b\nc",0,1,5\n', 3, "job", "not a job id"),
    (OURS + "a,0,2000000,5\n", 2, "gpus", "1,000,000"),
    ("job,submit_s,gpus,start_s,end_s\na,0,1,10,5\n", 2, "end_s", "ends before it starts"),
    ("job,submit_s,gpus,start_s,end_s\na,20,1,10,25\n", 2, "start_s", "before it is submitted"),
    ("job,submit_s,gpus,duration_s,min_gpus,max_gpus\na,0,4,1,8,2\n", 2, "min_gpus", "more than max_gpus"),
    ("job,submit_s,gpus,duration_s,min_gpus\na,0,4,1,8\n", 2, "gpus", "not between"),
    ("job,submit_s,gpus,duration_s,min_gpus\na,0,4,1,2\n", 2, "min_gpus", "need a profile"),
    ("job,submit_s,gpus,duration_s,max_gpus\na,0,4,1,8\n", 2, "max_gpus", "need a profile"),
    ("job,submit_s,gpus,duration_s,profile\na,0,4,1,ncf\n", 2, "duration_s", "not both"),
    (
        "job,submit_s,gpus,profile,epochs\na,0,1,cifar10,0\n",
        2,
        "epochs",
        "0 epochs are too many or too few: cifar10 has 1 to 100",
    ),
    ("job,submit_s,gpus,profile,epochs\na,0,1,cifar10,101\n", 2, "epochs", "has 1 to 100"),
    ("job,submit_s,gpus,duration_s,start_s,end_s\na,0,1,60,5,35\n", 2, "duration_s", "more than the 30 s"),
    ('{"job": "a", "submit_s": 0, "gpus": 1, "gpus": 2, "duration_s": 5}\n', 1, "gpus", "appears twice"),
    ("job,submit_s,gpus,duration_s,preemptible\na,0,4,1,maybe\n", 2, "preemptible", "neither true nor false"),
    ("job,submit_s,gpus,duration_s,after\na,0,4,1,ghost\n", 2, "after", "'ghost', which is not in the trace"),
    ("job,submit_s,gpus,duration_s,after\na,0,4,1,b\nb,0,4,1,a\n", 2, "after", "depends on it in turn"),
    ("job,submit_s,gpus,profile\na,0,4,cifar11\n", 2, "profile", "known: bert, cifar10"),
    (OURS.replace("gpus", "gpu") + "a,0,1,5\n", 1, "gpu", "did you mean 'gpus'"),
    ("job,submit_s,duration_s\na,0,1\n", 1, None, "needs one column 'gpus'"),
    ("job,gpus,duration_s\na,0,1\n", 1, None, "missing column submit_s; found 'job', 'gpus', 'duration_s'"),
    ("job,job,submit_s,gpus\n", 1, "job", "twice"),
    ('{"job": "a", "submit_s": 0, "gpus": 1, "duration_s": 5}\n{"job"\n', 2, None, "is not JSON"),
    ('{"job": "a", "submit_s": 0, "gpus": 1, "durations": 5}\n', 1, "durations", "did you mean 'duration_s'"),
    ('{"job": "a", "submit_s": 0, "gpus": {}, "duration_s": 5}\n', 1, "gpus", "dict is not a value"),
    (
        '{"job": "a", "submit_s": 0, "gpus": 9999999999999999999999, "duration_s": 5}\n',
        1,
        "gpus",
        "too large",
    ),
    ('{"job": "a", "gpus": 1}\n', 1, None, "missing column submit_s"),
    (POLLUX + "a,0,cifar11,1,128\n", 2, "application", "known: bert, cifar10, deepspeech2"),
    (POLLUX + "a,0,cifar10,1,128\na,1,cifar10,1,128\n", 3, "name", "already on line 2"),
    (POLLUX + "a,0,cifar10,1,lots\n", 2, "batch_size", "not a number"),
    (POLLUX.replace(",batch_size", ""), 1, None, "missing column batch_size"),
    (PHILLY + "2017-13-01 00:00:00,5,1,5,x\n", 2, "timestamp", "not a time"),
    (PHILLY + "2017-12-01 00:00:00,-5,1,5,x\n", 2, "duration", "less than 0"),
    (PHILLY + "2017-12-01 00:00:00,5,0,0,x\n", 2, "num_gpus", "less than 1"),
    ('[{"jobid": 3}]', None, None, "is not a Philly job log"),
    (
        HELIOS + "1,u,v,1,1,1,X,2020-04-02 10:00:00,2020-04-02 10:05:00,2020-04-02 10:01:00,60,0\n",
        2,
        "end_time",
        "ends",
    ),
    (
        HELIOS + "1,u,v,1,1,1,X,2020-04-02 10:00:00,2020-04-02 09:05:00,2020-04-02 10:01:00,60,0\n",
        2,
        "start_time",
        "",
    ),
    (
        SLURM + f"1|{DAY}08:00:00|{DAY}09:00:00|{DAY}08:30:00|9|COMPLETED|gres/gpu=1\n",
        2,
        "End",
        "ends before",
    ),
    (SLURM + f"1|yesterday|{DAY}09:00:00|{DAY}09:30:00|9|COMPLETED|gres/gpu=1\n", 2, "Submit", "not a time"),
    (SLURM + f"1|{DAY}08:00:00|{DAY}09:00:00|x|y|9|COMPLETED|gres/gpu=1\n", 2, None, "8 columns"),
    (
        "JobID|State|AllocTRES|Submit|Start\n",
        1,
        None,
        "missing column ElapsedRaw or Elapsed or End; export with the command of docs/traces.md",
    ),
    ("JobID|JobName|Partition|State|ExitCode\n", 1, None, "missing columns Submit, Start"),
    ("; Version: 2.2\n1 0 10 100\n", 2, None, "4 fields, SWF has 18"),
    ("; Version: 2.2\n1 0 x 100 4 -1 -1 4 200 -1 1 3 1 -1 1 1 -1 -1\n", 2, "wait", "not a number"),
    ("; Version: 2.2\n1 -7 0 100 4 -1 -1 4 200 -1 1 3 1 -1 1 1 -1 -1\n", 2, "submit", "less than 0"),
]


@pytest.mark.parametrize(("text", "line", "column", "problem"), MISTAKES)
def test_mistake_is_named_with_line_and_column(text, line, column, problem):
    with pytest.raises(TraceError) as caught:
        read(text)
    assert (caught.value.file, caught.value.line, caught.value.column) == ("t.csv", line, column)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_rows_can_be_skipped_and_stay_on_record():
    workload = read(OURS + "a,0,1,5\nb,-1,1,5\nc,2,1\nd,3,2,5\na,4,1,5\n", strict=False)
    assert [submission.job for submission in workload.jobs] == ["a", "d"]
    assert workload.skipped == (
        BadRow(file="t.csv", line=3, column="submit_s", problem="'-1' is less than 0"),
        BadRow(file="t.csv", line=4, problem="has 3 columns, the header has 4"),
        BadRow(file="t.csv", line=6, column="job", problem="job 'a' is already on line 2"),
    )


def test_skipping_a_job_skips_those_that_wait_for_it():
    text = "job,submit_s,gpus,duration_s,after\na,0,0,1,\nb,0,1,1,a\nc,0,1,1,b\nd,0,1,1,\n"
    workload = read(text, strict=False)
    assert [submission.job for submission in workload.jobs] == ["d"]
    assert [row.line for row in workload.skipped] == [2, 3, 4]


def test_job_that_ran_for_no_time_is_left_out_and_holds_nobody_back():
    workload = read("job,submit_s,gpus,duration_s,after\na,0,1,0,\nb,0,1,1,a\n")
    assert [(s.job, s.spec.after) for s in workload.jobs] == [("b", ())]
    assert workload.left_out == {"ran for 0 seconds": 1}


def test_slurm_skips_a_bad_attempt_without_losing_the_others():
    text = SLURM + f"1|{DAY}08:00:00|{DAY}09:00:00|{DAY}08:30:00|9|FAILED|gres/gpu=1\n"
    text += f"2|{DAY}08:00:00|{DAY}09:00:00|{DAY}09:00:09|9|FAILED|gres/gpu=1\n"
    workload = read(text, strict=False)
    assert [submission.job for submission in workload.jobs] == ["2"]
    assert [row.line for row in workload.skipped] == [2]


@pytest.mark.parametrize(
    "text", ["", "\n \n", OURS, OURS + "a,0,1,0\n", SLURM, "; Version: 2.2\n", "[]", PHILLY, "{}\n"]
)
def test_trace_without_jobs_says_so(text):
    with pytest.raises(InputError, match=r"has no jobs|missing column|needs one column"):
        read(text)


def test_trace_without_jobs_says_what_was_left_out():
    with pytest.raises(InputError, match=r"has no jobs \(excluded: 1 ran for 0 seconds, 1 with errors\)"):
        read(OURS + "a,0,1,0\nb,0,x,1\n", strict=False)


def test_unknown_head_names_the_formats():
    with pytest.raises(
        InputError, match=r"no known trace begins with 'a,b,c'; formats: gavel, csv, jsonl, pollux"
    ):
        read("a,b,c\n1,2,3\n")


def test_unknown_format_suggests():
    with pytest.raises(UnknownNameError, match="did you mean 'slurm'"):
        read(OURS, format="slrum")


def test_unknown_mapping_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'profiles'"):
        read(OURS, map_profiles="profile")


def test_profiles_are_required_where_the_trace_names_them():
    with pytest.raises(InputError, match="no profiles were given"):
        read_trace(io.StringIO(POLLUX + "a,0,ncf,1,128\n"), file="t.csv")


def test_pai_job_table_alone_is_refused():
    with pytest.raises(InputError, match="task table"):
        read("j1,i1,userA,Terminated,1000.0,1600.0\n")


def test_slurm_reads_unix_times_and_elapsed_clock():
    text = "JobIDRaw|Submit|Start|State|Elapsed|ReqTRES|Timelimit|\n"
    text += "7|1767596400|1767596410|COMPLETED|1-02:03:04|gres/gpu:a100=2,gres/gpu:a100=1|2-00:00:00|\n"
    (job,) = read(text).jobs
    assert (job.job, job.spec.requested, job.spec.duration_s) == ("7", 3, 93784)
    assert job.spec.time_limit_s == 172800
    assert job.spec.recorded is not None
    assert job.spec.recorded.end_s == 10 + 93784
