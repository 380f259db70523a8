"""``coadapt doctor``: check a live cluster for problems."""

from __future__ import annotations

import click

from coadapt.cli import terminal
from coadapt.cli.connection import home_option
from coadapt.cli.parameter_types import json_option

_COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}


@click.command("doctor")
@home_option
@click.option(
    "--full", is_flag=True, help="Check the whole event log, not only the part after the last snapshots."
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, home: str | None, full: bool, as_json: bool) -> None:
    """Check store, processes, disk, permissions, port, clock and machine. Exit code 1: a check failed."""
    from coadapt.live import examine, home_of

    findings = examine(home_of(home), full=full)
    if as_json:
        terminal.say_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            mark = click.style(f"{finding.verdict:4}", fg=_COLOURS[finding.verdict])
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            click.echo(f"{mark}  {finding.subject}: {finding.text}{remedy}")
    ctx.exit(1 if any(finding.verdict == "bad" for finding in findings) else 0)
