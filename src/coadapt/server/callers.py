"""Who is asking: bearer tokens, known by their hash only.

A token is never compared with another: its SHA-256 is looked up, so how long a wrong one takes tells nothing about a
right one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

from coadapt.server.problems import Refused
from coadapt.store.tokens import Token, token_hash
from coadapt.wire.api import TokenRole

#: Seconds until a token that another process revoked is void here too.
_KEPT_S, _MOST_KEPT = 2.0, 10_000
_BEARER = re.compile(r"Bearer ([A-Za-z0-9._~+/=-]{1,512})", re.IGNORECASE)


class Caller(NamedTuple):
    """Whoever a token stands for."""

    name: str
    role: TokenRole

    def may_see(self, user: str) -> bool:
        """Whether jobs of ``user`` are theirs to look at."""
        return self.role != "user" or user == self.name

    def may_change(self, user: str) -> bool:
        """Whether jobs of ``user`` are theirs to change."""
        return self.role == "admin" or (self.role == "user" and user == self.name)


def bearer(header: str | None) -> str:
    """The token in an Authorization header."""
    if header is None:
        raise Refused(401, "no token; send the header 'Authorization: Bearer TOKEN'")
    match = _BEARER.fullmatch(header)
    if match is None:
        raise Refused(401, "the Authorization header must be 'Bearer TOKEN'")
    return match[1]


class Callers:
    """Callers by token, asked of the store at most every two seconds."""

    def __init__(
        self, find: Callable[[str], Token | None], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._find, self._clock = find, clock
        self._kept: dict[str, tuple[float, Token | None]] = {}

    def of(self, header: str | None) -> Caller:
        """The caller; Refused where the token is unknown or void."""
        return self.of_hash(token_hash(bearer(header)))

    def of_hash(self, hashed: str) -> Caller:
        """The caller whose token has this hash."""
        moment, token = self._kept.get(hashed, (None, None))
        if moment is None or time.monotonic() - moment >= _KEPT_S:
            token = self._find(hashed)
            if len(self._kept) >= _MOST_KEPT:
                self.forget()
            self._kept[hashed] = (time.monotonic(), token)
        if token is None or token.expired(self._clock()):
            raise Refused(
                401, "the token is not known here, or its time is over; ask an administrator for one"
            )
        return Caller(token.name, token.role)

    def forget(self) -> None:
        """A token was made or revoked."""
        self._kept.clear()
