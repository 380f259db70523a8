"""Routes of tokens: administrators create, list and revoke them, and a caller sees whose token it uses.

A token is shown once; its hash is kept.
"""

from __future__ import annotations

from coadapt.errors import InputError, StoreError
from coadapt.server.audit_trail import attribution
from coadapt.server.http.problems import Refused, not_found
from coadapt.server.http.routing import Call, Route
from coadapt.spec.job_rules import check_name
from coadapt.store.token_table import Token, new_token, token_hash
from coadapt.units import format_duration
from coadapt.wire.api import Accepted, Me, NewToken, TokenLine, TokenMade, TokenPage


async def listed(call: Call) -> TokenPage:
    """``GET /v1/tokens``."""
    tokens = await call.services.with_tokens(lambda store: store.all())
    return TokenPage(
        tokens=[
            TokenLine(name=t.name, role=t.role, made_at=t.made_at, expires_at=t.expires_at) for t in tokens
        ]
    )


async def make(call: Call) -> TokenMade:
    """``POST /v1/tokens``."""
    new: NewToken = call.body
    check_name("name", new.name)
    if new.expires_in_s is not None and not 1 <= new.expires_in_s <= 1e10:
        raise Refused(422, "expires_in_s must be 1 to 1e10 seconds, or null for a token that does not expire")
    at = call.services.clock()
    text = new_token()
    token = Token(
        name=new.name,
        role=new.role,
        made_at=at,
        expires_at=None if new.expires_in_s is None else at + new.expires_in_s,
    )
    expiry = "no expiry" if new.expires_in_s is None else f"expires in {format_duration(new.expires_in_s)}"
    who = attribution(f"role {new.role}, {expiry}")
    try:
        await call.services.with_tokens(lambda store: store.add(token, token_hash(text), who))
    except StoreError:
        raise
    except InputError as error:
        raise Refused(409, str(error)) from None
    return TokenMade(name=new.name, role=new.role, token=text)


async def revoke(call: Call) -> Accepted:
    """``DELETE /v1/tokens/{name}``."""
    name = call.path["name"]
    if name == call.caller.name:
        raise Refused(409, "you are using this token; ask another administrator to revoke it")
    who = attribution()
    if not await call.services.with_tokens(lambda store: store.remove(name, who)):
        raise not_found("token", name)
    return Accepted()


def me(call: Call) -> Me:
    """``GET /v1/me``."""
    return Me(name=call.caller.name, role=call.caller.role)


ROUTES = (
    Route("GET", "/v1/me", me, Me),
    Route("GET", "/v1/tokens", listed, TokenPage, "admin"),
    Route("POST", "/v1/tokens", make, TokenMade, "admin", NewToken, status=201),
    Route("DELETE", "/v1/tokens/{name}", revoke, Accepted, "admin"),
)
