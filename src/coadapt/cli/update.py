"""``coadapt update JOB``: other priority, deadline, sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client


@click.command("update")
@click.argument("job")
@click.option("--priority", type=click.IntRange(-20, 20), help="Higher goes first.")
@click.option("--deadline", metavar="TIME", help='From now: "6h", "tomorrow 9:00"; "none" lifts it.')
@click.option("--min-gpus", type=click.IntRange(1), help="Fewest GPUs.")
@click.option("--max-gpus", type=click.IntRange(1), help="Most GPUs.")
@click.option("--time-limit", metavar="TIME", help='Most training time, for example 12h; "none" lifts it.')
@connected
def command(
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

    from coadapt.cli import live_words, show
    from coadapt.cli.plan_words import parse_deadline
    from coadapt.errors import InputError
    from coadapt.units import parse_duration
    from coadapt.wire.api import Update

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
        live_words.say_json({"job": job, "change": change})
    else:
        show.say(f"updating {job}")
