"""Small workloads for tests of the command line."""

from __future__ import annotations

from pathlib import Path

from coadapt.model import JobSpec, Role
from coadapt.simulate.traces import Submission, Workload

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = str(EXAMPLES / "small.csv")


def a_job(
    name: str,
    gpus: int = 1,
    *,
    at: float = 0.0,
    duration_s: float = 100.0,
    types: tuple[str, ...] = (),
    **more: object,
) -> Submission:
    """A rigid job."""
    spec = JobSpec(
        name=name,
        roles=(Role(min=gpus, max=gpus),),
        requested=gpus,
        duration_s=duration_s,
        gpu_types=types,
        **more,  # type: ignore[arg-type]
    )
    return Submission(at=at, job=name, spec=spec)


def a_workload(*jobs: Submission) -> Workload:
    return Workload(jobs=jobs, source="trace.csv")
