"""The one transition table: what may happen to a job in which phase, and where it leads.

Keys are (phase, name of action or event). A stale report (older attempt, or a job that holds nothing) never
reaches the table. ``IGNORED`` are reports of the newest attempt that come twice, or were under way when
a newer action was issued: they are recorded and change nothing. What is in neither cannot happen.
"""

from __future__ import annotations

from coadapt.errors import InvariantError
from coadapt.model.snapshot import Phase

P = Phase
#: Depends on the event's outcome, on retries and on a pending cancellation: see ``JobState``.
_STOPPED = P.PAUSED
_FINISHED = P.SUCCEEDED

TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (P.PENDING, "StartJob"): P.STARTING,
    (P.PAUSED, "StartJob"): P.STARTING,
    (P.STARTING, "JobStarted"): P.RUNNING,
    (P.RUNNING, "ResizeJob"): P.RESIZING,
    (P.RESIZING, "ReplicasReleased"): P.RESIZING,
    (P.RESIZING, "JobResized"): P.RUNNING,
    (P.STARTING, "StopJob"): P.STOPPING,
    (P.RUNNING, "StopJob"): P.STOPPING,
    (P.RESIZING, "StopJob"): P.STOPPING,
    # an attempt may end in any phase that holds GPUs
    (P.STARTING, "JobStopped"): _STOPPED,
    (P.RUNNING, "JobStopped"): _STOPPED,
    (P.RESIZING, "JobStopped"): _STOPPED,
    (P.STOPPING, "JobStopped"): _STOPPED,
    (P.STARTING, "JobFinished"): _FINISHED,
    (P.RUNNING, "JobFinished"): _FINISHED,
    (P.RESIZING, "JobFinished"): _FINISHED,
    (P.STOPPING, "JobFinished"): _FINISHED,
    # nothing to stop: ends at once
    (P.PENDING, "CancelRequested"): P.CANCELLED,
    (P.PAUSED, "CancelRequested"): P.CANCELLED,
    # the user's wish; PENDING where it never ran
    (P.FAILED, "RetryRequested"): P.PAUSED,
    (P.CANCELLED, "RetryRequested"): P.PAUSED,
}

IGNORED: frozenset[tuple[Phase, str]] = frozenset(
    {
        (P.STARTING, "ReplicasReleased"),
        (P.STARTING, "JobResized"),
        (P.RUNNING, "JobStarted"),
        (P.RUNNING, "ReplicasReleased"),
        (P.RUNNING, "JobResized"),
        (P.RESIZING, "JobStarted"),
        (P.STOPPING, "JobStarted"),
        (P.STOPPING, "ReplicasReleased"),
        (P.STOPPING, "JobResized"),
    }
)


def next_phase(phase: Phase, what: str, job: str) -> Phase:
    """Returns the phase that follows ``phase`` after ``what``."""
    found = TRANSITIONS.get((phase, what))
    if found is None:
        raise InvariantError(f"job {job!r} is {phase} and cannot take {what}")
    return found
