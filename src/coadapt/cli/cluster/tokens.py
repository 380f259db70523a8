"""``coadapt token``: create, list and revoke access tokens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected
from coadapt.cli.parameter_types import DURATION

if TYPE_CHECKING:
    from typing import Literal

    from coadapt.client import Client
    from coadapt.wire import TokenLine


@click.group("token")
def command() -> None:
    """Create, list and revoke access tokens. Administrators only."""


@command.command("list")
@connected
def list_(client: Client, as_json: bool) -> None:
    """List names, roles and expiry of all tokens.

    The tokens themselves are not stored.
    """
    from coadapt.cli.jobs import _job_table

    found = client.tokens()
    if as_json:
        terminal.say_json(found)
        return
    now = time.time()
    rows = [
        [
            each.name,
            each.role,
            _job_table.ago(each.made_at, now),
            "never" if each.expires_at is None else _job_table.ago(each.expires_at, now),
            _nodes(each),
        ]
        for each in found
    ]
    terminal.say_table(["NAME", "ROLE", "CREATED", "EXPIRES", "NODES"], rows, left=2)


def _nodes(token: TokenLine) -> str:
    if token.role != "node":
        return "-"
    return "*" if token.nodes is None else " ".join(token.nodes) or "(of the first machine that joins)"


@command.command("create")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "user", "operator", "admin", "node"]),
    default="user",
    help="Permissions of the owner; node: a machine that joins, and nothing else.",
)
@click.option(
    "--expires-in", type=DURATION, help="Lifetime of the token, for example 30d. Default: unlimited."
)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME",
    help="With --role node: a node that may join with the token; 'gpu-*' for all whose names begin so. May be repeated. "
    "Default: the first machine that joins, and no other.",
)
@connected
def create(
    client: Client,
    name: str,
    role: Literal["admin", "node", "operator", "user", "viewer"],
    expires_in: float | None,
    nodes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create a token for a user and print it.

    It is printed only once. The user sets it as COADAPT_API_TOKEN, a machine that joins as COADAPT_NODE_TOKEN.
    """
    from coadapt import progress
    from coadapt.wire import NewToken

    answer = client.create_token(NewToken(name=name, role=role, expires_in_s=expires_in, nodes=list(nodes)))
    if as_json:
        terminal.say_json(answer)
        return
    terminal.say(answer.token)
    variable = "COADAPT_NODE_TOKEN" if answer.role == "node" else "COADAPT_API_TOKEN"
    progress.note(f"token of {answer.name} ({answer.role}); it is not shown again. Use it as {variable}")


@command.command("revoke")
@click.argument("name")
@connected
def revoke(client: Client, name: str, as_json: bool) -> None:
    """Revoke the token of a user immediately."""
    client.revoke_token(name)
    if as_json:
        terminal.say_json({"name": name, "revoked": True})
    else:
        terminal.say(f"Revoked the token of {name}.")
