"""Deadlines at submission: accepted if they can be promised, within the budget of the user and team.

The live state is simulated forward with the job, under the live policy, by the lookahead process. Under the policy ``coadapt``
a deadline counts within its user's share only, so one that is accepted does not take from others.
"""

from __future__ import annotations

import math

import msgspec

from coadapt.model import JobSpec
from coadapt.server.http.problems import Refused
from coadapt.server.lookahead_process import AskDeadline
from coadapt.server.services import Services
from coadapt.units import format_duration

CODE = "deadline"
STATUS = 409


class Promise(msgspec.Struct, frozen=True):
    """The answer of the lookahead process."""

    kept: bool
    earliest_s: float | None = None
    note: str = ""


async def check_deadline(services: Services, spec: JobSpec, job: str | None = None) -> None:
    """Raise ``Refused`` unless the deadline can be promised; ``job``: one that was submitted before and is changed."""
    if spec.deadline_s is None:
        return
    _check_budget(services, spec, job)
    promise = await services.forward.ask(
        AskDeadline(spec=spec, job=job), Promise, seq=services.follower.state.seq
    )
    if promise.kept:
        return
    known = None if job is None else services.follower.job(job)
    # a deadline counts from submission, the user from now
    since_s = 0.0 if known is None else services.follower.now - known.submitted_at
    asked = format_duration(max(spec.deadline_s - since_s, 0.0))
    instead = "or submit it without the deadline (--drop-deadline)" if job is None else "or keep what it has"
    if promise.earliest_s is None:
        why = f" ({promise.note.rstrip('.')})" if promise.note else ""
        raise Refused(
            STATUS,
            f"the deadline in {asked} cannot be promised, nor any other: it is not known when the job would end{why}; "
            f"declare its epochs, {instead}",
            code=CODE,
        )
    # rounded up: what is named can be asked for
    minutes = math.ceil((promise.earliest_s - since_s) / 60)
    raise Refused(
        STATUS,
        f"the deadline in {asked} cannot be promised; the earliest that can be is in {format_duration(minutes * 60.0)}; "
        f"ask for that (--deadline {minutes}m), {instead}",
        code=CODE,
        earliest_s=minutes * 60.0 + since_s,
    )


def _check_budget(services: Services, spec: JobSpec, job: str | None) -> None:
    follower = services.follower
    limits = {
        group: most
        for group in (spec.user, spec.team)
        if group and (most := follower.granted(group).deadlines) is not None
    }
    if not limits:
        return
    known = follower.job(job) if job is not None else None
    counted = known is not None and follower.spec(known).deadline_s is not None
    used = follower.deadlines()
    for group, most in limits.items():
        if used[group] - counted >= most:
            raise Refused(
                STATUS,
                f"{group} may have {most} job{'' if most == 1 else 's'} with a deadline at a time and has {used[group]}; "
                "wait for one to end, or submit it without the deadline (--drop-deadline)",
                code=CODE,
            )
