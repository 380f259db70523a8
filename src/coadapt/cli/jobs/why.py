"""``coadapt why`` and ``coadapt events``: why a job has what it has, and what happened.

``coadapt why JOB``: the dominant reason in one sentence, who holds what, and what comes next.

``coadapt events``: the log, in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client
    from coadapt.wire import EventLine


@click.command("why")
@click.argument("job")
@click.option("--at", "moment", metavar="TIME", help='A moment of the past: "14:05", "2h ago", unix seconds.')
@connected
def why(client: Client, job: str, moment: str | None, as_json: bool) -> None:
    """Why a job waits, has the GPUs it has, was resized, or ended."""
    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table
    from coadapt.spec import parse_past

    answer = client.why(job, at=None if moment is None else parse_past(moment))
    if as_json:
        _job_table.say_json(answer)
        return
    terminal.say(f"{answer.job} is {answer.state}: {answer.sentence}", bold=True)
    if answer.holders:
        rows = [
            [
                each.job,
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
        terminal.say(f"  at risk: {answer.advice}", bold=True)
    if answer.decision is not None and answer.decided_at is not None:
        terminal.say(
            f"  by decision {answer.decision}, {_job_table.ago(answer.decided_at, answer.at)}", dim=True
        )


@click.command("events")
@click.argument("job", required=False)
@click.option("--after", type=click.IntRange(-1), default=None, help="Only those behind this number.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="The last so many."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with events as they happen.")
@connected
def events(
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
    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table

    if as_json:
        import msgspec

        terminal.echo(msgspec.json.encode(event).decode())
    else:
        # a text speaks of "the job"; which one it is stands before it
        text = f"{event.job}: {event.text}" if event.job and not of_one else event.text
        terminal.say(f"{event.seq:>7}  {_job_table.moment(event.at)}  {event.kind:<17}  {text}")
