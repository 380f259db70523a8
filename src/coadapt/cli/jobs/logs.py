"""``coadapt logs`` and ``coadapt checkpoints``: the output and the checkpoints of a job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client

_LOOK_AGAIN_S = 0.5
#: Bytes read from the end per line of --tail.
_LINE = 200


@click.command("logs")
@click.argument("job")
@click.option(
    "-f", "--follow", is_flag=True, help="Continue until the job ends, across restarts and resizes."
)
@click.option("--rank", type=click.IntRange(0), default=0, help="Rank of the replica.")
@click.option("--stderr", "stream", flag_value="err", help="Show standard error instead of standard output.")
@click.option("--attempt", type=click.IntRange(1), help="Number of the attempt. Default: the latest.")
@click.option("--tail", type=click.IntRange(0), metavar="LINES", help="Show only the last lines.")
@connected
def logs(
    client: Client,
    job: str,
    follow: bool,
    rank: int,
    stream: str | None,
    attempt: int | None,
    tail: int | None,
    as_json: bool,
) -> None:
    """Show the standard output of a job's first replica, or of the replica given by --rank."""

    from coadapt.client import ENDED

    stream = stream or "out"
    offset = 0 if tail is None else -max(tail * _LINE, 1)
    part = client.logs(job, rank=rank, stream=stream, attempt=attempt, offset=offset)
    if as_json:
        terminal.say_json(part)
        return
    _show(_last(part.text, tail))
    newest = part.attempt
    while True:
        if part.ended and not follow:
            return
        more = client.logs(job, rank=rank, stream=stream, attempt=attempt or newest, offset=part.offset)
        if more.text:
            _show(more.text)
            part = more
            continue
        part = more
        if not follow:
            return
        if part.ended:
            line = client.job(job).line
            if line.state in ENDED or attempt is not None:
                return
            if line.attempt > newest:
                newest = line.attempt
                part = client.logs(job, rank=rank, stream=stream, attempt=newest, offset=0)
                _show(part.text)
                continue
        time.sleep(_LOOK_AGAIN_S)


def _show(text: str) -> None:
    """As it was written; on a terminal without what would command the terminal."""
    import sys

    from coadapt.cli import terminal

    terminal.echo(terminal.without_escapes(text) if sys.stdout.isatty() else text, nl=False)


def _last(text: str, lines: int | None) -> str:
    if lines is None:
        return text
    return "".join(text.splitlines(keepends=True)[-lines:]) if lines else ""


@click.command("checkpoints")
@click.argument("job")
@connected
def checkpoints(client: Client, job: str, as_json: bool) -> None:
    """List the checkpoints a job can resume from, the newest first."""
    from coadapt.cli.jobs import _job_table

    found = client.checkpoints(job)
    if as_json:
        terminal.say_json(found)
        return
    if not found:
        terminal.say(f"{job} has no checkpoints yet.")
        return
    rows = [
        [
            each.name,
            terminal.count(each.step),
            f"{each.bytes / 2**20:.1f} MiB",
            _job_table.ago(each.made_at),
            "complete" if each.whole else "damaged, not used",
        ]
        for each in found
    ]
    terminal.say_table(["CHECKPOINT", "STEP", "SIZE", "CREATED", "STATE"], rows)
