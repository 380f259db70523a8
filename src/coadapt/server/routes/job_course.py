"""The course of a job for charts: measurements, decisions and events over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coadapt.explain.explanation import gpus
from coadapt.model import (
    ActionsIssued,
    DecisionMade,
    JobFinished,
    JobResized,
    JobStopped,
    Measured,
    Measurement,
    Placement,
    Record,
    ResizeJob,
    StartJob,
    gpus_of,
)
from coadapt.prediction.gradient_noise import efficiency
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.event_text import text_of
from coadapt.server.http.routing import Call, Route
from coadapt.wire.api import Change, Course, CoursePoint

#: Points and changes in one answer; of more, every n-th, the last always.
_MOST = 1000


def course(call: Call) -> Course:
    """``GET /v1/jobs/{job}/course``."""
    job, history = call.services.seen(call.path["job"], call.caller), call.services.history
    measured = history.records(_thinned(history.measured(job.id)))
    happened = history.records(_thinned(history.changes(job.id)))
    points = [_measured(job, record) for record in measured]
    points += [point for record in happened for point in _held(job, record)]
    return Course(
        job=job.id,
        points=sorted(points, key=lambda point: point.at),
        changes=[change for record in happened if (change := _change(job, record)) is not None],
    )


def _thinned(seqs: Sequence[int]) -> Sequence[int]:
    stride = -(-len(seqs) // _MOST)
    return seqs if stride <= 1 else seqs[::-1][::stride][::-1]


def _measured(job: JobState, record: Record) -> CoursePoint:
    assert isinstance(record.event, Measured)
    m = record.event.measurement
    share = efficiency_of(job, m)
    declared = job.declared
    return CoursePoint(
        at=record.at,
        gpus=m.config.replicas * job.spec.gpus_per_replica,
        batch=m.config.batch,
        efficiency=share,
        goodput=goodput_of(m, share),
        progress=min(m.work / declared, 1.0) if declared and m.work is not None else m.share,
        metrics=m.metrics,
    )


def efficiency_of(job: JobState, m: Measurement) -> float | None:
    """Statistical efficiency of the measured batch, by the gradients that came with it."""
    if job.spec.batch is None or m.grad_sqr is None or m.grad_var is None:
        return None
    return efficiency(m.grad_sqr, m.grad_var, m.config.batch / job.spec.batch.initial)


def goodput_of(m: Measurement, share: float | None) -> float | None:
    """Useful examples per second; a step with accumulation is as many steps without, and one that synchronises."""
    if share is None or m.step_s <= 0:
        return None
    compute_s = m.step_s - m.sync_s
    return share * m.config.batch / (m.step_s + m.config.accumulation * compute_s)


def _held(job: JobState, record: Record) -> Iterator[CoursePoint]:
    """From when on the job has how many GPUs."""
    event = record.event
    if isinstance(event, ActionsIssued):
        for action in event.actions:
            if action.job == job.id and isinstance(action, StartJob | ResizeJob):
                yield _point(job, record.at, action.placement)
    elif isinstance(event, JobStopped | JobFinished):
        yield CoursePoint(at=record.at, gpus=0)


def _point(job: JobState, at: float, placement: Placement) -> CoursePoint:
    return CoursePoint(at=at, gpus=gpus_of(placement, job.spec))


def _change(job: JobState, record: Record) -> Change | None:
    event = record.event
    if isinstance(event, DecisionMade):
        text = _decided(job, event)
    elif isinstance(event, ActionsIssued):
        return None  # its decision says it, and its outcome
    elif isinstance(event, JobResized):
        text = f"Resized to {gpus(gpus_of(event.placement, job.spec))}."
    else:
        text = text_of(event)
    return Change(at=record.at, seq=record.seq, text=text, kind=type(event).__name__) if text else None


def _decided(job: JobState, event: DecisionMade) -> str:
    parts = []
    if job.id in event.targets:
        given = gpus_of(event.targets[job.id], job.spec)
        parts.append(f"Given {gpus(given)}." if given else "Preempted.")
    if job.id in event.reasons:
        parts.append(event.reasons[job.id].text)
    return " ".join(parts)


ROUTES = (Route("GET", "/v1/jobs/{job}/course", course, Course),)
