"""What a job that has succeeded is remembered to have needed."""

from __future__ import annotations

import pytest

from coadapt.model import Batch, Configuration, JobSpec, Measurement
from coadapt.scheduler.state.job_state import JobState

BATCH = Batch(initial=32, max=256, per_gpu_min=8, per_gpu_max=64)


def a_past(epochs: float | None, reports: list[tuple[float, float]], end_s: float) -> float | None:
    """Total work of a job of 1,000 examples per epoch that reported (when, work) and ended; it began at 0."""
    job = JobState("j", JobSpec(name="j", batch=BATCH, epochs=epochs, data_size=1000), order=0, at=0.0)
    job.running_since = 0.0
    for at, work in reports:
        job.measure(
            Measurement(config=Configuration(nodes=1, replicas=1, atomic_batch=32), step_s=0.1, work=work),
            1,
            at,
        )
    return job.as_past(end_s).total_work


@pytest.mark.parametrize(
    ("epochs", "reports", "end_s", "total"),
    [
        (1, [], 100.0, 1000.0),  # it ended before its first report
        (1, [(30.0, 0.0)], 100.0, 1000.0),
        (2, [(50.0, 1000.0)], 100.0, 2000.0),  # the last pass was never reported
        (10, [(99.0, 9900.0)], 100.0, 10000.0),
        (10, [(50.0, 1000.0)], 100.0, 2000.0),  # ended long before what it declared
        (10, [(50.0, 20000.0)], 60.0, 24000.0),  # and long after
        (None, [(50.0, 1000.0)], 100.0, 2000.0),
        (None, [], 100.0, None),
    ],
)
def test_the_work_after_the_last_report_counts(
    epochs: float | None, reports: list[tuple[float, float]], end_s: float, total: float | None
) -> None:
    found = a_past(epochs, reports, end_s)
    assert found == (None if total is None else pytest.approx(total))
