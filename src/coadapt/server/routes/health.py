"""Routes of health checks: whether the API is alive, and whether the cluster works."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import closing

from coadapt.errors import CoadaptError
from coadapt.server.http.problems import store_away, unavailable
from coadapt.server.http.routing import Call, Route
from coadapt.server.services import Services
from coadapt.wire.api import Accepted

#: A controller that has not renewed its lease for so long is taken for dead.
LEASE_S = 15.0
LEAST_FREE = 64 << 20
_CHECKED_S, _WRITE_S = 5.0, 5.0


def alive(call: Call) -> Accepted:
    """``GET /healthz``."""
    return Accepted()


class Readiness:
    """The readiness check; it asks the store at most every five seconds."""

    def __init__(self) -> None:
        self._checked, self._fault = -_CHECKED_S, ""

    async def ready(self, call: Call) -> Accepted:
        """``GET /readyz``."""
        services = call.services
        services.follower.refresh()
        age_s = services.controller_age_s()
        if services.follower.away:
            raise store_away()
        if services.follower.broken:
            raise unavailable("the log cannot be read on; see the log of the API", 10.0)
        if age_s is None or age_s > LEASE_S:
            since = "there is none" if age_s is None else f"it was last heard of {age_s:.0f} s ago"
            raise unavailable(f"no controller is at work: {since}", 5.0)
        if time.monotonic() - self._checked >= _CHECKED_S:
            self._checked = time.monotonic()
            self._fault = await _write_fault(services)
        if self._fault:
            raise unavailable(self._fault, 5.0)
        return Accepted()


async def _write_fault(services: Services) -> str:
    if shutil.disk_usage(services.home.path).free < LEAST_FREE:
        return f"there is less than {LEAST_FREE >> 20} MiB of space on the disk"

    def write() -> None:
        with closing(services.store.inbox()) as inbox:
            inbox.submit_all([])  # takes the write lock and gives it back

    try:
        await asyncio.wait_for(asyncio.to_thread(write), _WRITE_S)
    except TimeoutError:
        return f"the store took nothing within {_WRITE_S:.0f} s"
    except CoadaptError:
        return "the store cannot be written; see the log of the API"
    return ""


def routes() -> tuple[Route, ...]:
    """With a memory of their own."""
    return (
        Route("GET", "/healthz", alive, Accepted, "open"),
        Route("GET", "/readyz", Readiness().ready, Accepted, "open"),
    )
