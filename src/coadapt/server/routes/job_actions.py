"""Routes that change jobs: submit, cancel, pause, resume, retry, update.

Each puts an event into the inbox, which is durable before the request is answered.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from coadapt.model import (
    AnyEvent,
    CancelRequested,
    JobSpec,
    JobSubmitted,
    PauseRequested,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
)
from coadapt.model.snapshot import ENDED, HOLDING, WAITING, Phase
from coadapt.policies.coadapt.reservations import RESERVATIONS
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.deadline_admission import CODE, check_deadline, within_budget
from coadapt.server.http.problems import Refused
from coadapt.server.http.routing import Call, Handle, Route
from coadapt.server.log_follower import Follower, UserRequest
from coadapt.server.routes.agents import stays_on_one_node
from coadapt.spec.job_rules import Surroundings, check_spec
from coadapt.store.inbox import Asked
from coadapt.wire.api import Accepted, Submit, Submitted, Update

_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
#: Jobs of one user that have not ended.
MOST_JOBS = 50_000


async def submit(call: Call) -> Submitted:
    """``POST /v1/jobs``."""
    spec = call.services.checked(call.body.spec, call.caller)
    index = call.services.follower.index
    if sum(index.count(state, spec.user) for state in (*HOLDING, *WAITING)) >= MOST_JOBS:
        raise Refused(429, f"{spec.user} has {MOST_JOBS:,} jobs that have not ended", retry_after_s=60.0)

    key = _key(call)
    digest = hashlib.sha256(msgspec.json.encode(spec)).hexdigest()
    # a request that is repeated because its answer was lost has the same answer: its own first copy is no obstacle
    if key is not None and spec.deadline_s is not None:
        before = await call.services.answered(key)
        if before is not None and before.asked.digest == digest:
            return Submitted(job=f"{spec.name}-{before.number}", note=before.asked.note)

    with ExitStack() as request:
        accepted, note = await _with_deadline(call, spec, request)

        def make(number: int) -> JobSubmitted:
            return JobSubmitted(job=f"{spec.name}-{number}", spec=accepted)

        note = " ".join(filter(None, [note, await stays_on_one_node(call)]))
        (number,) = await call.services.put_made((make, key), asked=Asked(digest, note))
    return Submitted(job=make(number).job, note=note)


async def _with_deadline(call: Call, spec: JobSpec, request: ExitStack) -> tuple[JobSpec, str]:
    """The specification as it is accepted: with its deadline, or without if the caller allows that; and a note."""
    if spec.deadline_s is None:
        return spec, ""
    try:
        await check_deadline(call.services, spec, request, key=_key(call))
    except Refused as refused:
        if refused.problem.code != CODE or not call.body.drop_deadline:
            raise
        reason = str(refused).partition(";")[0]
        without = msgspec.structs.replace(spec, deadline_s=None)
        return without, f"Submitted without its deadline: {reason}."
    return spec, ""


def _key(call: Call) -> str | None:
    """The request's key, of this caller only: two users may choose the same."""
    given = call.request.headers.get("idempotency-key")
    if given is None:
        return None
    if not _KEY.fullmatch(given):
        raise Refused(400, "the Idempotency-Key must be 1 to 128 letters, digits, '_', '.', ':' or '-'")
    return f"submit:{call.caller.name}:{given}"


def _mine(call: Call) -> JobState:
    """The job, for somebody who may change it."""
    job = call.services.seen(call.path["job"], call.caller)
    if not call.caller.may_change(job.spec.user):
        raise Refused(403, f"the role {call.caller.role} does not permit this")
    return job


def _doomed_by(job: JobState, follower: Follower) -> str | None:
    """Why a job that is retried would be cancelled at once; None: it would not."""
    for name in job.spec.after:
        other = follower.job(name)
        if other is None or other.phase not in (Phase.FAILED, Phase.CANCELLED):
            continue
        if not isinstance(follower.pending_request(name), RetryRequested):
            ended = "has failed" if other.phase is Phase.FAILED else "was cancelled"
            return f"{name}, on which it depends, {ended}; retry that first"
    return None


def _note(job: JobState, event: AnyEvent, pending: UserRequest | None) -> str:
    """What the request means for a job that is in another state than the user may think; empty: the usual."""
    paused = isinstance(pending, PauseRequested) or (job.on_hold and not isinstance(pending, ResumeRequested))
    cancelling = job.cancelling or isinstance(pending, CancelRequested)
    if isinstance(event, CancelRequested):
        if cancelling:
            return f"{job.id} is being cancelled already."
        if job.phase in HOLDING:
            return ""
        if job.attempt == 0:
            return f"Removed {job.id} from the queue; it never ran."
        return f"Cancelled {job.id}. It was not running."
    if isinstance(event, PauseRequested):
        if cancelling:
            return f"{job.id} is being cancelled; it cannot be paused."
        if paused:
            return f"{job.id} is already {'being paused' if job.phase in HOLDING else 'paused'}."
        if job.phase not in HOLDING:
            return f"Paused {job.id} in the queue. It does not start until 'coadapt resume {job.id}'."
    if isinstance(event, ResumeRequested) and not paused:
        return f"{job.id} is not paused; it is {job.shown_state}."
    return ""


def _request(make: Callable[[str], AnyEvent], *, of_ended: bool = False) -> Handle:
    """A route that asks for something; of jobs that have ended, or of those that have not."""

    async def handle(call: Call) -> Accepted:
        job = _mine(call)
        ended = job.phase in ENDED
        if ended and not of_ended:
            raise Refused(409, f"job {job.id} has ended ({job.phase.lower()})")
        if of_ended and job.quarantine is None and (not ended or job.phase is Phase.SUCCEEDED):
            raise Refused(
                409,
                f"job {job.id} is {job.shown_state.lower()}; only a failed or cancelled job can be retried",
            )
        follower = call.services.follower
        if of_ended and ended and (why := _doomed_by(job, follower)) is not None:
            raise Refused(409, f"job {job.id} cannot be retried: {why}")
        event = make(job.id)
        note = _note(job, event, follower.pending_request(job.id))
        with ExitStack() as request:
            spec = follower.spec(job)
            if of_ended and spec.deadline_s is not None:
                request.enter_context(within_budget(call.services, spec, job=job.id))
            return Accepted(number=await call.services.put(event), note=note)

    return handle


async def update(call: Call) -> Accepted:
    """``PATCH /v1/jobs/{job}``."""
    job, follower = _mine(call), call.services.follower
    if job.phase in ENDED:
        raise Refused(409, f"job {job.id} has ended ({job.phase.lower()})")
    spec = changed(follower.spec(job), call.body)
    nodes = [each.node for each in follower.state.all_nodes.values()]
    # jobs that it waits for have been checked, and may have gone since
    quotas = follower.state.quotas if call.body.min_gpus is not None else {}
    check_spec(spec, Surroundings(nodes=nodes, jobs=spec.after, quotas=quotas))
    with ExitStack() as request:
        if call.body.deadline_s is not None:
            await check_deadline(call.services, spec, request, job=job.id)
            # another change may have arrived meanwhile: changes add up
            spec = changed(follower.spec(job), call.body)
        _check_limit(job, spec, call)
        return Accepted(number=await call.services.put(SpecChanged(job=job.id, spec=spec)))


def _check_limit(job: JobState, spec: JobSpec, call: Call) -> None:
    """Refuse to extend a job that cannot be preempted while others were promised a start that rests on its limit."""
    before, after = job.spec.time_limit_s, spec.time_limit_s
    longer = before is not None and (after is None or after > before)
    firm = not job.spec.preemptible and job.phase in HOLDING
    if not (longer and firm and call.caller.role != "admin"):
        return
    promised = [
        name
        for name, made in (call.services.follower.state.memory.get(RESERVATIONS) or {}).items()
        if made["by"] is not None and name != job.id
    ]
    if promised:
        raise Refused(
            409,
            f"job {job.id} cannot be preempted, and other jobs were promised a start that rests on its time limit; "
            "it can be lowered now, and raised by an administrator",
        )


def changed(spec: JobSpec, by: Update) -> JobSpec:
    """Returns the specification with the changes that the user asked for."""
    fields: dict[str, object] = {}
    if by.priority is not None:
        fields["priority"] = by.priority
    for name in ("deadline_s", "time_limit_s"):
        if (value := getattr(by, name)) is not None:
            fields[name] = None if value < 0 else value
    if by.min_gpus is not None or by.max_gpus is not None:
        fields.update(_resized(spec, by))
    if not fields:
        raise Refused(422, "nothing to change; give priority, deadline_s, min_gpus, max_gpus or time_limit_s")
    return msgspec.structs.replace(spec, **fields)


def _resized(spec: JobSpec, by: Update) -> dict[str, object]:
    """Bounds in GPUs become bounds in replicas; the size that was asked for follows."""
    worker, each = spec.worker, spec.gpus_per_replica
    bounds = {}
    for name, gpus in (("min", by.min_gpus), ("max", by.max_gpus)):
        if gpus is not None and (gpus < each or gpus % each):
            raise Refused(
                422, f"{name}_gpus must be a multiple of the {each} GPUs that a replica takes, not {gpus}"
            )
        bounds[name] = getattr(worker, name) if gpus is None else gpus // each
    if bounds["min"] > bounds["max"]:
        raise Refused(422, f"the minimum of {bounds['min']} replicas exceeds the maximum of {bounds['max']}")
    role = msgspec.structs.replace(worker, **bounds)
    return {
        "roles": (role, *spec.roles[1:]),
        "requested": min(max(spec.requested, role.min), role.max),
    }


ROUTES = (
    Route("POST", "/v1/jobs", submit, Submitted, "writer", Submit, status=201),
    Route("PATCH", "/v1/jobs/{job}", update, Accepted, "writer", Update, status=202),
    *(
        Route("POST", f"/v1/jobs/{{job}}/{name}", handle, Accepted, "writer", status=202)
        for name, handle in {
            "cancel": _request(lambda job: CancelRequested(job=job)),
            "pause": _request(lambda job: PauseRequested(job=job)),
            "resume": _request(lambda job: ResumeRequested(job=job)),
            "retry": _request(lambda job: RetryRequested(job=job), of_ended=True),
        }.items()
    ),
)
