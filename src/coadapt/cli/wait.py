"""``coadapt wait JOB``: returns when the job has ended, with an exit code that tells how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client

_CODES = {"SUCCEEDED": 0, "FAILED": 100, "CANCELLED": 103}
_NOT_FINISHED, _NOT_FOUND = 101, 102


@click.command("wait")
@click.argument("job")
@click.option("--timeout", metavar="TIME", help="Give up after so long, for example 30m.")
@connected
@click.pass_context
def command(ctx: click.Context, client: Client, job: str, timeout: str | None, as_json: bool) -> None:
    """Waits for a job's end. Exit code 0 succeeded, 100 failed, 101 not finished in time, 102 not found, 103 cancelled."""
    from coadapt.cli import live_words, show
    from coadapt.client import NotFoundError
    from coadapt.units import parse_duration

    try:
        line = client.wait(job, timeout_s=None if timeout is None else parse_duration(timeout))
    except NotFoundError as error:
        click.echo(f"coadapt: {error}", err=True)
        ctx.exit(_NOT_FOUND)
    if as_json:
        live_words.say_json(line)
    else:
        more = f": {line.failure}" if line.failure else ""
        show.say(f"{line.job} {line.phase}{more}")
    ctx.exit(_CODES.get(line.phase, _NOT_FINISHED))
