"""``coadapt token``: who may use the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from typing import Literal

    from coadapt.client import Client


@click.group("token")
def command() -> None:
    """Who may use the controller: tokens of users, for administrators."""


@command.command("list")
@connected
def listed(client: Client, as_json: bool) -> None:
    """Names, roles and when they end; tokens themselves are kept nowhere."""
    import time

    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table

    found = client.tokens()
    if as_json:
        _job_table.say_json(found)
        return
    now = time.time()
    rows = [
        [
            each.name,
            each.role,
            _job_table.ago(each.made_at, now),
            "never" if each.expires_at is None else _job_table.ago(each.expires_at, now),
        ]
        for each in found
    ]
    terminal.say_table(["NAME", "ROLE", "MADE", "ENDS"], rows, left=2)


@command.command("make")
@click.argument("name")
@click.option("--role", type=click.Choice(["admin", "user", "viewer"]), default="user", show_default=True)
@click.option("--lives", metavar="TIME", help="How long it is good for, for example 30d; default for ever.")
@connected
def made(
    client: Client, name: str, role: Literal["admin", "user", "viewer"], lives: str | None, as_json: bool
) -> None:
    """Makes a token and shows it once. The user gives it as COADAPT_API_TOKEN."""
    from coadapt import progress
    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table
    from coadapt.units import parse_duration
    from coadapt.wire import NewToken

    new = NewToken(name=name, role=role, lives_s=None if lives is None else parse_duration(lives))
    answer = client.make_token(new)
    if as_json:
        _job_table.say_json(answer)
        return
    terminal.say(answer.token)
    progress.note(f"the token of {answer.name} ({answer.role}), shown this once; use it as COADAPT_API_TOKEN")


@command.command("revoke")
@click.argument("name")
@connected
def revoked(client: Client, name: str, as_json: bool) -> None:
    """Voids a token at once."""
    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table

    client.revoke_token(name)
    if as_json:
        _job_table.say_json({"name": name, "revoked": True})
    else:
        terminal.say(f"the token of {name} is void")
