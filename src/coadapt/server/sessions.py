"""Who is asking from a browser: a cookie that stands for a token, for reading only.

The cookie holds the token's hash and until when it is good, signed with ``HOME/session_key``. The hash opens nothing by itself, and
as the token is looked up by it at every request, a token that is revoked ends its sessions too. Nothing is stored.
Cookies know hosts but not ports: the name says the port, so that two clusters on one machine do not sign each other out.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from starlette.requests import Request
from starlette.responses import Response

from coadapt.server.callers import Caller, Callers
from coadapt.server.problems import Refused

LIVES_S = 12 * 3600.0
_PORT = re.compile(r":(\d{1,5})$", re.ASCII)
_COOKIE = re.compile(r"([0-9a-f]{64})\.(\d{1,12})\.([0-9a-f]{64})")


class Sessions:
    """Makes cookies and reads them."""

    def __init__(self, key: bytes, callers: Callers) -> None:
        self._key, self._callers = key, callers

    def sign_in(self, request: Request, response: Response, hashed: str, now: float) -> None:
        """Sets the cookie; the caller has made sure that the token is good."""
        until = str(int(now + LIVES_S))
        response.set_cookie(
            name_of(request),
            f"{hashed}.{until}.{self._signature(hashed, until)}",
            max_age=int(LIVES_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    def sign_out(self, request: Request, response: Response) -> None:
        """Takes it away."""
        secure = request.url.scheme == "https"
        response.delete_cookie(name_of(request), httponly=True, samesite="strict", secure=secure)

    def caller(self, request: Request, now: float) -> Caller | None:
        """Who has signed in; None where there is no cookie, Refused where it is no good."""
        given = request.cookies.get(name_of(request))
        if given is None:
            return None
        match = _COOKIE.fullmatch(given)
        if (
            match is None
            or not hmac.compare_digest(self._signature(match[1], match[2]), match[3])
            or now >= int(match[2])
        ):
            raise Refused(401, "the session is over; sign in again")
        return self._callers.of_hash(match[1])

    def _signature(self, hashed: str, until: str) -> str:
        return hmac.new(self._key, f"session {hashed} {until}".encode(), hashlib.sha256).hexdigest()


def name_of(request: Request) -> str:
    """The cookie's name at the port that the browser sees."""
    match = _PORT.search(request.headers.get("host", ""))
    return f"coadapt{match[1] if match else ''}"
