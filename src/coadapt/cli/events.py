"""``coadapt events``: the log, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client
    from coadapt.wire.api import EventLine


@click.command("events")
@click.argument("job", required=False)
@click.option("--after", type=click.IntRange(-1), default=None, help="Only those behind this number.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="The last so many."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with events as they happen.")
@connected
def command(
    client: Client, job: str | None, after: int | None, limit: int, follow: bool, as_json: bool
) -> None:
    """What happened, in order: of the whole cluster, or of one JOB. With --json one object per line."""
    from collections import deque

    found: deque[EventLine] = deque(maxlen=limit)
    last = -1 if after is None else after
    while True:
        page = client.events(after=last, job=job, limit=1000)
        found.extend(page.events)
        if page.next is None:
            break
        last = page.next
    for event in found:
        _say(event, as_json, job is not None)
    if follow:
        seen = found[-1].seq if found else last
        for event in client.stream(after=seen):
            if job is None or event.job == job:
                _say(event, as_json, job is not None)


def _say(event: EventLine, as_json: bool, of_one: bool) -> None:
    from coadapt.cli import live_words, show

    if as_json:
        import msgspec

        show.echo(msgspec.json.encode(event).decode())
    else:
        # a text speaks of "the job"; which one it is stands before it
        text = f"{event.job}: {event.text}" if event.job and not of_one else event.text
        show.say(f"{event.seq:>7}  {live_words.moment(event.at)}  {event.kind:<17}  {text}")
