"""``coadapt logs`` and ``coadapt checkpoints``: what a job wrote.

``coadapt logs [-f] JOB``: what a replica wrote.

``coadapt checkpoints JOB``: what a job could go on from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client

_LOOK_AGAIN_S = 0.5
#: A page of the end that is read for --tail, in bytes per line.
_LINE = 200


@click.command("logs")
@click.argument("job")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the job has ended, over restarts and resizes."
)
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Which replica.")
@click.option("--err", "stream", flag_value="err", help="Standard error instead of standard output.")
@click.option("--attempt", type=click.IntRange(1), help="An earlier attempt; default the newest.")
@click.option("--tail", type=click.IntRange(0), metavar="LINES", help="Only the last lines.")
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
    """Standard output of a job's first replica, or of another, or its standard error."""
    import time

    from coadapt.cli.jobs import _job_table
    from coadapt.client import ENDED

    stream = stream or "out"
    offset = 0 if tail is None else -max(tail * _LINE, 1)
    part = client.logs(job, rank=rank, stream=stream, attempt=attempt, offset=offset)
    if as_json:
        _job_table.say_json(part)
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
            if line.phase in ENDED or attempt is not None:
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
    """The checkpoints of a job, the newest first."""
    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table

    found = client.checkpoints(job)
    if as_json:
        _job_table.say_json(found)
        return
    if not found:
        terminal.say(f"{job} has no checkpoint yet.")
        return
    rows = [
        [
            each.name,
            terminal.count(each.step),
            f"{each.bytes / 2**20:.1f} MiB",
            _job_table.ago(each.made_at),
            "whole" if each.whole else "damaged: not used",
        ]
        for each in found
    ]
    terminal.say_table(["CHECKPOINT", "STEP", "SIZE", "MADE", "STATE"], rows)
