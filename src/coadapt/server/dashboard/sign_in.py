"""Signing in and out: a token typed once, or a link that ``coadapt serve`` printed, becomes a cookie for reading.

Nobody else's page can sign somebody in: a browser says where a form comes from, and elsewhere is refused.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coadapt.server.dashboard.rendering import page
from coadapt.server.once import use_code
from coadapt.server.problems import Refused
from coadapt.server.routing import read_body
from coadapt.server.services import Services
from coadapt.store.tokens import token_hash

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
    """Where a page sends somebody whom it does not know."""
    return RedirectResponse(f"/sign-in?next={quote(next_of(request.url.path))}", 303)


def next_of(path: str) -> str:
    """A page of ours, else the first."""
    return path if _NEXT.fullmatch(path) else "/"


def check_origin(request: Request) -> None:
    """Refused where a page of another origin sent the form."""
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
