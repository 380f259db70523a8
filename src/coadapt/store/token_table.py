"""Tokens of users: names, roles, and only the hashes of their tokens."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from fnmatch import fnmatchcase

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.store._sql import Sql
from coadapt.store.audit_log import Attribution, record
from coadapt.wire.api import TokenRole


class Token(Fact, frozen=True):
    """A token: the name and the role of its owner."""

    name: str
    role: TokenRole
    made_at: float
    #: Unix seconds; None: never.
    expires_at: float | None = None
    #: Of role node: names of nodes that may join with it, where * stands for any characters; empty: those of the
    #: first machine that joins; None: every node.
    nodes: tuple[str, ...] | None = None

    def expired(self, now: float) -> bool:
        """Returns True if the token is not valid any more."""
        return self.expires_at is not None and now >= self.expires_at


_COLUMNS = "name, role, made_at, expires_at, nodes"


def new_token() -> str:
    """Returns a new random token."""
    return f"coadapt-{secrets.token_urlsafe(32)}"


def token_hash(token: str) -> str:
    """Returns the hash that is stored. A token is random and long, so a fast hash is sufficient."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


class TokenStore:
    """The tokens of a store. Every call is one transaction."""

    def __init__(self, database: Sql) -> None:
        self._database = database

    def add(self, token: Token, hashed: str, who: Attribution | None = None) -> None:
        """Adds a token; InputError if there is one with the same name. ``who``: for the audit log."""
        with self._database.transaction():
            if self._database.rows("SELECT 1 FROM tokens WHERE name = ?", token.name):
                raise InputError(
                    f"a token named {token.name!r} already exists; revoke it first, or choose another name"
                )
            self._database.change(
                "INSERT INTO tokens (name, hash, role, made_at, expires_at, nodes) VALUES (?, ?, ?, ?, ?, ?)",
                token.name,
                hashed,
                token.role,
                token.made_at,
                token.expires_at,
                None if token.nodes is None else " ".join(token.nodes),
            )
            if who is not None:
                record(self._database, who, "token-create", token.name)

    def find(self, hashed: str) -> Token | None:
        """Returns the token with this hash, expired or not; None if there is none."""
        found = self._database.rows(f"SELECT {_COLUMNS} FROM tokens WHERE hash = ?", hashed)
        return _token(found[0]) if found else None

    def all(self) -> list[Token]:
        """Returns all tokens, by name."""
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM tokens ORDER BY name")
        return [_token(row) for row in rows]

    def by_hash(self) -> dict[str, Token]:
        """Returns all tokens by their hashes."""
        rows = self._database.rows(f"SELECT hash, {_COLUMNS} FROM tokens")
        return {str(row[0]): _token(row[1:]) for row in rows}

    def remove(self, name: str, who: Attribution | None = None) -> bool:
        """Removes the token called ``name``; False if there is none. ``who``: for the audit log."""
        with self._database.transaction():
            removed = self._database.change("DELETE FROM tokens WHERE name = ?", name) > 0
            if removed and who is not None:
                record(self._database, who, "token-revoke", name)
            return removed

    def close(self) -> None:
        """Closes the connection."""
        self._database.close()


def bind_nodes(database: Sql, name: str, nodes: Iterable[str]) -> None:
    """Binds a token to ``nodes`` if it is bound to none yet; InputError if it is bound to others. Inside a transaction."""
    found = database.rows(f"SELECT {_COLUMNS} FROM tokens WHERE name = ?", name)
    if not found:
        return  # revoked in this moment: its next request is refused
    bound, asked = _token(found[0]).nodes, list(nodes)
    if bound is None:
        return
    if not bound:
        database.change("UPDATE tokens SET nodes = ? WHERE name = ?", " ".join(asked), name)
        return
    for node in asked:
        if not any(fnmatchcase(node, pattern) for pattern in bound):
            raise InputError(
                f"the token {name} is for node {', '.join(bound)}, not for {node}; an administrator creates another: "
                f"coadapt token create NAME --role node --node {node}"
            )


def _token(row: tuple[object, ...]) -> Token:
    name, role, made_at, expires_at, nodes = row
    return Token(
        name=str(name),
        role=role,  # type: ignore[arg-type]  # nothing else was ever written there
        made_at=float(str(made_at)),
        expires_at=None if expires_at is None else float(str(expires_at)),
        nodes=None if nodes is None else tuple(str(nodes).split()),
    )
