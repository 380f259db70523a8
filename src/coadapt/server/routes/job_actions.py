"""Routes that change jobs: submit, cancel, pause, resume, retry, update.

Each puts an event into the inbox, which is durable before the request is answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

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
from coadapt.model.snapshot import ENDED, Phase
from coadapt.scheduler.state.job_state import JobState
from coadapt.server.http.problems import Refused
from coadapt.server.http.routing import Call, Handle, Route
from coadapt.spec.job_rules import Surroundings, check_spec
from coadapt.wire.api import Accepted, Submit, Submitted, Update

_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
#: Jobs of one user that have not ended.
MOST_JOBS = 50_000


class _Jobs(Collection[str]):
    """Names of the jobs that a caller may see, without copying them."""

    def __init__(self, call: Call) -> None:
        self._follower, self._visible = call.services.follower, call.services.visible(call.caller)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._follower.job(name) is not None and self._visible(name)

    def __iter__(self) -> Iterator[str]:
        return (job.id for job in self._follower.jobs() if self._visible(job.id))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def checked(call: Call, spec: JobSpec) -> JobSpec:
    """The specification as it would be submitted: its user is the caller, whatever it says."""
    call.services.follower.refresh()
    spec = msgspec.structs.replace(spec, user=call.caller.name)
    state = call.services.follower.state
    nodes = [each.node for each in state.all_nodes.values()]
    check_spec(
        spec, Surroundings(nodes=nodes, jobs=_Jobs(call), code=call.services.code, quotas=state.quotas)
    )
    return spec


async def submit(call: Call) -> Submitted:
    """``POST /v1/jobs``."""
    spec = checked(call, call.body.spec)
    index = call.services.follower.index
    if sum(index.count(phase, spec.user) for phase in Phase if phase not in ENDED) >= MOST_JOBS:
        raise Refused(429, f"{spec.user} has {MOST_JOBS:,} jobs that have not ended", retry_after_s=60.0)

    def make(number: int) -> JobSubmitted:
        return JobSubmitted(job=f"{spec.name}-{number}", spec=spec)

    (number,) = await call.services.put_made((make, _key(call)))
    return Submitted(job=make(number).job)


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
        raise Refused(403, f"a {call.caller.role} may not do this")
    return job


def _request(make: Callable[[str], AnyEvent], *, of_ended: bool = False) -> Handle:
    """A route that asks for something; of jobs that have ended, or of those that have not."""

    async def handle(call: Call) -> Accepted:
        job = _mine(call)
        ended = job.phase in ENDED
        if ended and not of_ended:
            raise Refused(409, f"job {job.id} has ended ({job.phase.lower()})")
        if of_ended and (not ended or job.phase is Phase.SUCCEEDED):
            raise Refused(
                409, f"job {job.id} is {job.phase.lower()}; only one that failed or was cancelled runs again"
            )
        return Accepted(number=await call.services.put(make(job.id)))

    return handle


async def update(call: Call) -> Accepted:
    """``PATCH /v1/jobs/{job}``."""
    job, follower = _mine(call), call.services.follower
    if job.phase in ENDED:
        raise Refused(409, f"job {job.id} has ended ({job.phase.lower()})")
    spec = changed(follower.spec(job), call.body)
    nodes = [each.node for each in follower.state.all_nodes.values()]
    # jobs that it waits for have been checked, and may have gone since
    check_spec(spec, Surroundings(nodes=nodes, jobs=spec.after))
    return Accepted(number=await call.services.put(SpecChanged(job=job.id, spec=spec)))


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
        raise Refused(
            422, "nothing is to be changed; name priority, deadline_s, min_gpus, max_gpus or time_limit_s"
        )
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
        raise Refused(
            422, f"the job would need at least {bounds['min']} and at most {bounds['max']} replicas"
        )
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
