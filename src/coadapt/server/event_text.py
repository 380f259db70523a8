"""Events as sentences and as data that a reader may see.

Values of environment variables are removed, because they may be secrets, and so are names of jobs that the reader may
not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from coadapt.explain.explanation import JOB_NAME, STOPPED_FOR, failed
from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    CancelRequested,
    ClusterRestored,
    CodeFound,
    CodeMissing,
    ControllerStarted,
    DecisionMade,
    JobFinished,
    JobHung,
    JobQuarantined,
    JobResized,
    JobSpec,
    JobStarted,
    JobStopped,
    JobSubmitted,
    Measured,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeOpened,
    PauseRequested,
    PoolLoaded,
    QuotaSet,
    Record,
    ReplicasReleased,
    ReportsMerged,
    ResizeJob,
    ResumeRequested,
    RetryRequested,
    SpecChanged,
    StartJob,
    Woke,
)
from coadapt.model.retry import failure_of
from coadapt.units import format_duration
from coadapt.wire.api import EventLine

Visible = Callable[[str], bool]


def shown_spec(spec: JobSpec) -> JobSpec:
    """Returns the specification without values of ``envs``."""
    return msgspec.structs.replace(spec, envs=dict.fromkeys(spec.envs, "")) if spec.envs else spec


def event_line(record: Record, visible: Visible) -> EventLine | None:
    """Returns the record for a reader who may see the jobs for which ``visible`` is true; None if nothing remains."""
    event = _visible_part(record.event, visible)
    if event is None:
        return None
    data = msgspec.to_builtins(event)
    data.pop("type", None)
    return EventLine(
        seq=record.seq,
        at=record.at,
        kind=type(event).__name__,
        job=getattr(event, "job", ""),
        text=text_of(event),
        data=data,
    )


def _visible_part(event: AnyEvent, visible: Visible) -> AnyEvent | None:
    if isinstance(event, DecisionMade):
        # the policy's memory is about all jobs, and only for the policy
        parts = {
            name: {job: value for job, value in getattr(event, name).items() if visible(job)}
            for name in ("targets", "reasons", "forecasts")
        }
        return msgspec.structs.replace(event, memory={}, **parts)
    if isinstance(event, ActionsIssued):
        actions = tuple(action for action in event.actions if visible(action.job))
        return msgspec.structs.replace(event, actions=actions) if actions else None
    job = getattr(event, "job", None)
    if job is not None and not visible(job):
        return None
    if isinstance(event, PoolLoaded):
        return msgspec.structs.replace(event, pool={})
    spec = getattr(event, "spec", None)
    return event if spec is None else msgspec.structs.replace(event, spec=shown_spec(spec))


def text_of(event: AnyEvent) -> str:
    """Describes an event in one or two sentences."""
    return _TEXTS[type(event)](event)


def _decided(event: DecisionMade) -> str:
    out = f" Quarantined: {', '.join(sorted(event.quarantined))}." if event.quarantined else ""
    if not event.targets:
        return f"Decision {event.decision}: no change.{out}"
    given = sum(1 for target in event.targets.values() if target)
    taken = len(event.targets) - given
    parts = ([f"{_count(given, 'job')} given GPUs"] if given else []) + (
        [f"{taken} preempted"] if taken else []
    )
    return f"Decision {event.decision}: {', '.join(parts)}.{out}"


def _issued(event: ActionsIssued) -> str:
    return " ".join(_action(action) for action in event.actions[:8])


def _action(action: Any) -> str:
    if isinstance(action, StartJob):
        where = _count(action.placement.replicas, "replica")
        return f"Starting attempt {action.attempt} of {action.job} with {where}."
    if isinstance(action, ResizeJob):
        where = _count(action.placement.replicas, "replica")
        return f"Resizing {action.job} from {action.before.replicas} to {where}."
    return f"Stopping {action.job}: {_STOPPED_FOR[action.why]}."


def _finished(event: JobFinished) -> str:
    if event.outcome != "failed":
        return f"Attempt {event.attempt} {event.outcome}."
    failure = failure_of(event, None, 0.0)
    return f"Attempt {event.attempt} {'failed' if failure is None else failed(failure)}."


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _measured(event: Measured | ReportsMerged) -> str:
    m = event.measurement
    done = f", {m.work:,.0f} examples done" if m.work is not None else ""
    step = f"{m.step_s:.3g} s per step" if m.count else "no step yet"
    return f"Batch size {m.config.batch} on {_count(m.config.replicas, 'replica')}: {step}{done}."


def _changed(event: SpecChanged) -> str:
    """The event holds the new specification: the values that a user may change are shown."""
    spec = event.spec
    low, high = (count * spec.gpus_per_replica for count in (spec.worker.min, spec.worker.max))
    size = _count(low, "GPU") if low == high else f"{low} to {high} GPUs"
    deadline = "no deadline" if spec.deadline_s is None else f"deadline {format_duration(spec.deadline_s)}"
    limit = (
        "no time limit" if spec.time_limit_s is None else f"time limit {format_duration(spec.time_limit_s)}"
    )
    return f"Specification changed{_by(event)}; now priority {spec.priority}, {size}, {deadline}, {limit}."


def _hung(event: JobHung) -> str:
    return f"No step for {event.silent_s:.0f} s; a step usually takes {event.expected_s:.3g} s."


def _quota(event: QuotaSet) -> str:
    parts = ["no limit" if event.gpus is None else _count(event.gpus, "GPU")]
    if event.priority:
        parts.append(f"priority up to {event.priority} against other users")
    if event.deadlines is not None:
        parts.append(f"at most {_count(event.deadlines, 'job')} with a deadline")
    if event.members is not None:
        parts.append(f"members {', '.join(event.members) or 'none'}")
    return ", ".join(parts)


def _by(event: Any, before: str = " by ", after: str = "") -> str:
    """The user who asked for something; empty: not known."""
    return f"{before}{event.by}{after}" if event.by else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


#: The action does not say whether a decision or a user takes the GPUs.
_STOPPED_FOR = {**STOPPED_FOR, "pause": "it releases its GPUs"}
_STOPPED: dict[str, str] = {
    "paused": "stopped and released its GPUs",
    "cancelled": "stopped: cancelled",
    "node-lost": "stopped: its node was lost",
    "drained": "stopped: its node is being drained",
    "preempted": "was killed from outside",
    "lost": "lost its processes",
    "shutdown": "stopped with the cluster",
    "restored": "ended with the cluster that the backup was made of",
}
_TEXTS: dict[type, Callable[[Any], str]] = {
    ControllerStarted: lambda e: f"Controller {e.version} started with policy {e.policy or 'unknown'}.",
    PoolLoaded: lambda e: "Measurements of past jobs loaded.",
    NodeJoined: lambda e: f"Node {e.node.name} joined with {e.node.gpus} {e.node.gpu_type}.",
    NodeLost: lambda e: f"Node {e.node} was lost.",
    NodeDrained: lambda e: f"Node {e.node} is being drained{_by(e, ', as ', ' asked')}.",
    NodeOpened: lambda e: f"Node {e.node} accepts jobs again{_by(e, ', as ', ' asked')}.",
    QuotaSet: lambda e: f"Quota of {e.group}: {_quota(e)}{_by(e, ', set by ')}.",
    JobSubmitted: lambda e: f"Submitted by {e.spec.user}." if e.spec.user else "Submitted.",
    CancelRequested: lambda e: f"Cancellation requested{_by(e)}.",
    PauseRequested: lambda e: f"Pause requested{_by(e)}.",
    ResumeRequested: lambda e: f"Resume requested{_by(e)}.",
    RetryRequested: lambda e: f"Retry requested{_by(e)}.",
    SpecChanged: _changed,
    JobStarted: lambda e: f"Attempt {e.attempt} is running.",
    ReplicasReleased: lambda e: f"Resize under way; {_count(e.placement.replicas, 'replica')} left.",
    JobResized: lambda e: f"Resized to {_count(e.placement.replicas, 'replica')}.",
    JobStopped: lambda e: f"Attempt {e.attempt} {_STOPPED[e.cause]}.",
    JobFinished: _finished,
    JobHung: _hung,
    JobQuarantined: lambda e: f"Quarantined: {e.reason}.",
    CodeMissing: lambda e: "Waiting for its code, which is not here.",
    CodeFound: lambda e: "Its code is here.",
    ClusterRestored: lambda e: f"Cluster restored from the backup of {_moment(e.made_at)}.",
    Measured: _measured,
    ReportsMerged: lambda e: f"{_count(e.count, 'report')}, the last: {_measured(e)}",
    Woke: lambda e: "Scheduler woken.",
    DecisionMade: _decided,
    ActionsIssued: _issued,
}


def discreet(text: str, exists: Callable[[str], bool], visible: Callable[[str], bool]) -> str:
    """Returns the text with the names of other users' jobs removed."""

    def shown(match: re.Match[str]) -> str:
        name = match[0]
        return "another user's job" if exists(name) and not visible(name) else name

    return JOB_NAME.sub(shown, text)
