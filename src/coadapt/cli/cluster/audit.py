"""``coadapt audit``: who changed what, when and from where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client
    from coadapt.wire import AuditLine

#: Entries of one request.
_PAGE = 1000


@click.command("audit")
@click.option("--user", metavar="NAME", help="Show only what this user did.")
@click.option("--job", metavar="JOB", help="Show only what was done to this job.")
@click.option("--about", metavar="NAME", help="Show only what was done to this node, group or token.")
@click.option(
    "--since",
    metavar="TIME",
    help='Show only entries since "14:05", "2h ago", "2026-11-15", or Unix seconds.',
)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, help="Number of newest entries to show."
)
@connected
def audit(
    client: Client,
    user: str | None,
    job: str | None,
    about: str | None,
    since: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show who changed what: submissions, cancellations, changes, quotas, nodes, tokens, sign-ins and refusals.

    Operators and administrators only. Entries cannot be changed.

    \b
    coadapt audit --since 2h\\ ago
    coadapt audit --job train-7
    coadapt audit --user ada --json
    """
    from coadapt.cli.jobs import _job_table
    from coadapt.spec import parse_past

    if job and about:
        raise click.UsageError("--job and --about exclude each other")
    moment = None if since is None else parse_past(since)
    found: list[AuditLine] = []
    before: int | None = None
    while len(found) < limit:
        page = client.audit(
            user=user, subject=job or about, since=moment, before=before, limit=min(limit - len(found), _PAGE)
        )
        found += page.entries
        before = page.next
        if before is None:
            break
    found.reverse()
    if as_json:
        terminal.say_json(found)
    elif not found:
        terminal.say("No entries.")
    else:
        rows = [
            [
                _job_table.moment(each.at),
                each.user or "-",
                each.role or "-",
                each.address or "this machine",
                each.action,
                each.subject or "-",
                each.detail,
            ]
            for each in found
        ]
        terminal.say_table(["TIME", "USER", "ROLE", "FROM", "ACTION", "SUBJECT", "DETAIL"], rows, left=7)
