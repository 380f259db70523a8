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

#: Names of nodes, or patterns of names, that one token is for.
_MOST_NODES = 100


async def listed(call: Call) -> TokenPage:
    """``GET /v1/tokens``."""
    tokens = await call.services.with_tokens(lambda store: store.all())
    return TokenPage(
        tokens=[
            TokenLine(
                name=t.name,
                role=t.role,
                made_at=t.made_at,
                expires_at=t.expires_at,
                nodes=None if t.nodes is None else list(t.nodes),
            )
            for t in tokens
        ]
    )


async def make(call: Call) -> TokenMade:
    """``POST /v1/tokens``."""
    new: NewToken = call.body
    check_name("name", new.name)
    if new.expires_in_s is not None and not 1 <= new.expires_in_s <= 1e10:
        raise Refused(422, "expires_in_s must be 1 to 1e10 seconds, or null for a token that does not expire")
    nodes = _nodes(new)
    at = call.services.clock()
    text = new_token()
    token = Token(
        name=new.name,
        role=new.role,
        made_at=at,
        expires_at=None if new.expires_in_s is None else at + new.expires_in_s,
        nodes=nodes,
    )
    expiry = "no expiry" if new.expires_in_s is None else f"expires in {format_duration(new.expires_in_s)}"
    bound = f", nodes {' '.join(nodes) or 'of the first machine'}" if nodes is not None else ""
    who = attribution(f"role {new.role}, {expiry}{bound}")
    try:
        await call.services.with_tokens(lambda store: store.add(token, token_hash(text), who))
    except StoreError:
        raise
    except InputError as error:
        raise Refused(409, str(error)) from None
    return TokenMade(name=new.name, role=new.role, token=text)


def _nodes(new: NewToken) -> tuple[str, ...] | None:
    """The nodes that a new token is for; None: it is not one of a machine."""
    if new.role != "node":
        if new.nodes:
            raise Refused(422, f"a token of role {new.role} is not for nodes; leave them out")
        return None
    if len(new.nodes) > _MOST_NODES:
        raise Refused(422, f"a token is for at most {_MOST_NODES} names of nodes; use * in a name")
    for name in new.nodes:
        check_name("node", name.replace("*", "x"))
    return tuple(dict.fromkeys(new.nodes))


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
