"""Roles and what each may do: the one table that routing, the OpenAPI document, the documents and the tests read."""

from __future__ import annotations

from typing import Literal, get_args

from coadapt.wire.api import TokenRole

#: Who may use a route: everybody; whoever has a role; all but viewers; operators and administrators; administrators;
#: the job itself.
Who = Literal["open", "reader", "writer", "operator", "admin", "job"]
#: From the least permissions to the most.
ROLES: tuple[TokenRole, ...] = ("viewer", "user", "operator", "admin")
#: The roles that may use a route.
PERMITTED: dict[Who, frozenset[TokenRole]] = {
    "open": frozenset(ROLES),
    "reader": frozenset(ROLES),
    "writer": frozenset(ROLES[1:]),
    "operator": frozenset(ROLES[2:]),
    "admin": frozenset(ROLES[3:]),
    "job": frozenset(),
}
#: For the OpenAPI document.
DESCRIPTIONS: dict[Who, str] = {
    "open": "No token is needed.",
    "reader": "For every role; a user sees the own jobs.",
    "writer": "For users, about their own jobs, and for operators and administrators, about all jobs.",
    "operator": "For operators and administrators.",
    "admin": "For administrators.",
    "job": "For the job itself, with its own token.",
}
assert set(ROLES) == set(get_args(TokenRole))


def sees_all(role: TokenRole) -> bool:
    """Returns True if the role sees the jobs of all users."""
    return role != "user"


def changes_all(role: TokenRole) -> bool:
    """Returns True if the role may change the jobs of all users."""
    return role in PERMITTED["operator"]


def highest(roles: list[TokenRole]) -> TokenRole | None:
    """Returns the role with the most permissions; None if there is none."""
    return max(roles, key=ROLES.index, default=None)
