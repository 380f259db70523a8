"""JCTs of a live run: only of jobs that came to a good end."""

from __future__ import annotations

from benchmarks.same_decisions import lived

from coadapt.model import JobFinished, JobSubmitted, Record
from tests.builders import a_job


def test_job_that_failed_has_no_jct_to_compare() -> None:
    events = [
        JobSubmitted(job="a", spec=a_job(1)),
        JobSubmitted(job="b", spec=a_job(1)),
        JobFinished(job="a", attempt=1, outcome="failed", exit_code=1),
        JobFinished(job="b", attempt=1, outcome="succeeded", exit_code=0),
    ]
    records = [Record(seq=n, at=10.0 * n, event=event) for n, event in enumerate(events)]
    assert lived(records) == {"b": 20.0}
