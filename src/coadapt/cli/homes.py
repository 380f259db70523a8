"""The home directory of a live cluster as commands name it, and the option for it."""

from __future__ import annotations

from pathlib import Path

import click

from coadapt.cluster.home import Home

home_option = click.option(
    "--home", metavar="DIR", help="Where the cluster keeps everything; default: $COADAPT_HOME/cluster."
)


def home_of(given: str | None) -> Home:
    """The one named, or the user's own."""
    if given is not None:
        return Home(given)
    from coadapt.store.home import home

    return Home(Path(home()) / "cluster")
