"""``coadapt why JOB``: the dominant reason in one sentence, who holds what, and what comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client


@click.command("why")
@click.argument("job")
@click.option("--at", "moment", metavar="TIME", help='A moment of the past: "14:05", "2h ago", unix seconds.')
@connected
def command(client: Client, job: str, moment: str | None, as_json: bool) -> None:
    """Why a job waits, has the GPUs it has, was resized, or ended."""
    from coadapt.cli import live_words, show
    from coadapt.cli.moments import parse_past

    answer = client.why(job, at=None if moment is None else parse_past(moment))
    if as_json:
        live_words.say_json(answer)
        return
    show.say(f"{answer.job} is {answer.phase}: {answer.sentence}", bold=True)
    if answer.holders:
        rows = [
            [
                each.job,
                each.user or "-",
                str(each.gpus),
                "-" if each.eta is None else live_words.ago(each.eta),
            ]
            for each in answer.holders
        ]
        show.say()
        show.say_table(["HELD BY", "USER", "GPUS", "ENDS"], rows, left=2)
    if answer.next:
        show.say(f"\n  next: {answer.next}")
    if answer.advice:
        show.say(f"  at risk: {answer.advice}", bold=True)
    if answer.decision is not None and answer.decided_at is not None:
        show.say(f"  by decision {answer.decision}, {live_words.ago(answer.decided_at, answer.at)}", dim=True)
