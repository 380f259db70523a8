"""``coadapt doctor``: whether a live cluster is well, a line for each thing looked at."""

from __future__ import annotations

import json

import click

from coadapt.cli.connection import home_option


@click.command("doctor")
@home_option
@click.option("--full", is_flag=True, help="Fold the whole log, not only from the last snapshots on.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
@click.pass_context
def doctor(ctx: click.Context, home: str | None, full: bool, as_json: bool) -> None:
    """Looks at store, processes, disk, permissions, port, clock and machine. Exit code 1 if anything is bad."""
    from coadapt.live import examine, home_of

    findings = examine(home_of(home), full=full)
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        colours = {"ok": "green", "warn": "yellow", "bad": "red"}
        for finding in findings:
            mark = click.style(f"{finding.verdict:4}", fg=colours[finding.verdict])
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            click.echo(f"{mark}  {finding.subject}: {finding.text}{remedy}")
    ctx.exit(1 if any(finding.verdict == "bad" for finding in findings) else 0)
