"""``coadapt ps``: the jobs, what they have and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client

#: Jobs that have ended are shown for so long without --all.
_RECENT_S = 3600.0


@click.command("ps")
@click.option("--all", "everything", is_flag=True, help="Also jobs that ended more than an hour ago.")
@click.option("--user", metavar="NAME", help="Jobs of this user only.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Most rows.")
@connected
def ps(client: Client, everything: bool, user: str | None, limit: int, as_json: bool) -> None:
    """The jobs of the cluster: GPUs, batch size, progress, when they end (80% range), cost and why.

    An exclamation mark behind the ETA: the deadline will more likely be missed than met.
    """
    import time

    from coadapt import progress
    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table
    from coadapt.client import ENDED

    now = time.time()
    found = []
    for line in client.all_jobs(user=user):
        old = line.state in ENDED and now - (line.finished_at or now) > _RECENT_S
        if everything or not old:
            found.append(line)
        if len(found) >= limit:
            break
    if as_json:
        _job_table.say_json(found)
        return
    cluster = client.cluster()
    if not found:
        terminal.say("No jobs. Submit one: coadapt submit -- python train.py")
        return
    _job_table.job_table(found, now, cluster.currency)
    used = cluster.gpus - cluster.free_gpus
    terminal.say(f"\n  {used} of {cluster.gpus} GPUs in use; policy {cluster.policy}", dim=True)
    if cluster.controller_age_s is None or cluster.controller_age_s > 15:
        progress.note("the controller is not at work: nothing will change until it is back (coadapt doctor)")
