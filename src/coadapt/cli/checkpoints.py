"""``coadapt checkpoints JOB``: what a job could go on from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client


@click.command("checkpoints")
@click.argument("job")
@connected
def command(client: Client, job: str, as_json: bool) -> None:
    """The checkpoints of a job, the newest first."""
    from coadapt.cli import live_words, show

    found = client.checkpoints(job)
    if as_json:
        live_words.say_json(found)
        return
    if not found:
        show.say(f"{job} has no checkpoint yet.")
        return
    rows = [
        [
            each.name,
            show.count(each.step),
            f"{each.bytes / 2**20:.1f} MiB",
            live_words.ago(each.made_at),
            "whole" if each.whole else "damaged: not used",
        ]
        for each in found
    ]
    show.say_table(["CHECKPOINT", "STEP", "SIZE", "MADE", "STATE"], rows)
