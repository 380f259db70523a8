"""Routes that read jobs: pages of jobs, one job in detail, why it has its allocation, and its course over time.

The explanation of a moment in the past is made by the lookahead process, which folds the log up to then. The course is for
charts: measurements, decisions and events over time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
from starlette.responses import Response

from coadapt.explain.explanation import Explanation, again, gpus
from coadapt.explain.explanation import why as explain
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
    ReportsMerged,
    ResizeJob,
    StartJob,
    gpus_of,
)
from coadapt.model.snapshot import ShownState
from coadapt.prediction.gradient_noise import efficiency
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.event_text import discreet, shown_spec, text_of
from coadapt.server.http.problems import JSON, Refused
from coadapt.server.http.routing import Call, Route
from coadapt.server.lookahead_process import AskWhy
from coadapt.server.routes.agents import waits_for_room
from coadapt.wire.api import MOST_ROWS, Change, Course, CoursePoint, Holder, JobDetail, JobPage, Why

Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]


class JobsQuery(msgspec.Struct, frozen=True):
    """``state`` may name several, with commas between; ``after`` is the ``next`` of the page before."""

    state: str = ""
    user: str = ""
    limit: Rows = 100
    after: Count | None = None


class _EncodedPage(msgspec.Struct, frozen=True):
    """A ``JobPage`` whose lines are JSON already."""

    jobs: list[msgspec.Raw]
    total: int
    next: int | None
    seq: int


def page(call: Call) -> Response:
    """``GET /v1/jobs``: newest first."""
    services, query = call.services, call.query
    follower = services.follower
    follower.refresh()
    user = query.user or None
    if call.caller.role == "user":
        # for others' jobs the page is empty: whether there are any is not theirs to know
        user = call.caller.name if user in (None, call.caller.name) else ""
    names, total, following = follower.index.page(
        user=user, states=_states(query.state), before=query.after, limit=query.limit
    )
    found = [job for name in names if (job := follower.job(name)) is not None]
    encoded = _EncodedPage(
        jobs=[services.lines.encoded(job) for job in found],
        total=total,
        next=following,
        seq=follower.state.seq,
    )
    return Response(msgspec.json.encode(encoded), media_type=JSON)


def _states(text: str) -> list[str]:
    if not text:
        return list(ShownState)
    states = [part.strip().upper() for part in text.split(",")]
    for state in states:
        if state not in ShownState.__members__:
            raise Refused(400, f"unknown state {state[:40]!r}; use one of {', '.join(ShownState).lower()}")
    return list(dict.fromkeys(states))


def detail(call: Call) -> JobDetail:
    """``GET /v1/jobs/{job}``."""
    job = call.services.seen(call.path["job"], call.caller)
    failure, follower = job.failure, call.services.follower
    return JobDetail(
        line=call.services.lines.line(job),
        spec=shown_spec(call.services.follower.spec(job)),
        placement={
            node: sum(slot.replicas for slot in job.held.slots if slot.node == node)
            for node in sorted({slot.node for slot in job.held.slots})
        },
        tail="" if failure is None else failure.tail,
        rank=None if failure is None else failure.rank,
        exit_code=None if failure is None else failure.exit_code,
        kind="" if failure is None else failure.kind,
        advice=follower.advisor.of(follower.state, job, follower.now),
    )


class WhyQuery(msgspec.Struct, frozen=True):
    """``at``: a moment in unix seconds; without it, now."""

    at: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None


async def why(call: Call) -> Why:
    """``GET /v1/jobs/{job}/why``."""
    services, follower = call.services, call.services.follower
    job = services.seen(call.path["job"], call.caller)
    visible = services.visible(call.caller)
    if call.query.at is not None:
        told = await services.forward.ask(AskWhy(job=job.id, at=call.query.at), Explanation)
        return _answer(told, lambda name: follower.job(name) is not None, visible)
    if follower.is_pending(job.id):
        sentence = "Submitted a moment ago. The controller has not processed it yet."
        return Why(job=job.id, at=follower.now, state=job.shown_state, sentence=sentence, code="submitted")
    said = explain(follower.state, job.id, follower.now, follower.standings, follower.advisor)
    if said.next.startswith(again(job.id)):
        kept = await asyncio.to_thread(services.files.checkpoints, job.id)
        whole = any(line.whole for line in kept)
        where = "It continues from its last checkpoint." if whole else "It starts over: it has no checkpoint."
        said = msgspec.structs.replace(said, next=f"{said.next} {where}")
    if job.in_flight is not None and (room := await waits_for_room(call, job.id)):
        said = msgspec.structs.replace(said, next=f"{room} {said.next}".strip())
    return _answer(said, lambda name: follower.job(name) is not None, visible)


def _answer(said: Explanation, exists: Callable[[str], bool], visible: Callable[[str], bool]) -> Why:
    """For a user, others hold GPUs without a name for their jobs."""
    return Why(
        job=said.job,
        at=said.at,
        state=said.state,
        sentence=discreet(said.sentence, exists, visible),
        code=said.code,
        numbers=said.numbers,
        holders=[
            Holder(job=each.job if visible(each.job) else "", user=each.user, gpus=each.gpus, eta=each.eta)
            for each in said.holders
        ],
        next=discreet(said.next, exists, visible),
        decision=said.decision,
        decided_at=said.decided_at,
        advice=said.advice,
    )


#: Points and changes in one answer; of more, every n-th, the last always.
_MOST_POINTS = 1000


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
    stride = -(-len(seqs) // _MOST_POINTS)
    return seqs if stride <= 1 else seqs[::-1][::stride][::-1]


def _measured(job: JobState, record: Record) -> CoursePoint:
    assert isinstance(record.event, Measured | ReportsMerged)
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


ROUTES = (
    Route("GET", "/v1/jobs", page, JobPage, query=JobsQuery),
    Route("GET", "/v1/jobs/{job}", detail, JobDetail),
    Route("GET", "/v1/jobs/{job}/course", course, Course),
    Route("GET", "/v1/jobs/{job}/why", why, Why, query=WhyQuery),
)
