"""Renders templates: Jinja with automatic escaping, and a content security policy that allows only our one script."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from coadapt.server.dashboard import filters
from coadapt.server.http.problems import Refused

#: No inline script or style, nothing from elsewhere, forms only to ourselves.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
ASSETS = {
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "charts.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("coadapt.server.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=filters.visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"shown": filters, "asset": asset_url}
    return made


def page(template: str, *, status: int = 200, **values: Any) -> Response:
    """Renders a page as an HTML response."""
    return answered(rendered(template, **values), status=status)


def rendered(template: str, **values: Any) -> bytes:
    """Renders a template as the bytes of an HTML page."""
    # lone surrogates, as a job may print, have no bytes in UTF-8
    return _environment().get_template(template).render(**values).encode(errors="replace")


def answered(body: bytes, *, status: int = 200) -> Response:
    """Returns a rendered page as a response."""
    return Response(
        body,
        status_code=status,
        media_type="text/html",
        # with no referrer at all a browser would not say either where a form comes from
        headers={"content-security-policy": POLICY, "referrer-policy": "same-origin"},
    )


@cache
def _asset(name: str) -> bytes:
    return (files("coadapt.server.dashboard") / "assets" / name).read_bytes()


@cache
def asset_url(name: str) -> str:
    """Returns the URL of an asset. It changes with the content, so that browsers may cache it for ever."""
    return f"/assets/{name}?v={hashlib.sha256(_asset(name)).hexdigest()[:12]}"


def asset(name: str) -> Response:
    """Returns the asset file as a response."""
    if name not in ASSETS:
        raise Refused(404, "there is nothing of that name")
    return Response(
        _asset(name),
        media_type=ASSETS[name],
        headers={"cache-control": "public, max-age=31536000, immutable"},
    )
