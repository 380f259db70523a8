"""``coadapt eta``: forecast when jobs start and end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected
from coadapt.errors import UnknownNameError

if TYPE_CHECKING:
    from coadapt.client import Client


@click.command("eta")
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@connected
def eta(client: Client, jobs: tuple[str, ...], as_json: bool) -> None:
    """Forecast when jobs start and end.

    The forecast simulates the current state of the cluster with its policy, assuming that no more jobs are submitted.
    """
    from coadapt.cli.jobs import _job_table

    page = client.eta()
    known = {each.job: each for each in page.jobs}
    for job in jobs:
        if job not in known:
            client.job(job)  # raises a NotFoundError if there is no such job
            raise UnknownNameError("unfinished job", job, known)
    found = [known[job] for job in jobs] if jobs else page.jobs
    if as_json:
        terminal.say_json(found)
        return
    if not found:
        terminal.say("No jobs are waiting or running.")
        return
    now = time.time()
    rows = [
        [
            each.job,
            "-"
            if each.starts_at is None
            else "running"
            if each.starts_at <= now
            else _job_table.ago(each.starts_at, now),
            _job_table.until(each.finishes, now),
            "-" if each.finishes is None else _job_table.moment(each.finishes.value, now),
            each.note or "-",
        ]
        for each in found
    ]
    _job_table.text_columns(("JOB", "STARTS", "ENDS IN", "AT", "NOTE"), rows)
    if page.note:
        terminal.say(f"\n{page.note}")
