"""``coadapt backup``: copy the event store while it is in use."""

from __future__ import annotations

from pathlib import Path

import click

from coadapt.cli.connection import home_option


@click.command("backup")
@click.argument("file")
@home_option
def backup(file: str, home: str | None) -> None:
    """Copy event log, inbox and tokens to FILE, as of one moment. The cluster keeps running.

    \b
    To restore: coadapt serve --home NEW --store FILE
    """
    from coadapt.live import home_of
    from coadapt.store import open_store

    place = home_of(home)
    target = Path(file).absolute()
    open_store(place.store(place.read_options())).backup(target)
    click.echo(f"Wrote {target} ({target.stat().st_size:,} bytes).")
