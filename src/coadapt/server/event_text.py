"""Events as sentences and as data that a reader may see.

Values of environment variables are removed, because they may be secrets, and so are names of jobs that the reader may
not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from coadapt.model import (
    ActionsIssued,
    AnyEvent,
    DecisionMade,
    JobFinished,
    JobHung,
    JobQuarantined,
    JobSpec,
    JobStopped,
    JobSubmitted,
    Measured,
    NodeJoined,
    PoolLoaded,
    QuotaSet,
    Record,
    ResizeJob,
    StartJob,
)
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
    """Describes an event in a few words."""
    say = _WORDS.get(type(event))
    return say(event) if say is not None else _spaced(type(event).__name__)


def _spaced(name: str) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    return words.strip()


def _decided(event: DecisionMade) -> str:
    given = [job for job, target in event.targets.items() if target]
    taken = len(event.targets) - len(given)
    return (
        f"decision {event.decision}: {len(given)} given GPUs, {taken} taken away"
        if event.targets
        else f"decision {event.decision}: nothing changes"
    )


def _issued(event: ActionsIssued) -> str:
    return "; ".join(_action(action) for action in event.actions[:8])


def _action(action: Any) -> str:
    if isinstance(action, StartJob):
        return f"start {action.job} on {_replicas(action.placement.replicas)} (attempt {action.attempt})"
    if isinstance(action, ResizeJob):
        return f"resize {action.job} from {action.before.replicas} to {_replicas(action.placement.replicas)}"
    return f"stop {action.job} ({action.why})"


def _finished(event: JobFinished) -> str:
    how = f"{event.kind} on rank {event.rank}" if event.kind and event.rank is not None else event.kind
    return " ".join(part for part in (event.outcome, f"({how})" if how else "", event.reason) if part)


def _measured(event: Measured) -> str:
    m = event.measurement
    done = f", {m.work:,.0f} examples done" if m.work is not None else ""
    step = f"{m.step_s:.3g} s a step" if m.count else "no step yet"
    return f"batch {m.config.batch} on {_replicas(m.config.replicas)}, {step}{done}"


def _replicas(count: int) -> str:
    return f"{count} replica{'' if count == 1 else 's'}"


_WORDS: dict[type, Callable[[Any], str]] = {
    JobSubmitted: lambda e: f"submitted by {e.spec.user or 'nobody'}",
    JobFinished: _finished,
    JobStopped: lambda e: f"attempt {e.attempt} stopped: {e.cause}",
    JobHung: lambda e: f"no step for {e.silent_s:.0f} s, {e.expected_s:.3g} s would be usual",
    JobQuarantined: lambda e: f"quarantined: {e.reason}",
    Measured: _measured,
    NodeJoined: lambda e: f"node {e.node.name} offers {e.node.gpus} {e.node.gpu_type}",
    QuotaSet: lambda e: f"{e.group} may have {'any number of' if e.gpus is None else e.gpus} GPUs",
    DecisionMade: _decided,
    ActionsIssued: _issued,
}

#: What a job is called: a name and a number.
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*-\d+")


def discreet(text: str, exists: Callable[[str], bool], visible: Callable[[str], bool]) -> str:
    """Returns the text with the names of other users' jobs removed."""

    def shown(match: re.Match[str]) -> str:
        name = match[0]
        return "another's job" if exists(name) and not visible(name) else name

    return _JOB.sub(shown, text)
