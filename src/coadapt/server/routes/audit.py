"""The route of the audit log, for operators and administrators: it is read, and never changed."""

from __future__ import annotations

from typing import Annotated

import msgspec

from coadapt.server.http.routing import Call, Route
from coadapt.server.routes.jobs import Count, Rows
from coadapt.wire.api import AuditLine, AuditPage

#: Unix seconds.
Moment = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]


class AuditQuery(msgspec.Struct, frozen=True):
    """Rows of one ``user``, about one ``subject`` (a job, node, group or token), ``since`` a time; ``before`` is the ``next``
    of the page before.
    """

    user: str = ""
    subject: str = ""
    since: Moment | None = None
    before: Count | None = None
    limit: Rows = 100


async def page(call: Call) -> AuditPage:
    """``GET /v1/audit``: newest first."""
    query: AuditQuery = call.query
    found = await call.services.with_audit(
        lambda audit: audit.read(
            actor=query.user,
            subject=query.subject,
            since=query.since,
            before=query.before,
            limit=query.limit + 1,
        )
    )
    lines = [
        AuditLine(
            number=each.number,
            at=each.at,
            user=each.actor,
            role=each.role,
            via=each.via,
            address=each.address,
            action=each.action,
            subject=each.subject,
            detail=each.detail,
        )
        for each in found[: query.limit]
    ]
    return AuditPage(entries=lines, next=lines[-1].number if len(found) > query.limit else None)


ROUTES = (Route("GET", "/v1/audit", page, AuditPage, "operator", query=AuditQuery),)
