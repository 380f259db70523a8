"""``coadapt eta``: when jobs will start and end, by simulating the live cluster forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client


@click.command("eta")
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
@connected
def eta(client: Client, jobs: tuple[str, ...], as_json: bool) -> None:
    """Start and finish of jobs: the live state, simulated forward with the live policy, if nothing more is submitted."""
    import time

    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table
    from coadapt.errors import UnknownNameError

    page = client.eta()
    known = {each.job: each for each in page.jobs}
    for job in jobs:
        if job not in known:
            client.job(job)  # says so where there is none
            raise UnknownNameError("waiting or running job", job, known)
    found = [known[job] for job in jobs] if jobs else page.jobs
    if as_json:
        _job_table.say_json(found)
        return
    if not found:
        terminal.say("No job waits or runs.")
        return
    now = time.time()
    rows = [
        [
            each.job,
            "running" if each.starts_at is not None and each.starts_at <= now else _at(each.starts_at, now),
            _job_table.until(each.finishes, now),
            "-" if each.finishes is None else _job_table.moment(each.finishes.value, now),
            each.note or "-",
        ]
        for each in found
    ]
    _job_table.text_columns(("JOB", "STARTS", "ENDS IN", "AT", "NOTE"), rows)


def _at(at: float | None, now: float) -> str:
    from coadapt.cli.jobs import _job_table

    return "-" if at is None else _job_table.ago(at, now)
