"""Why a job that holds GPUs has these, and why it is being started, resized or stopped."""

from __future__ import annotations

from coadapt.model.snapshot import Phase
from coadapt.scheduler.holders import holders
from coadapt.scheduler.job_state import JobState
from coadapt.scheduler.phrases import STOPPED_FOR, failed, gpus, places
from coadapt.scheduler.standing import Standings
from coadapt.scheduler.state import SchedulerState
from coadapt.scheduler.why_said import Said
from coadapt.scheduler.why_waiting import in_favour_of, reason_holds
from coadapt.units import format_duration


def said(state: SchedulerState, job: JobState, standings: Standings, now: float) -> Said:
    """STARTING, RUNNING or RESIZING."""
    because = f": {job.reason.text}" if job.reason is not None and reason_holds(job) else ""
    numbers = dict(job.reason.numbers) if because and job.reason is not None else {}
    numbers["gpus"] = float(job.held_gpus)
    decided = bool(because)
    if job.phase is Phase.RUNNING and job.held == job.target:
        next_ = _next(state, job, standings, now)
        if because and job.reason is not None:
            sentence = job.reason.text
            if job.resized_from:
                sentence += f" (resized from {gpus(job.resized_from)} {_ago(job.changed_at, now)})"
            return Said(job.reason.code, sentence, numbers, next_, decided=True)
        return Said("running", plain(job, now), numbers, next_)
    if job.phase is Phase.RUNNING:
        waits = holders(state, job, standings, now, nodes=frozenset(s.node for s in job.target.slots))
        sentence = f"runs on {gpus(job.held_gpus)} and is to have {gpus(job.target_gpus)}{because}"
        numbers["target_gpus"] = float(job.target_gpus)
        next_ = f"it changes once nobody holds its new place on {places(job.target)}"
        return Said("moving", sentence, numbers, next_, waits, decided)
    since_s = now - job.in_flight_since
    usual = (
        ""
        if job.change_cost_s is None
        else f"; its earlier changes took {format_duration(job.change_cost_s)}"
    )
    so_far = f"training goes on; this has taken {format_duration(since_s)} so far{usual}"
    numbers["since_s"] = round(since_s, 1)
    if job.phase is Phase.RESIZING:
        sentence = (
            f"is being resized from {job.resized_from} to {gpus(job.target_gpus or job.held_gpus)}{because}"
        )
        numbers["from_gpus"] = float(job.resized_from)
        return Said("resizing", sentence, numbers, so_far, decided=decided)
    sentence = f"attempt {job.attempt} is starting on {gpus(job.held_gpus)} ({places(job.held)}){because}"
    return Said("starting", sentence, numbers, so_far, decided=decided)


def plain(job: JobState, now: float) -> str:
    """Where no decision has given a reason."""
    if job.phase is Phase.STARTING:
        return f"attempt {job.attempt} is starting on {gpus(job.held_gpus)}"
    if job.phase is Phase.RESIZING:
        return f"is being resized from {job.resized_from} to {gpus(job.target_gpus or job.held_gpus)}"
    asked = "as asked for" if job.held_gpus == job.spec.requested_gpus else "as decided"
    return f"runs on {gpus(job.held_gpus)}, {asked}, for {format_duration(job.ran_s(now))} so far"


def stopping(job: JobState, now: float) -> Said:
    """It is to hold nothing any more."""
    since_s = now - job.in_flight_since if job.phase is Phase.STOPPING else 0.0
    numbers = {"gpus": float(job.held_gpus), "since_s": round(since_s, 1)}
    next_ = f"its {gpus(job.held_gpus)} are free once its last process is gone"
    if job.cancelling:
        return Said("cancelling", "is being stopped: its user cancelled it", numbers, next_)
    if job.stopped_for is not None:
        left = job.spec.retries - job.tries.failures
        again = f"; then it is tried again ({left} left)" if left > 0 else "; then it has failed"
        if job.stopped_for.kind == "time-limit":
            again = "; then it has failed"
        sentence = f"is being stopped: it {failed(job.stopped_for)}"
        return Said(job.stopped_for.kind, sentence, numbers, next_ + again)
    if job.on_hold:
        return Said("on-hold", "is being stopped: its user paused it", numbers, next_)
    why = job.stop_why or "pause"
    if why == "pause" and job.target:
        sentence = f"is being stopped to start again on {gpus(job.target_gpus)} ({places(job.target)})"
        return Said("moving", sentence, numbers, next_)
    others = in_favour_of(job) if why == "pause" else ""
    sentence = (
        f"is being stopped in favour of {others}" if others else f"is being stopped: {STOPPED_FOR[why]}"
    )
    if why == "pause" and reason_holds(job) and job.reason is not None:
        return Said(
            why, f"{sentence}; {job.reason.text}", {**job.reason.numbers, **numbers}, next_, decided=True
        )
    return Said(why, sentence, numbers, next_)


def _next(state: SchedulerState, job: JobState, standings: Standings, now: float) -> str:
    left = standings.left(state, job, now)
    if left is None:
        return ""
    seconds = left.interval
    most = "" if seconds.high is None else f" to {format_duration(seconds.high)}"
    return (
        f"ends in about {format_duration(seconds.value)} ({format_duration(seconds.low)}{most or ' or more'})"
    )


def _ago(at: float | None, now: float) -> str:
    return "" if at is None else f"{format_duration(now - at)} ago"
