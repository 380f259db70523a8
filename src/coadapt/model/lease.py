"""The writer's lease of a log, and how an inbox numbers what it is given."""

from __future__ import annotations

from collections.abc import Callable

from coadapt.model._base import Fact
from coadapt.model.events import AnyEvent

#: Makes an event that knows the number of its entry in the inbox.
Make = Callable[[int], AnyEvent]


class Holder(Fact, frozen=True):
    """The holder of the writer's lease."""

    owner: str
    expires_at: float
    #: Seconds since it was taken or renewed, by the store's own clock.
    age_s: float
