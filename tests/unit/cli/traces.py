"""Small workloads for tests of the command line."""

from __future__ import annotations

from pathlib import Path

from coadapt.simulation.traces import Submission, Workload
from tests.builders import a_job

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = str(EXAMPLES / "small.csv")


def a_trace_job(
    name: str,
    gpus: int = 1,
    *,
    at: float = 0.0,
    duration_s: float = 100.0,
    types: tuple[str, ...] = (),
    **more: object,
) -> Submission:
    """A rigid job as a row of a trace gives it."""
    spec = a_job(gpus, name=name, duration_s=duration_s, gpu_types=types, **more)  # type: ignore[arg-type]
    return Submission(at=at, job=name, spec=spec)


def a_workload(*jobs: Submission) -> Workload:
    return Workload(jobs=jobs, source="trace.csv")
