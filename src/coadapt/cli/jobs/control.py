"""``coadapt cancel``, ``pause``, ``resume``, ``retry``, ``update`` and ``wait``: change jobs, or wait for their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected
from coadapt.cli.parameter_types import DURATION
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.client import Client

#: Requests: help, and what happens next.
_REQUESTS = {
    "cancel": (
        "Cancel jobs. Running jobs get time to save their state, so that they can be retried.",
        "Cancelling {job}. It stops as soon as it has saved its state, at the latest after the grace period.",
    ),
    "pause": (
        "Pause jobs: they save their state and release their GPUs until 'coadapt resume'.",
        "Pausing {job}. It releases its GPUs as soon as it has saved its state.",
    ),
    "resume": (
        "Resume paused jobs. They continue from their saved state.",
        "Resuming {job}. It starts as soon as the scheduler assigns GPUs to it.",
    ),
    "retry": (
        "Run failed or cancelled jobs again, from their last checkpoint.",
        "Retrying {job}. It starts as soon as the scheduler assigns GPUs to it.",
    ),
}


def _request(name: str) -> click.Command:
    text, message = _REQUESTS[name]

    @click.command(name, help=text)
    @click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
    @connected
    def act(client: Client, jobs: tuple[str, ...], as_json: bool) -> None:
        asked, refused = [], list[InputError]()
        for job in jobs:
            try:
                accepted = getattr(client, name)(job)
            except InputError as error:  # the other jobs are still requested
                refused.append(error)
                continue
            asked.append(job)
            if not as_json:
                terminal.say(accepted.note or message.format(job=job))
        if as_json and (asked or not refused):
            terminal.say_json([{"job": job, "request": name} for job in asked])
        for each in refused[:-1]:
            click.echo(f"coadapt: {each}", err=True)
        if refused:
            raise refused[-1]

    return act


cancel, pause, resume, retry = (_request(name) for name in _REQUESTS)


@click.command("update")
@click.argument("job")
@click.option(
    "--priority", type=click.IntRange(-20, 20), help="Priority; jobs with a higher priority go first."
)
@click.option("--deadline", metavar="TIME", help='New deadline: "6h" from now, "tomorrow 9:00", or "none".')
@click.option("--min-gpus", type=click.IntRange(1), help="Minimum number of GPUs.")
@click.option("--max-gpus", type=click.IntRange(1), help="Maximum number of GPUs.")
@click.option("--time-limit", metavar="TIME", help='Maximum training time, for example 12h, or "none".')
@connected
def update(
    client: Client,
    job: str,
    priority: int | None,
    deadline: str | None,
    min_gpus: int | None,
    max_gpus: int | None,
    time_limit: str | None,
    as_json: bool,
) -> None:
    """Change the priority, deadline, GPU range or time limit of a job that has not ended."""
    import time
    from datetime import datetime

    from coadapt.spec import parse_deadline
    from coadapt.units import parse_duration
    from coadapt.wire import Update

    deadline_s: float | None = None
    if deadline == "none":
        deadline_s = -1.0
    elif deadline is not None:
        # in the specification a deadline counts from submission
        waited_s = time.time() - client.job(job).line.submitted_at
        deadline_s = max(waited_s, 0.0) + parse_deadline(deadline, datetime.now())
    limit_s = None if time_limit is None else -1.0 if time_limit == "none" else parse_duration(time_limit)
    change = Update(
        priority=priority, deadline_s=deadline_s, min_gpus=min_gpus, max_gpus=max_gpus, time_limit_s=limit_s
    )
    if change == Update():
        raise InputError(
            f"nothing to change in {job}; give --priority, --deadline, --min-gpus, --max-gpus or --time-limit"
        )
    client.update(job, change)
    if as_json:
        terminal.say_json({"job": job, "change": change})
    else:
        terminal.say(f"Updating {job}. The change takes effect at the next decision of the scheduler.")


_CODES = {"SUCCEEDED": 0, "FAILED": 100, "CANCELLED": 103}
_NOT_FINISHED, _NOT_FOUND = 101, 102


@click.command("wait")
@click.argument("job")
@click.option("--timeout", type=DURATION, help="Stop waiting after this time, for example 30m.")
@connected
@click.pass_context
def wait(ctx: click.Context, client: Client, job: str, timeout: float | None, as_json: bool) -> None:
    """Wait until a job ends.

    Exit code: 0 succeeded, 100 failed, 101 not finished in time, 102 not found, 103 cancelled.
    """
    from coadapt.client import NotFoundError

    try:
        line = client.wait(job, timeout_s=timeout)
    except NotFoundError as error:
        click.echo(f"coadapt: {error}", err=True)
        ctx.exit(_NOT_FOUND)
    if as_json:
        terminal.say_json(line)
    else:
        more = f": {line.failure}" if line.failure else ""
        terminal.say(f"{line.job} {line.state}{more}")
    ctx.exit(_CODES.get(line.state, _NOT_FINISHED))
