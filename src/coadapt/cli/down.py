"""``coadapt down``: ends everything of a live cluster."""

from __future__ import annotations

import click

from coadapt.cli.homes import home_of, home_option
from coadapt.cluster.home import Home
from coadapt.wire.serve import ServeOptions


@click.command("down")
@home_option
def command(home: str | None) -> None:
    """Stops jobs (each saves its state), keeper, API and controller, and makes sure that nothing is left.

    Jobs that have not ended go on at the next 'coadapt serve'.
    """
    for line in end_all(home_of(home)):
        click.echo(line)


def end_all(home: Home) -> list[str]:
    """What was ended, in words; CoadaptError if something is left."""
    from coadapt.cluster import ending
    from coadapt.cluster.locks import locked

    if not home.options_file.exists():
        return [f"Nothing runs: {home.path} is no home of a cluster."]
    options = _options(home)
    lines = []
    if ending.end_supervisor(home):
        lines.append("Controller and API have ended.")
    # nobody may start it anew under our hands
    with locked(home.lock, "somebody started 'coadapt serve' again (process {pid}); try again"):
        if ending.end_controller(_owner(home, options)):
            lines.append("A controller without a supervisor has ended.")
        before = [token for token, (_, ended) in ending.tokens_of(home).items() if not ended]
        if ending.end_keeper(home, options.grace_s):
            jobs = (
                "no job ran" if not before else f"{len(before)} running job{'s' * (len(before) > 1)} stopped"
            )
            lines.append(f"The keeper has ended; {jobs}.")
        killed = ending.end_leftovers(ending.tokens_of(home))
        if killed:
            lines.append(f"{len(killed)} processes without a keeper were killed.")
        home.address.unlink(missing_ok=True)
    if before:
        lines.append("Jobs that had not ended go on at the next 'coadapt serve'.")
    return [*lines, "Nothing is left running."] if lines else ["Nothing ran."]


def _options(home: Home) -> ServeOptions:
    """As told; a file that cannot be read must not keep jobs from being stopped."""
    from coadapt.errors import InputError

    try:
        return home.read_options()
    except InputError as error:
        click.echo(f"note: {error}", err=True)
        return ServeOptions()


def _owner(home: Home, options: ServeOptions) -> str | None:
    from contextlib import closing

    from coadapt.errors import InputError
    from coadapt.store import open_store

    try:
        with closing(open_store(home.store(options)).log()) as log:
            holder = log.holder()
    except InputError:
        return None  # a store that cannot be read must not keep jobs from being stopped
    return None if holder is None else holder.owner
