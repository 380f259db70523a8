"""Routes of predictions: every job's start and end, the preview of a submission, and predicted beside actual times.

The first two simulate the live state forward. The last compares the first prediction of each job with its actual end.
"""

from __future__ import annotations

from collections.abc import Sequence

from coadapt.model import JobSpec
from coadapt.model.interval import Outlook
from coadapt.model.snapshot import Phase
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.http.routing import Call, Route
from coadapt.server.lookahead_process import AskPreview
from coadapt.server.services import Services
from coadapt.units import format_duration
from coadapt.wire.api import (
    MOST_ROWS,
    EtaLine,
    EtaPage,
    Option,
    PredictionLine,
    PredictionPage,
    Preview,
    Submit,
)

#: Other sizes that are looked at.
_MOST_SIZES = 4


async def eta(call: Call) -> EtaPage:
    """``GET /v1/eta``."""
    services, follower = call.services, call.services.follower
    follower.refresh()
    seq = follower.state.seq
    outlooks = await services.outlooks.make(seq)
    visible = services.visible(call.caller)
    return EtaPage(
        jobs=[
            EtaLine(job=job, starts_at=each.starts_at, finishes=each.finishes, note=each.note)
            for job, each in outlooks.items()
            if visible(job)
        ],
        seq=seq,
        policy=services.options.policy,
        note=_coarse(len(outlooks)) if any(each.coarse for each in outlooks.values()) else "",
    )


def _coarse(jobs: int) -> str:
    return (
        f"Coarse forecast: {jobs:,} jobs are too many to simulate. Each is assumed to run at the size it asked for, "
        "users take turns, and preemption and resizes are not considered."
    )


async def preview(call: Call) -> Preview:
    """``POST /v1/preview``."""
    services = call.services
    spec = services.checked(call.body.spec, call.caller)
    question = AskPreview(spec=spec, sizes=sizes_of(spec, services.follower.state.gpus))
    chosen, others = await services.forward.ask(
        question, tuple[Outlook, dict[int, Outlook]], seq=services.follower.state.seq
    )
    price = _price(spec, services)
    now = services.follower.now
    first = _option(chosen, spec.requested_gpus, price)
    rest = [_option(each, size * spec.gpus_per_replica, price) for size, each in others.items()]
    return Preview(
        chosen=first,
        others=rest,
        sentence=_sentence(first, rest, asked_for(spec)),
        notes=[*_notes(chosen, spec, now), *_coarse_notes(chosen, services)],
    )


def _coarse_notes(chosen: Outlook, services: Services) -> list[str]:
    return (
        [_coarse(len(services.follower.state.jobs) - services.follower.state.ended)] if chosen.coarse else []
    )


def sizes_of(spec: JobSpec, gpus: int) -> tuple[int, ...]:
    """Returns numbers of replicas to preview: half and double the request, the least, and the most that fit the cluster."""
    most = min(spec.worker.max, max(gpus // spec.gpus_per_replica, spec.worker.min))
    wanted = (spec.requested // 2, spec.requested * 2, spec.worker.min, most)
    found = {size for size in wanted if spec.worker.min <= size <= most}
    if spec.elastic:
        found.add(min(max(spec.requested, spec.worker.min), most))
    else:
        found.discard(spec.requested)
    return tuple(sorted(found))[:_MOST_SIZES]


def _option(found: Outlook, gpus: int, price: float | None) -> Option:
    cost = None if price is None or found.gpu_s is None else found.gpu_s / 3600 * price
    return Option(
        gpus=gpus,
        batch=found.batch,
        starts_at=found.starts_at,
        finishes=found.finishes,
        gpu_s=found.gpu_s,
        cost=cost,
    )


def _price(spec: JobSpec, services: Services) -> float | None:
    """Of the one GPU type that it can be; None where there are several."""
    types = spec.gpu_types or tuple({n.node.gpu_type for n in services.follower.state.nodes.values()})
    return services.prices.of(types[0]) if len(types) == 1 else None


def asked_for(spec: JobSpec) -> str:
    """GPUs of the job as it is: a number, or a range within which the policy moves it."""
    least, most = (each * spec.gpus_per_replica for each in (spec.worker.min, spec.worker.max))
    return f"{least}..{most}" if spec.elastic else str(spec.requested_gpus)


def _sentence(chosen: Option, others: Sequence[Option], asked: str) -> str:
    """The other size that ends earliest, and what it changes."""
    known = [each for each in others if each.finishes is not None and str(each.gpus) != asked]
    if chosen.finishes is None or not known:
        return ""
    best = min(known, key=lambda each: each.finishes.value if each.finishes is not None else 0.0)
    assert best.finishes is not None
    parts = []
    if best.starts_at is not None and chosen.starts_at is not None:
        parts.append(_shift("starts", best.starts_at - chosen.starts_at))
    parts.append(_shift("ends", best.finishes.value - chosen.finishes.value))
    paid, due = (best.cost, chosen.cost) if chosen.cost is not None else (best.gpu_s, chosen.gpu_s)
    if paid is not None and due:
        share = paid / due - 1
        what = (
            ("cheaper", "more expensive") if chosen.cost is not None else ("less GPU time", "more GPU time")
        )
        if abs(share) >= 0.01:
            parts.append(f"{abs(share):.0%} {what[share > 0]}")
    parts = [part for part in parts if part]
    return f"With {best.gpus} GPU{'' if best.gpus == 1 else 's'} all the time instead of {asked}: {', '.join(parts) or 'about the same'}."


def _shift(verb: str, seconds: float) -> str:
    if abs(seconds) < 1:
        return ""
    return f"{verb} {format_duration(abs(seconds))} {'later' if seconds > 0 else 'earlier'}"


def _notes(chosen: Outlook, spec: JobSpec, now: float) -> list[str]:
    notes = [chosen.note] if chosen.note else []
    if chosen.latest_start_at is not None and (chosen.starts_at is None or chosen.starts_at > now + 1):
        notes.append(
            f"It starts in {format_duration(max(chosen.latest_start_at - now, 0.0))} at the latest, unless further jobs "
            "that cannot be preempted start within its waiting time."
        )
    elif chosen.in_the_way:
        notes.append(
            "No latest start can be promised: jobs that cannot be preempted and have no time limit hold the GPUs it needs."
        )
    if spec.deadline_s is None:
        return notes
    deadline_at = now + spec.deadline_s
    if chosen.over_by is not None and chosen.over_by <= deadline_at:
        return notes  # however long it would take: its time limit ends it before
    if chosen.finishes_at is None or chosen.finishes_at > deadline_at:
        notes.append("The deadline will be missed on the cluster as it is now.")
    elif chosen.high is None or chosen.high > deadline_at:
        notes.append("The deadline is at risk: it lies within the 80% interval of the end.")
    return notes


ROUTES = (
    Route("GET", "/v1/eta", eta, EtaPage),
    Route("POST", "/v1/preview", preview, Preview, "writer", Submit),
)


def page(call: Call) -> PredictionPage:
    """``GET /v1/predictions``: newest jobs first. Only a job that succeeded has come to the end that was predicted; of one
    that failed or was cancelled nobody will know, nor is it still to come."""
    follower, visible = call.services.follower, call.services.visible(call.caller)
    follower.refresh()
    lines: list[PredictionLine] = []
    for job in reversed(follower.state.jobs.values()):
        if job.phase in (Phase.FAILED, Phase.CANCELLED):
            continue
        if (line := line_of(job)) is None or not visible(job.id):
            continue
        lines.append(line)
        if len(lines) == MOST_ROWS:
            break
    return PredictionPage(predictions=lines)


def line_of(job: JobState) -> PredictionLine | None:
    """Returns the first prediction of the job beside its actual end; None if nothing was predicted."""
    if job.first_forecast is None or job.first_forecast_at is None:
        return None
    return PredictionLine(
        job=job.id,
        said_at=job.first_forecast_at,
        predicted=job.first_forecast.left.shifted(job.first_forecast_at),
        actual=job.finished_at if job.phase is Phase.SUCCEEDED else None,
    )


PREDICTION_ROUTES = (Route("GET", "/v1/predictions", page, PredictionPage),)
