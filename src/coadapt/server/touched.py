"""Which jobs an event is about."""

from __future__ import annotations

from collections.abc import Iterable

from coadapt.model import ActionsIssued, AnyEvent, DecisionMade


def touched(event: AnyEvent) -> Iterable[str]:
    """Names of the jobs whose life the event is part of; none for events of nodes and of the controller."""
    if isinstance(event, DecisionMade):
        return {**event.targets, **event.reasons, **event.forecasts}
    if isinstance(event, ActionsIssued):
        return [action.job for action in event.actions]
    job = getattr(event, "job", None)
    return () if job is None else (job,)
