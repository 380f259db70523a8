"""Routes of the pages, signing in and out.

Signing in turns a token that is typed once, or a link that ``coadapt serve`` printed, into a cookie for reading. A page
of another site cannot sign somebody in: the browser sends the origin of a form, and other origins are refused.

Every request for a page is authenticated, then rendered; errors are rendered as pages too.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as PathRoute

from coadapt.errors import StoreError
from coadapt.server.callers import use_code
from coadapt.server.dashboard import pages
from coadapt.server.dashboard.rendering import asset, page
from coadapt.server.http.problems import Refused, store_away
from coadapt.server.http.routing import SEGMENT, Call, NoQuery, decode_query, read_body, reader_of
from coadapt.server.services import Services
from coadapt.store.token_table import token_hash

_MOST_FORM = 4096
#: Pages of ours that one may go on to; nothing that a browser could take for another host.
_NEXT = re.compile(r"/(?:(?:jobs|predictions)(?:/[A-Za-z0-9][A-Za-z0-9_.@-]{0,127})?)?", re.ASCII)
_WRONG = "This token is not known here, or its time is over."
_OVER = "This link was used already, or its five minutes are over. 'coadapt dashboard' prints a new one."


def ask(request: Request, services: Services) -> Response:
    """``GET /sign-in``: the form; with ``?once=``, no form is needed."""
    next_ = next_of(request.query_params.get("next", ""))
    code = request.query_params.get("once")
    if code is None:
        return page("sign_in.html", next=next_, fault="")
    services.strangers.take(_address(request))
    if not use_code(services.home, code, now=services.clock()):
        return page("sign_in.html", status=401, next="/", fault=_OVER)
    try:
        token = services.home.token.read_text().strip()
    except OSError:
        raise Refused(503, "the local administrator's token cannot be read") from None
    return _enter(request, services, token, "/")


async def take(request: Request, services: Services) -> Response:
    """``POST /sign-in``."""
    services.strangers.take(_address(request))
    check_origin(request)
    form = parse_qs((await read_body(request, _MOST_FORM)).decode(errors="replace"), max_num_fields=8)
    token, next_ = form.get("token", [""])[0].strip(), next_of(form.get("next", [""])[0])
    try:
        return _enter(request, services, token, next_)
    except Refused as refused:
        if refused.status != 401:
            raise
        return page("sign_in.html", status=401, next=next_, fault=_WRONG)


def leave(request: Request, services: Services) -> Response:
    """``POST /sign-out``."""
    check_origin(request)
    response = RedirectResponse("/sign-in", 303)
    services.sessions.sign_out(request, response)
    return response


def to_sign_in(request: Request) -> Response:
    """Redirects a caller who is not signed in to the sign-in page."""
    return RedirectResponse(f"/sign-in?next={quote(next_of(request.url.path))}", 303)


def next_of(path: str) -> str:
    """Returns the page to show after signing in: one of this dashboard, otherwise the first."""
    return path if _NEXT.fullmatch(path) else "/"


def check_origin(request: Request) -> None:
    """Raises Refused if the form was sent by a page of another origin."""
    origin = request.headers.get("origin")
    elsewhere = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if elsewhere or (origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")):
        raise Refused(403, "this form comes from another site")


def _enter(request: Request, services: Services, token: str, next_: str) -> Response:
    hashed = token_hash(token)
    services.callers.of_hash(hashed)  # Refused where it is no good
    response = RedirectResponse(next_, 303)
    services.sessions.sign_in(request, response, hashed, services.clock())
    return response


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


log = logging.getLogger(__name__)
Answer = Callable[[Request, Services], Any]


def dashboard_routes(services: Callable[[], Services]) -> list[PathRoute]:
    """Returns the routes of all pages, which the OpenAPI document leaves out."""
    table: tuple[tuple[str, str, Answer], ...] = (
        ("GET", "/", _signed_in(pages.first)),
        ("GET", "/jobs", _signed_in(pages.listed, pages.ListQuery)),
        ("GET", "/jobs/{job}", _signed_in(pages.job)),
        ("GET", "/predictions", _signed_in(pages.predicted)),
        ("GET", "/sign-in", ask),
        ("POST", "/sign-in", take),
        ("POST", "/sign-out", leave),
        ("GET", "/assets/{name}", lambda request, services: asset(request.path_params["name"])),
    )
    return [PathRoute(path, _endpoint(answer, services), methods=[method]) for method, path, answer in table]


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
        except StoreError as error:
            log.error("%s: %s", request.scope.get("route"), error)
            return page("problem.html", status=503, error=str(store_away()))
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
            return to_sign_in(request)
        services.limits.take(f"token {caller.name}")
        for value in request.path_params.values():
            if not SEGMENT.fullmatch(value):
                raise Refused(404, "there is nothing of that name")
        asked: Any = decode_query(request.query_params.multi_items(), query)
        return handle(Call(services, caller, request.path_params, asked, None, request))

    return answer
