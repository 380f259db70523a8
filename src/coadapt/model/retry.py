"""Failures of attempts and the rules for retries, shared by the scheduler and by readers of its log.

- A failure is tried again as often as the job's ``retries`` say, after 10 s, 20 s, 40 s ... and at most 300 s.
- Three failures in a row within 30 s of the start, without any progress, are a crash loop: the job ends.
- An attempt that was killed from outside (``JobStopped("preempted")`` without a request of ours) is not counted as a
  failure three
  times in ten minutes; the next one is.
- A job beyond its time limit is not tried again.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from coadapt.model._base import Fact
from coadapt.model.events import FailureKind, JobFinished, JobHung, JobStopped
from coadapt.model.measurement import Measurement
from coadapt.units import format_duration

FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 10.0, 300.0
#: An attempt that fails this soon after its start, without progress; so often in a row.
QUICK_S, CRASH_LOOP = 30.0, 3
#: Kills from outside that are forgiven, and within which time.
FORGIVEN, WITHIN_S = 3, 600.0
#: Characters of a replica's last lines that are kept.
MOST_TAIL = 4000

#: Why a failure was the last one; "": it is tried again.
Final = Literal["", "retries", "crash-loop", "time-limit"]


class Failure(Fact, frozen=True):
    """How an attempt failed; ``final``: why the job was not tried again."""

    at: float
    attempt: int
    kind: FailureKind = ""
    reason: str = ""
    exit_code: int | None = None
    #: Of the replica that failed first, and its last lines.
    rank: int | None = None
    tail: str = ""
    final: Final = ""


class Tries(Fact, frozen=True):
    """The counters of a job's attempts so far."""

    failures: int = 0
    #: Quick failures in a row.
    quick: int = 0
    #: Times at which attempts were killed from outside and forgiven, within the last ten minutes before the latest.
    preempted: tuple[float, ...] = ()


def back_off_s(failures: int) -> float:
    """Seconds until the next try after so many failures."""
    return float(min(FIRST_BACK_OFF_S * 2.0 ** min(failures - 1, 10), LONGEST_BACK_OFF_S))


def hung(event: JobHung, at: float) -> Failure:
    """Returns the failure of an attempt that is stopped because it hangs."""
    usual = f", {format_duration(event.expected_s)} would be usual" if event.expected_s > 0 else ""
    reason = f"no step for {format_duration(event.silent_s)}{usual}"
    return Failure(at=at, attempt=event.attempt, kind="hang", reason=reason)


def over_time(attempt: int, limit_s: float, at: float) -> Failure:
    """Returns the failure of a job that reached its time limit."""
    reason = f"it trained for its time limit of {format_duration(limit_s)}"
    return Failure(at=at, attempt=attempt, kind="time-limit", reason=reason)


def failure_of(event: JobFinished | JobStopped, stopped_for: Failure | None, at: float) -> Failure | None:
    """Returns the failure that the end of an attempt is, or None; ``stopped_for``: the failure for which it was being
    stopped.
    """
    if isinstance(event, JobStopped):
        return None if stopped_for is None else replace(stopped_for, at=at)
    if event.outcome == "succeeded" or (event.outcome == "cancelled" and stopped_for is None):
        return None
    said = Failure(
        at=at,
        attempt=event.attempt,
        kind=event.kind,
        reason=event.reason,
        exit_code=event.exit_code,
        rank=event.rank,
        tail=event.tail[-MOST_TAIL:],
    )
    if stopped_for is None:
        return said
    return replace(said, kind=stopped_for.kind, reason=stopped_for.reason)


def killed(tries: Tries, attempt: int, at: float) -> tuple[Tries, Failure | None]:
    """Counts an attempt that was killed from outside: forgiven (None), or a failure."""
    recent = tuple(then for then in tries.preempted if then > at - WITHIN_S)
    if len(recent) < FORGIVEN:
        return replace(tries, preempted=(*recent, at)), None
    reason = f"killed from outside {len(recent) + 1} times in {format_duration(WITHIN_S)}"
    return replace(tries, preempted=recent), Failure(at=at, attempt=attempt, kind="killed", reason=reason)


def is_progress(measurement: Measurement, work: float | None) -> bool:
    """Whether a report says that the attempt got anywhere; ``work``: as reported before."""
    return measurement.step_s > 0 or (measurement.work is not None and measurement.work > (work or 0.0))


def is_quick(started_at: float | None, progressed: bool, at: float) -> bool:
    """Whether an attempt that fails now failed at once; ``started_at``: None if it never came to train."""
    return not progressed and (started_at is None or at - started_at <= QUICK_S)


def judged(
    tries: Tries, failure: Failure, *, retries: int, quick: bool
) -> tuple[Tries, Failure, float | None]:
    """Decides whether a job is tried again.

    Returns the updated tries, the failure with its verdict, and the time of the next attempt (None: there is none).

    Args:
        tries: the job's failures so far.
        failure: the new failure.
        retries: how often the job may be tried again.
        quick: whether the attempt failed at once, without progress (``is_quick``).
    """
    in_a_row = tries.quick + 1 if quick else 0
    tries = replace(tries, quick=in_a_row)
    final: Final = ""
    if failure.kind == "time-limit":
        final = "time-limit"
    elif tries.failures >= retries:
        final = "retries"
    elif in_a_row >= CRASH_LOOP:
        final = "crash-loop"
    if final:
        return tries, replace(failure, final=final), None
    tries = replace(tries, failures=tries.failures + 1)
    return tries, failure, failure.at + back_off_s(tries.failures)
