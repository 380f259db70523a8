"""``coadapt why`` and ``coadapt events``: explain the state of a job, and show the event log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client
    from coadapt.wire import EventLine


@click.command("why")
@click.argument("job")
@click.option(
    "--at", "moment", metavar="TIME", help='Past time to explain: "14:05", "2h ago", or Unix seconds.'
)
@connected
def why(client: Client, job: str, moment: str | None, as_json: bool) -> None:
    """Explain why a job waits, runs on its GPUs, was resized, or ended."""
    from coadapt.cli.jobs import _job_table
    from coadapt.spec import parse_past

    answer = client.why(job, at=None if moment is None else parse_past(moment))
    if as_json:
        terminal.say_json(answer)
        return
    terminal.say(f"{answer.job} ({answer.state}): {answer.sentence}", bold=True)
    if answer.holders:
        rows = [
            [
                each.job or "(others)",
                each.user or "-",
                str(each.gpus),
                "-" if each.eta is None else _job_table.ago(each.eta),
            ]
            for each in answer.holders
        ]
        terminal.say()
        terminal.say_table(["HELD BY", "USER", "GPUS", "ENDS"], rows, left=2)
    if answer.next:
        terminal.say(f"\n  next: {answer.next}")
    if answer.advice:
        terminal.say(f"  {answer.advice[:1].lower()}{answer.advice[1:]}", bold=True)
    if answer.decision is not None and answer.decided_at is not None:
        terminal.say(
            f"  by decision {answer.decision}, {_job_table.ago(answer.decided_at, answer.at)}", dim=True
        )


@click.command("events")
@click.argument("job", required=False)
@click.option("--after", type=click.IntRange(-1), default=None, help="Show only events after this number.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, help="Number of most recent events to show."
)
@click.option("-f", "--follow", is_flag=True, help="Continue with new events as they happen.")
@connected
def events(
    client: Client, job: str | None, after: int | None, limit: int, follow: bool, as_json: bool
) -> None:
    """Show the events of the cluster, or of one JOB, in order. With --json, one object per line."""
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
    from coadapt.cli.jobs import _job_table

    if as_json:
        import msgspec

        terminal.echo(msgspec.json.encode(event).decode())
    else:
        # texts say "the job", so its name is put in front
        text = f"{event.job}: {event.text}" if event.job and not of_one else event.text
        terminal.say(f"{event.seq:>7}  {_job_table.moment(event.at)}  {event.kind:<17}  {text}")
