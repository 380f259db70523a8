"""The log as far as a caller may see it: pages of events, and a job's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import msgspec

from coadapt.model import Record
from coadapt.server.jobs import Rows
from coadapt.server.routing import Call, Route
from coadapt.server.words import event_line
from coadapt.wire.api import EventLine, EventPage

#: Records looked at for one answer; where none of them concerns the caller the page is empty and says where to go on.
_MOST_LOOKED = 5000


class EventsQuery(msgspec.Struct, frozen=True):
    """Events after ``after``, oldest first; with ``job`` only that job's."""

    after: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 53) - 1)] = -1
    job: str = ""
    limit: Rows = 100


def page(call: Call) -> EventPage:
    """``GET /v1/events``."""
    query, services = call.query, call.services
    visible = services.visible(call.caller)
    if query.job:
        services.seen(query.job, call.caller)
        return _of_job(call)
    services.follower.refresh()
    lines: list[EventLine] = []
    last = -1
    for record in islice(records_after(call, query.after), _MOST_LOOKED):
        last = record.seq
        if (line := event_line(record, visible)) is not None:
            lines.append(line)
            if len(lines) == query.limit:
                break
    return EventPage(events=lines, next=last if last < services.follower.state.seq and last >= 0 else None)


def records_after(call: Call, after: int) -> Iterator[Record]:
    """From memory where it reaches back so far, else from the store."""
    recent = call.services.follower.recent
    if recent and recent[0].seq <= after + 1:
        return islice(recent, after + 1 - recent[0].seq, None)
    return iter(call.services.log.read(max(after, call.services.log.first() - 1)))


def _of_job(call: Call) -> EventPage:
    query, history = call.query, call.services.history
    wanted = [seq for seq in history.all(query.job) if seq > query.after]
    records = history.records(wanted[: query.limit])
    lines = [line for each in records if (line := event_line(each, query.job.__eq__)) is not None]
    more = len(wanted) > query.limit
    return EventPage(events=lines, next=wanted[query.limit - 1] if more else None)


ROUTES = (Route("GET", "/v1/events", page, EventPage, query=EventsQuery),)
