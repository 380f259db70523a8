"""Deadlines at submission: accepted if they can be promised, within the budget of the user and team.

The live state is simulated forward with the job, under the live policy, by the lookahead process. Under the policy ``coadapt``
a deadline counts within its user's share only, so one that is accepted does not take from others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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
    #: The job is stopped at its time limit before its predicted end.
    at_limit: bool = False


async def check_deadline(
    services: Services, spec: JobSpec, request: ExitStack, *, job: str | None = None, key: str | None = None
) -> None:
    """Raise ``Refused`` unless the deadline can be promised.

    Args:
        services: The services of the API.
        spec: The job as it would be.
        request: Ends after the job was written; until then it counts for the budgets.
        job: One that was submitted before and is changed.
        key: Key of the request, which repeats of it share.
    """
    if spec.deadline_s is None:
        return
    request.enter_context(within_budget(services, spec, job=job, key=key))
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
        reason, remedy = f"it is not known when the job would end{why}", "declare its epochs"
        if promise.at_limit:
            reason = promise.note[0].lower() + promise.note[1:].rstrip(".")
            remedy = "raise --time-limit"
        raise Refused(
            STATUS,
            f"the deadline in {asked} cannot be promised, nor any other: {reason}; {remedy}, {instead}",
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


@contextmanager
def within_budget(
    services: Services, spec: JobSpec, *, job: str | None = None, key: str | None = None
) -> Iterator[None]:
    """Raise ``Refused`` if the budget is used up; else the job counts for it until the end of the context.

    While a request is judged and written others arrive: without this, each of them would find the same room.
    """
    mine: object = job or key or object()
    _check_budget(services, spec, job, mine)
    services.claimed_deadlines[mine] = frozenset({spec.user, spec.team} - {""})
    try:
        yield
    finally:
        services.claimed_deadlines.pop(mine, None)


def _check_budget(services: Services, spec: JobSpec, job: str | None, mine: object) -> None:
    follower = services.follower
    limits = {
        group: most
        for group in (spec.user, spec.team)
        if group and (most := follower.granted(group).deadlines) is not None
    }
    if not limits:
        return
    counted = job is not None and follower.has_deadline(job)
    used = follower.deadlines()
    for claim, groups in services.claimed_deadlines.items():
        # a change of a job that has a deadline takes no second place
        if claim != mine and not (isinstance(claim, str) and follower.has_deadline(claim)):
            used.update(groups)
    for group, most in limits.items():
        if used[group] - counted >= most:
            raise Refused(
                STATUS,
                f"{group} may have {most} job{'' if most == 1 else 's'} with a deadline at a time and has {used[group]}; "
                "wait for one to end, or submit it without the deadline (--drop-deadline)",
                code=CODE,
            )
