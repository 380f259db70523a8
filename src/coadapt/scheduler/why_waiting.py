"""Why a job holds nothing: what holds it back, or what it waits for and who has it."""

from __future__ import annotations

from coadapt.model.snapshot import Phase
from coadapt.scheduler.holders import holders, room_for
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.phrases import STOPPED_FOR, failed, gpus, places, some
from coadapt.scheduler.quotas import least_gpus
from coadapt.scheduler.standing import Standings
from coadapt.scheduler.state import SchedulerState
from coadapt.scheduler.why_said import Said
from coadapt.units import format_duration


def held_back(state: SchedulerState, job: JobState, now: float) -> Said:
    """On hold, backing off, or waiting for other jobs."""
    if job.on_hold:
        sentence = "on hold: its user paused it"
        if job.retry_at is not None and job.failure is not None:
            sentence += f", after it {failed(job.failure)}"
        return Said("on-hold", sentence, next=f"coadapt resume {job.id} lets it run again")
    if job.retry_at is not None:
        how = "failed" if job.failure is None else failed(job.failure)
        tries = job.tries.failures
        sentence = (
            f"waits for {until(job.retry_at, now)} after try {tries} of {job.spec.retries + 1}: it {how}"
        )
        numbers = {"retry_at": job.retry_at, "failures": float(tries), "retries": float(job.spec.retries)}
        left = job.spec.retries - tries
        next_ = f"then it is tried again; {left or 'no'} more retr{'y' if left == 1 else 'ies'} after that"
        return Said("back-off", sentence, numbers, next_)
    return blocked(state, job)


def blocked(state: SchedulerState, job: JobState) -> Said:
    """It runs after others."""
    unmet = sorted(state.blocked[job.id])
    each = [
        f"{n} ({state.jobs[n].phase.lower()})" if n in state.jobs else f"{n} (not submitted)" for n in unmet
    ]
    sentence = f"waits until {some(each)} {'has' if len(unmet) == 1 else 'have'} succeeded"
    return Said("after", sentence, {"jobs": float(len(unmet))}, next="then it takes its place in the queue")


def waiting(state: SchedulerState, job: JobState, standings: Standings, now: float) -> Said:
    """It may run and holds nothing."""
    if job.target:
        where = frozenset(slot.node for slot in job.target.slots)
        sentence = (
            f"has been promised {gpus(job.target_gpus)} on {places(job.target)}, which others still hold"
        )
        found = holders(state, job, standings, now, nodes=where)
        numbers = {"gpus": float(job.target_gpus)}
        return Said("promised", sentence, numbers, "it starts once their processes are gone", found)
    room = room_for(state, job.spec)
    found = holders(state, job, standings, now)
    numbers = {"needs_gpus": float(room.needs), "free_gpus": float(room.free), "gpus": float(room.gpus)}
    first = min((holder.eta for holder in found if holder.eta is not None), default=None)
    next_ = "" if first is None else f"the first of them is expected to end in {until(first, now)}"
    if state.policy_wake_at is not None and state.policy_wake_at > now and not next_:
        next_ = f"the next decision is in {until(state.policy_wake_at, now)}, or when something happens"
    paused = f"{_paused(job, now)}; " if job.phase is Phase.PAUSED else ""
    if reason_holds(job) and job.reason is not None:
        numbers = {**numbers, **job.reason.numbers}
        return Said(job.reason.code, paused + job.reason.text, numbers, next_, found, decided=True)
    if room.gpus < room.needs:
        what = gpus(room.needs, room.types)
        sentence = f"cannot run here: it needs {what}, and nodes that take jobs have {room.gpus}"
        return Said("no-place", paused + sentence, numbers, "it waits for nodes that have them")
    if state.undecided and (
        state.decided_at is None or state.decided_at <= max(job.submitted_at, job.held_since)
    ):
        return Said("undecided", paused + f"{queued(job)}: the next decision is about it", numbers, next_)
    if room.free >= room.needs:
        sentence = f"{queued(job)}: {room.free} are free, but others come first, or they lie in pieces"
        return Said("queued", paused + sentence, numbers, next_, found)
    by = f"; {some([f'{h.job} has {h.gpus}' for h in found])}" if found else ""
    sentence = f"no room: it needs {gpus(room.needs, room.types)}, {room.free} free{by}"
    return Said("no-room", paused + sentence, numbers, next_, found)


def queued(job: JobState) -> str:
    """Where nothing else is known."""
    return f"waits for {gpus(least_gpus(job.spec), ' or '.join(job.spec.gpu_types))}"


def reason_holds(job: JobState) -> bool:
    """Whether the recorded reason is about what the job has now: not older than its last change, and no loss after it."""
    if job.reason is None or job.reason_at is None:
        return False
    return job.changed_at is None or job.reason_at >= job.changed_at


def in_favour_of(job: JobState) -> str:
    """Who was given something by the decision that took the job's GPUs, the largest first."""
    return some([f"{other} ({gpus(count)})" for other, count in job.lost_to])


def _paused(job: JobState, now: float) -> str:
    since = until(now, job.held_since)
    if job.stop_why is None:
        return f"lost its processes {since} ago"
    others = in_favour_of(job) if job.stop_why == "pause" else ""
    how = f"in favour of {others}" if others else f"because {STOPPED_FOR[job.stop_why]}"
    return f"stopped {since} ago {how}"


def until(at: float, now: float) -> str:
    """A moment as a duration from now."""
    return format_duration(max(at - now, 0.0))
