"""Addresses of the pages, and the way of every request for one: who, then the page; faults are pages too."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from coadapt.server.dashboard import pages, sign_in
from coadapt.server.dashboard.rendering import asset, page
from coadapt.server.decoding import decode_query
from coadapt.server.problems import Refused
from coadapt.server.routing import SEGMENT, Call, NoQuery, reader_of
from coadapt.server.services import Services

log = logging.getLogger(__name__)
Answer = Callable[[Request, Services], Any]


def add_dashboard(app: FastAPI, services: Callable[[], Services]) -> None:
    """All pages; the API's own description does not speak of them."""
    for method, path, answer in (
        ("GET", "/", _signed_in(pages.first)),
        ("GET", "/jobs", _signed_in(pages.listed, pages.ListQuery)),
        ("GET", "/jobs/{job}", _signed_in(pages.job)),
        ("GET", "/predictions", _signed_in(pages.predicted)),
        ("GET", "/sign-in", sign_in.ask),
        ("POST", "/sign-in", sign_in.take),
        ("POST", "/sign-out", sign_in.leave),
        ("GET", "/assets/{name}", lambda request, services: asset(request.path_params["name"])),
    ):
        app.add_api_route(
            path, _endpoint(answer, services), methods=[method], include_in_schema=False, response_model=None
        )


def _endpoint(answer: Answer, services: Callable[[], Services]) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        try:
            given = answer(request, services())
            response: Response = await given if inspect.isawaitable(given) else given
            return response
        except Refused as refused:
            return page("problem.html", status=refused.status, error=str(refused))
        except ClientDisconnect:
            return page("problem.html", status=400, error="the connection was closed")
        except Exception:
            log.exception("%s went wrong", request.scope.get("route"))
            return page(
                "problem.html",
                status=500,
                error="something went wrong here; the log of the API says what",
            )

    return answered


def _signed_in(handle: Callable[[Call], Any], query: type = NoQuery) -> Answer:
    def answer(request: Request, services: Services) -> Any:
        try:
            caller = reader_of(request, services)
        except Refused:
            services.strangers.take(request.client.host if request.client else "")
            return sign_in.to_sign_in(request)
        services.limits.take(f"token {caller.name}")
        for value in request.path_params.values():
            if not SEGMENT.fullmatch(value):
                raise Refused(404, "there is nothing of that name")
        asked: Any = decode_query(request.query_params.multi_items(), query)
        return handle(Call(services, caller, request.path_params, asked, None, request))

    return answer
