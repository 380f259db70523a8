"""The route that explains a job's allocation, now or at a moment of the past, which the lookahead process folds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec

from coadapt.explain import explanation
from coadapt.explain.explanation import Explanation
from coadapt.explain.explanation import why as explain
from coadapt.server.event_text import discreet
from coadapt.server.http.routing import Call, Route
from coadapt.server.lookahead_process import AskWhy
from coadapt.wire.api import Holder, Why


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
    if said.next == explanation.again(job.id):
        kept = await asyncio.to_thread(services.files.checkpoints, job.id)
        whole = any(line.whole for line in kept)
        where = "It continues from its last checkpoint." if whole else "It starts over: it has no checkpoint."
        said = msgspec.structs.replace(said, next=f"{said.next} {where}")
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


ROUTES = (Route("GET", "/v1/jobs/{job}/why", why, Why, query=WhyQuery),)
