"""``coadapt cancel``, ``pause``, ``resume``, ``retry``, ``update`` and ``wait``: change jobs, or wait for their end.

``coadapt cancel | pause | resume | retry JOB...``: requests that are carried out by the controller.

``coadapt update JOB``: other priority, deadline, sizes.

``coadapt wait JOB``: returns when the job has ended, with an exit code that tells how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client

_DOES = {
    "cancel": ("Ends jobs for good; they get time to save their state.", "cancelling"),
    "pause": ("Has jobs save their state and hold no GPUs until 'coadapt resume'.", "pausing"),
    "resume": ("Lets paused jobs run again, from where they were.", "resuming"),
    "retry": ("Runs jobs again that failed or were cancelled, from their last checkpoint.", "retrying"),
}


def _made(name: str) -> click.Command:
    text, doing = _DOES[name]

    @click.command(name, help=text)
    @click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
    @connected
    def act(client: Client, jobs: tuple[str, ...], as_json: bool) -> None:
        from coadapt.cli import terminal
        from coadapt.cli.jobs import _job_table
        from coadapt.errors import InputError

        asked, refused = [], list[InputError]()
        for job in jobs:
            try:
                getattr(client, name)(job)
            except InputError as error:  # one wrong name is no reason to leave the others as they are
                refused.append(error)
                continue
            asked.append(job)
            if not as_json:
                terminal.say(f"{doing} {job}")
        if as_json and (asked or not refused):
            _job_table.say_json([{"job": job, "request": name} for job in asked])
        for each in refused[:-1]:
            click.echo(f"coadapt: {each}", err=True)
        if refused:
            raise refused[-1]

    return act


cancel, pause, resume, retry = (_made(name) for name in _DOES)


@click.command("update")
@click.argument("job")
@click.option("--priority", type=click.IntRange(-20, 20), help="Higher goes first.")
@click.option("--deadline", metavar="TIME", help='From now: "6h", "tomorrow 9:00"; "none" lifts it.')
@click.option("--min-gpus", type=click.IntRange(1), help="Fewest GPUs.")
@click.option("--max-gpus", type=click.IntRange(1), help="Most GPUs.")
@click.option("--time-limit", metavar="TIME", help='Most training time, for example 12h; "none" lifts it.')
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
    """Changes what may be changed of a job that has not ended."""
    import time
    from datetime import datetime

    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table
    from coadapt.errors import InputError
    from coadapt.spec import parse_deadline
    from coadapt.units import parse_duration
    from coadapt.wire import Update

    deadline_s: float | None = None
    if deadline == "none":
        deadline_s = -1.0
    elif deadline is not None:
        # the specification counts from submission, people from now
        waited_s = time.time() - client.job(job).line.submitted_at
        deadline_s = max(waited_s, 0.0) + parse_deadline(deadline, datetime.now())
    limit_s = None if time_limit is None else -1.0 if time_limit == "none" else parse_duration(time_limit)
    change = Update(
        priority=priority, deadline_s=deadline_s, min_gpus=min_gpus, max_gpus=max_gpus, time_limit_s=limit_s
    )
    if change == Update():
        raise InputError(
            f"nothing to change of {job}; give --priority, --deadline, --min-gpus, --max-gpus or --time-limit"
        )
    client.update(job, change)
    if as_json:
        _job_table.say_json({"job": job, "change": change})
    else:
        terminal.say(f"updating {job}")


_CODES = {"SUCCEEDED": 0, "FAILED": 100, "CANCELLED": 103}
_NOT_FINISHED, _NOT_FOUND = 101, 102


@click.command("wait")
@click.argument("job")
@click.option("--timeout", metavar="TIME", help="Give up after so long, for example 30m.")
@connected
@click.pass_context
def wait(ctx: click.Context, client: Client, job: str, timeout: str | None, as_json: bool) -> None:
    """Waits for a job's end. Exit code 0 succeeded, 100 failed, 101 not finished in time, 102 not found, 103 cancelled."""
    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table
    from coadapt.client import NotFoundError
    from coadapt.units import parse_duration

    try:
        line = client.wait(job, timeout_s=None if timeout is None else parse_duration(timeout))
    except NotFoundError as error:
        click.echo(f"coadapt: {error}", err=True)
        ctx.exit(_NOT_FOUND)
    if as_json:
        _job_table.say_json(line)
    else:
        more = f": {line.failure}" if line.failure else ""
        terminal.say(f"{line.job} {line.state}{more}")
    ctx.exit(_CODES.get(line.state, _NOT_FINISHED))
