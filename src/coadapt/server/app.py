"""The ASGI application: every route, the guard before them, and the services that live as long as the process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as PathRoute

from coadapt.server.dashboard.pages import dashboard_routes
from coadapt.server.http.guard import LOOPBACK, Guard
from coadapt.server.http.openapi import describe
from coadapt.server.http.problems import JSON, Refused
from coadapt.server.http.routing import Route, endpoint
from coadapt.server.routes import (
    agents,
    audit,
    cluster,
    code,
    events,
    health,
    job_actions,
    job_files,
    jobs,
    metrics,
    predictions,
    reports,
    tokens,
)
from coadapt.server.services import Services
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions

log = logging.getLogger(__name__)
#: Seconds between two reads of the store while there are no requests.
_LOOK_S = 0.25
#: Seconds between two looks for reports that were merged.
_REPACK_S = 60.0
#: Seconds that a start waits for the beginnings of jobs' stories; a long log is looked through meanwhile.
_PATIENCE_S = 1.0


def make_app(
    home: Home,
    options: ServeOptions,
    *,
    clock: Callable[[], float] = time.time,
    advanced: Callable[[], None] = lambda: None,
) -> Starlette:
    """The API of one home. What it needs is opened when it starts, in the thread that it runs in.

    ``advanced`` is called again and again, so that another process can see that it does not hang.
    """
    opened: list[Services] = []

    def services() -> Services:
        return opened[0]

    streams, measures = events.Streams(), metrics.Metrics(services)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        opened.append(Services(home, options, clock=clock, advanced=advanced))
        hooks = services().webhooks
        services().follower.listeners += [services().history.note, measures.note, hooks.note]
        services().history.look_back(services().store.log, services().follower.state.seq)
        services().history.complete.wait(_PATIENCE_S)
        tasks = [
            asyncio.create_task(task)
            for task in (_look(services(), streams, advanced), _look_ahead(services()), _repack(services()))
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await services().forward.stop()
            services().close()
            opened.clear()

    routes = all_routes(streams, measures)
    document = msgspec.json.encode(describe(routes))
    return Starlette(
        routes=[
            *(PathRoute(route.path, endpoint(route, services), methods=[route.method]) for route in routes),
            PathRoute("/openapi.json", _constant(document), methods=["GET"]),
            *dashboard_routes(services),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: partial(_not_ours, services)},
        middleware=[Middleware(Guard, hosts=hosts_of(options), observe=measures.observe)],
    )


def all_routes(streams: events.Streams, measures: metrics.Metrics) -> tuple[Route, ...]:
    """Returns all routes, those most often used first, because they are matched in order."""
    return (
        *reports.routes(),
        *agents.ROUTES,
        *jobs.ROUTES,
        *job_actions.ROUTES,
        *predictions.PREDICTION_ROUTES,
        *predictions.ROUTES,
        *job_files.ROUTES,
        *events.ROUTES,
        *events.routes(streams),
        *cluster.ROUTES,
        *tokens.ROUTES,
        *audit.ROUTES,
        *code.routes(),
        *health.routes(),
        *metrics.routes(measures),
    )


def hosts_of(options: ServeOptions) -> frozenset[str]:
    """Returns the names by which the API may be addressed; empty: any."""
    host = host_of_listen(options.listen)
    return LOOPBACK | {host, *options.hosts} if host in LOOPBACK else frozenset(options.hosts)


def host_of_listen(listen: str) -> str:
    """Returns the host in HOST:PORT, without the brackets of an IPv6 address."""
    return listen.rpartition(":")[0].strip("[]")


async def _look(services: Services, streams: events.Streams, advanced: Callable[[], None]) -> None:
    """Keeps the state at hand also while nobody asks, wakes who listens, and says that the event loop turns."""
    seen = services.follower.state.seq
    while True:
        advanced()
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


async def _look_ahead(services: Services) -> None:
    """Keeps the predictions in tables of jobs up to date."""
    while True:
        await asyncio.sleep(1.0)
        try:
            await services.outlooks.refresh(services.follower.state.seq)
        except Exception:
            log.exception("the look-ahead for tables failed")


async def _repack(services: Services) -> None:
    """Keeps the histories of jobs right while the log is compacted."""
    while True:
        await asyncio.sleep(_REPACK_S)
        if services.history.complete.is_set():
            try:
                await asyncio.to_thread(services.history.repack, services.store.log)
            except Exception:
                log.exception("packs of the log cannot be read")


def _constant(document: bytes) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return Response(document, media_type=JSON)

    return answer


async def _not_ours(services: Callable[[], Services], request: Request, error: Exception) -> Response:
    """What no route takes, counted by address: whoever asks for it has shown no token."""
    assert isinstance(error, HTTPException)
    try:
        services().strangers.take(f"no route {services().proxy.address(request)}")
    except Refused as refused:
        return refused.response()
    said = {404: "no such path", 405: "method not allowed on this path"}
    response = Refused(error.status_code, said.get(error.status_code, str(error.detail))).response()
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response
