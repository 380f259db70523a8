"""Errors of requests, each answered as a ``Problem`` with its status."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from coadapt.wire.api import Problem

JSON = "application/json"


class Refused(Exception):  # noqa: N818 - not an error of ours: an answer
    """Ends a request with a status and a message."""

    def __init__(
        self,
        status: int,
        error: str,
        *,
        retry_after_s: float = 0.0,
        code: str = "",
        earliest_s: float | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.problem = Problem(error=error, retry_after_s=retry_after_s, code=code, earliest_s=earliest_s)

    def response(self) -> Response:
        """Returns the HTTP response."""
        headers = {"www-authenticate": "Bearer"} if self.status == 401 else {}
        if self.problem.retry_after_s:
            headers["retry-after"] = str(max(1, round(self.problem.retry_after_s)))
        return Response(
            msgspec.json.encode(self.problem), status_code=self.status, media_type=JSON, headers=headers
        )


def not_found(what: str, name: str) -> Refused:
    """There is none, or it is not the caller's to see: who may not see it cannot tell which."""
    return Refused(404, f"no {what} {name[:100]!r}, or you have no access to it")


def unavailable(error: str, retry_after_s: float = 1.0) -> Refused:
    """Returns the error for a service that is not available at the moment."""
    return Refused(503, error, retry_after_s=retry_after_s)


def store_away() -> Refused:
    """Returns the error for a store that cannot be read or written; which one and why is in the log only."""
    return unavailable("the store does not answer now; jobs go on, try again", 5.0)
