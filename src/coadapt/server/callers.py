"""Authentication: bearer tokens, sessions of browsers, and one-time links that sign in.

Tokens are known by their hash only. A token is never compared with another: its SHA-256 is looked up, so the time that
a wrong one takes tells nothing about a right one. All hashes are kept in memory: a guess costs no query of the store.

A session is a cookie that stands for a token, for reading only. It holds the token's hash and its expiry, signed with
``HOME/session_key``. The hash grants nothing by itself, and as the token is looked up by it at every request, revoking a
token ends its sessions too. Nothing is stored. Cookies are shared between the ports of a host: the name contains the
port, so that two clusters on one machine do not sign each other out.

One-time links sign the local administrator in; each is valid for one use within five minutes. A code is random; a file
in ``HOME/once`` named by its hash holds its expiry. Removing the file is using the code: of two that try at once only
one succeeds, and nothing has to be remembered after a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from coadapt.errors import StoreError
from coadapt.server.http.problems import Refused
from coadapt.server.roles import changes_all, sees_all
from coadapt.store.home import Home, write_private
from coadapt.store.token_table import Token, token_hash
from coadapt.wire.api import TokenRole

#: Seconds until a token that another process made or revoked is known to be so here.
_KEPT_S = 2.0
_BEARER = re.compile(r"Bearer ([A-Za-z0-9._~+/=-]{1,512})", re.IGNORECASE)


class Caller(NamedTuple):
    """A user who makes a request: name, role, and how he proved it (token, cookie, proxy)."""

    name: str
    role: TokenRole
    via: str = "token"

    def may_see(self, user: str) -> bool:
        """Returns True if the caller may read jobs of ``user``."""
        return sees_all(self.role) or user == self.name

    def may_change(self, user: str) -> bool:
        """Returns True if the caller may change jobs of ``user``."""
        return changes_all(self.role) or (self.role == "user" and user == self.name)


def bearer(header: str | None) -> str:
    """Returns the token in an Authorization header; Refused if there is none."""
    if header is None:
        raise Refused(401, "no token; send the header 'Authorization: Bearer TOKEN'")
    match = _BEARER.fullmatch(header)
    if match is None:
        raise Refused(401, "the Authorization header must be 'Bearer TOKEN'")
    return match[1]


class Callers:
    """Callers by token; the store is asked for all tokens, at most every two seconds.

    Args:
        load: returns the tokens by hash; StoreError while the store is away.
        in_memory: ``load`` costs nothing, and is called every time.
        clock: returns the present time.
    """

    def __init__(
        self,
        load: Callable[[], Mapping[str, Token]],
        *,
        in_memory: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._load, self._in_memory, self._clock = load, in_memory, clock
        self._tokens: Mapping[str, Token] = {}
        self._loaded: float | None = None

    def of(self, header: str | None) -> Caller:
        """Returns the caller by the Authorization header; Refused if the token is unknown or expired."""
        return self.of_hash(token_hash(bearer(header)))

    def of_hash(self, hashed: str) -> Caller:
        """Returns the caller whose token has this hash; Refused if it is unknown or expired."""
        try:
            self._refresh()
        except StoreError:
            # while the store is away nobody can revoke a token either; whether another one exists is not known
            if hashed not in self._tokens:
                raise
        token = self._tokens.get(hashed)
        if token is None or token.expired(self._clock()):
            raise Refused(401, "the token is unknown or has expired; ask an administrator for a new one")
        return Caller(token.name, token.role)

    def has(self, name: str) -> bool:
        """Returns True if a token of this name is known here."""
        return any(token.name == name for token in self._tokens.values())

    def forget(self) -> None:
        """Has the tokens read again, after one was made or revoked."""
        self._loaded = None

    def _refresh(self) -> None:
        if self._in_memory or self._loaded is None or time.monotonic() - self._loaded >= _KEPT_S:
            self._tokens = self._load()
            self._loaded = time.monotonic()


LIVES_S = 12 * 3600.0
_PORT = re.compile(r":(\d{1,5})$", re.ASCII)
_COOKIE = re.compile(r"([0-9a-f]{64})\.(\d{1,12})\.([0-9a-f]{64})")


class Sessions:
    """Sets and reads the session cookies of browsers."""

    def __init__(self, key: bytes, callers: Callers) -> None:
        self._key, self._callers = key, callers

    def sign_in(self, request: Request, response: Response, hashed: str, now: float, *, secure: bool) -> None:
        """Sets the session cookie. The token must have been checked before.

        Args:
            request: The request; its host decides the cookie's name.
            response: The response that sets the cookie.
            hashed: Hash of the token.
            now: Present time; the session ends ``LIVES_S`` later.
            secure: Whether the browser's connection is encrypted.
        """
        until = str(int(now + LIVES_S))
        response.set_cookie(
            name_of(request),
            f"{hashed}.{until}.{self._signature(hashed, until)}",
            max_age=int(LIVES_S),
            httponly=True,
            samesite="strict",
            secure=secure,
        )

    def sign_out(self, request: Request, response: Response) -> None:
        """Deletes the session cookie."""
        secure = request.url.scheme == "https"
        response.delete_cookie(name_of(request), httponly=True, samesite="strict", secure=secure)

    def caller(self, request: Request, now: float) -> Caller | None:
        """Returns the caller who has signed in; None if there is no cookie, Refused if it is not valid."""
        given = request.cookies.get(name_of(request))
        if given is None:
            return None
        match = _COOKIE.fullmatch(given)
        if (
            match is None
            or not hmac.compare_digest(self._signature(match[1], match[2]), match[3])
            or now >= int(match[2])
        ):
            raise Refused(401, "the session has expired; sign in again")
        return self._callers.of_hash(match[1])._replace(via="cookie")

    def _signature(self, hashed: str, until: str) -> str:
        return hmac.new(self._key, f"session {hashed} {until}".encode(), hashlib.sha256).hexdigest()


def name_of(request: Request) -> str:
    """Returns the name of the cookie for the port that the browser sees."""
    match = _PORT.search(request.headers.get("host", ""))
    return f"coadapt{match[1] if match else ''}"


GOOD_S = 300.0
_CODE = re.compile(r"[A-Za-z0-9_-]{43}")


def make_code(home: Home, *, now: float | None = None) -> str:
    """Makes a new one-time code, and removes expired ones."""
    now = time.time() if now is None else now
    place = home.path / "once"
    place.mkdir(mode=0o700, exist_ok=True)
    for file in place.iterdir():
        # a name with a dot is of a file that another process is writing
        if not file.name.startswith(".") and _good_until(file) <= now:
            file.unlink(missing_ok=True)
    code = secrets.token_urlsafe(32)
    write_private(place / token_hash(code), f"{now + GOOD_S}\n".encode())
    return code


def use_code(home: Home, code: str, *, now: float) -> bool:
    """Uses up a one-time code; returns True if it was valid."""
    if not _CODE.fullmatch(code):
        return False
    file = home.path / "once" / token_hash(code)
    until = _good_until(file)
    try:
        file.unlink()
    except OSError:
        return False
    return now < until <= now + GOOD_S


def link(home: Home) -> str:
    """Returns the address of the dashboard with a new one-time code."""
    return f"{home.address.read_text().strip()}/sign-in?once={make_code(home)}"


def _good_until(file: Path) -> float:
    with suppress(OSError, ValueError):
        return float(file.read_text())
    return 0.0
