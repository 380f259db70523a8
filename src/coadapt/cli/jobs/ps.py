"""``coadapt ps``: list jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from coadapt import progress
from coadapt.cli import terminal
from coadapt.cli.connection import connected, same_cluster

if TYPE_CHECKING:
    from coadapt.client import Client

#: Without --all, jobs that ended longer ago are not listed.
_RECENT_S = 3600.0


@click.command("ps")
@click.option("--all", "everything", is_flag=True, help="Include jobs that ended more than an hour ago.")
@click.option("--user", metavar="NAME", help="List only jobs of this user.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, help="Maximum number of rows.")
@connected
def ps(client: Client, everything: bool, user: str | None, limit: int, as_json: bool) -> None:
    """List jobs with their GPUs, batch size, progress, ETA (80% interval), cost and reason.

    "!" after the ETA: the deadline will probably be missed.
    """
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
        terminal.say_json(found)
        return
    cluster = client.cluster()
    if not found:
        terminal.say(
            f"No jobs of {user}."
            if user is not None
            else f"No jobs. Submit one: coadapt submit{same_cluster()} -- python train.py"
        )
        return
    _job_table.job_table(found, now, cluster.currency)
    used = cluster.gpus - cluster.free_gpus
    terminal.say(f"\n  {used} of {cluster.gpus} GPUs in use, policy {cluster.policy}", dim=True)
    if cluster.controller_age_s is None or cluster.controller_age_s > 15:
        progress.note(
            "the controller is not running: no decisions are made until it is back; see 'coadapt doctor'"
        )
