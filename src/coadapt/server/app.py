"""The application: every route, the guard before them, and what lives as long as the process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from coadapt.cluster.home import Home
from coadapt.server import (
    cluster,
    code,
    course,
    events,
    health,
    job_actions,
    job_files,
    jobs,
    metrics,
    outlook,
    predictions,
    reports,
    stream,
    token_routes,
    why,
)
from coadapt.server.dashboard.routes import add_dashboard
from coadapt.server.guard import LOOPBACK, Guard
from coadapt.server.openapi import describe
from coadapt.server.problems import JSON, Refused
from coadapt.server.routing import Route, endpoint
from coadapt.server.services import Services
from coadapt.wire.serve import ServeOptions

log = logging.getLogger(__name__)
#: Seconds between two looks into the store while nobody asks anything.
_LOOK_S = 0.25
#: Seconds that a start waits for the beginnings of jobs' stories; a long log is looked through meanwhile.
_PATIENCE_S = 1.0


def make_app(home: Home, options: ServeOptions, *, clock: Callable[[], float] = time.time) -> FastAPI:
    """The API of one home. What it needs is opened when it starts, in the thread that it runs in."""
    opened: list[Services] = []

    def services() -> Services:
        return opened[0]

    streams, measures = stream.Streams(), metrics.Metrics(services)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        opened.append(Services(home, options, clock=clock))
        hooks = services().webhooks
        services().follower.listeners += [services().history.note, measures.note, hooks.note]
        services().history.look_back(services().store.log, services().follower.state.seq)
        services().history.complete.wait(_PATIENCE_S)
        looking = asyncio.create_task(_look(services(), streams))
        try:
            yield
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
            await services().forward.stop()
            services().close()
            opened.clear()

    # no pages of documentation that load scripts from elsewhere; /openapi.json is ours
    app = FastAPI(title="Coadapt", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    routes = all_routes(streams, measures)
    for route in routes:
        app.add_api_route(
            route.path,
            endpoint(route, services),
            methods=[route.method],
            include_in_schema=False,
            response_model=None,
        )
    document = msgspec.json.encode(describe(routes))
    app.add_api_route(
        "/openapi.json", _constant(document), methods=["GET"], include_in_schema=False, response_model=None
    )
    add_dashboard(app, services)
    app.add_exception_handler(HTTPException, _not_ours)
    app.add_middleware(Guard, hosts=hosts_of(options), observe=measures.observe)
    return app


def all_routes(streams: stream.Streams, measures: metrics.Metrics) -> tuple[Route, ...]:
    """Those most often used first: they are looked through in order."""
    return (
        *reports.routes(),
        *jobs.ROUTES,
        *job_actions.ROUTES,
        *course.ROUTES,
        *why.ROUTES,
        *predictions.ROUTES,
        *outlook.ROUTES,
        *job_files.ROUTES,
        *events.ROUTES,
        *stream.routes(streams),
        *cluster.ROUTES,
        *token_routes.ROUTES,
        *code.routes(),
        *health.routes(),
        *metrics.routes(measures),
    )


def hosts_of(options: ServeOptions) -> frozenset[str]:
    """Names by which the API may be addressed; empty: any."""
    host = host_of_listen(options.listen)
    return LOOPBACK | {host} if host in LOOPBACK else frozenset(options.hosts)


def host_of_listen(listen: str) -> str:
    """The host in HOST:PORT, without the brackets of an IPv6 address."""
    return listen.rpartition(":")[0].strip("[]")


async def _look(services: Services, streams: stream.Streams) -> None:
    """Keeps the state at hand also while nobody asks, and wakes who listens."""
    seen = services.follower.state.seq
    while True:
        try:
            more = services.follower.refresh()
        except Exception:
            log.exception("the store cannot be read")
            more = False
        if services.follower.state.seq != seen:
            seen = services.follower.state.seq
            streams.wake()
        services.webhooks.save(seen)
        await asyncio.sleep(0 if more else _LOOK_S)


def _constant(document: bytes) -> Callable[[], Response]:
    def answer() -> Response:
        return Response(document, media_type=JSON)

    return answer


async def _not_ours(request: Request, error: Exception) -> Response:
    """What no route takes."""
    assert isinstance(error, HTTPException)
    said = {404: "there is nothing at this path", 405: "this path does not take this method"}
    response = Refused(error.status_code, said.get(error.status_code, str(error.detail))).response()
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response
