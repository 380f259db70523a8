"""``coadapt dashboard``: a link that signs the local administrator in."""

from __future__ import annotations

import click

from coadapt.cli.homes import home_of, home_option


@click.command("dashboard")
@home_option
def command(home: str | None) -> None:
    """The address of the dashboard, with a code that signs you in: good for five minutes and one use."""
    from coadapt.client.transport import UnreachableError
    from coadapt.server.once import link

    place = home_of(home)
    if not place.address.exists():
        raise UnreachableError(f"nothing serves {place.path}; start it with 'coadapt serve'")
    click.echo(link(place))
