"""``coadapt submit``: submit a job, after a preview of its time and cost."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from coadapt import progress
from coadapt.cli import terminal
from coadapt.cli.connection import connected, same_cluster
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.client import Client
    from coadapt.model import JobSpec
    from coadapt.wire import Option, Preview


def _print_and_exit(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    """Prints the example of a job file, or its JSON Schema."""
    if asked and not ctx.resilient_parsing:
        from coadapt.spec import example_file, schema_file

        click.echo(example_file() if option.name == "example" else schema_file(), nl=False)
        ctx.exit()


@click.command("submit", context_settings={"ignore_unknown_options": False})
@click.argument("given", nargs=-1, metavar="[SPEC.yaml] [-- COMMAND...]", type=click.UNPROCESSED)
@click.option("--name", help="Name of the job. Default: the name of the script.")
@click.option("--gpus", metavar="GPUS", help="Number of GPUs, and their type: a100:1..8, t4:4 or 1..8.")
@click.option("--batch", type=click.IntRange(1), help="Global batch size that the script is tuned for.")
@click.option(
    "--max-batch", type=click.IntRange(1), help="Largest global batch size; enables adaptive batch sizes."
)
@click.option(
    "--per-gpu-batch", metavar="RANGE", help="Batch sizes per GPU, as in 32..1024. Default: up to --batch."
)
@click.option("--epochs", type=click.IntRange(1), help="Number of epochs.")
@click.option("--data-size", type=click.IntRange(1), help="Number of examples in one epoch.")
@click.option("--deadline", metavar="TIME", help='Deadline: "6h", "tomorrow 9:00".')
@click.option("--drop-deadline", is_flag=True, help="If the deadline cannot be promised, submit without it.")
@click.option("--target", metavar="GOAL", help='Metric to reach, for example "val_acc>=0.93".')
@click.option(
    "--priority", type=click.IntRange(-20, 20), help="Priority; jobs with a higher priority go first."
)
@click.option("--retries", type=click.IntRange(0, 100), help="Number of retries after a failure.")
@click.option("--time-limit", metavar="TIME", help="Maximum training time, for example 12h.")
@click.option("--after", multiple=True, metavar="JOB", help="Start after this job has succeeded. Repeatable.")
@click.option("--env", "envs", multiple=True, metavar="NAME=VALUE", help="Environment variable. Repeatable.")
@click.option(
    "--preemptible/--not-preemptible", default=None, help="Whether the job may be stopped and moved."
)
@click.option(
    "--workdir", metavar="DIR", help="Directory of the code, packed at submission. Default: the current one."
)
@click.option("--team", metavar="NAME", help="Team whose quota the job counts for.")
@click.option(
    "--idempotency-key", "key", metavar="KEY", help="Submitting again with the same key does nothing."
)
@click.option("-y", "--yes", is_flag=True, help="Submit without asking for confirmation.")
@click.option(
    "--example",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_and_exit,
    help="Print a job file in which every key is explained, and exit.",
)
@click.option(
    "--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_and_exit,
    help="Print the JSON Schema of job files, and exit.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the preview, and do not submit.")
@connected
def command(
    client: Client,
    given: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    key: str | None,
    workdir: str | None,
    drop_deadline: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit a job: a job file, or a command after '--'. Options override the file.

    \b
    coadapt submit train.yaml
    coadapt submit --gpus t4:1..8 --batch 128 --max-batch 4096 -- python train.py --lr 0.1

    The code in the working directory is packed at submission. Later changes do not affect the job.
    """
    import msgspec

    from coadapt.client import read_submission
    from coadapt.spec import freeze

    if not (yes or dry_run or sys.stdin.isatty()):
        raise InputError("cannot ask for confirmation: standard input is not a terminal; use --yes")
    submission = read_submission(given, workdir=workdir, **options)
    spec, frozen = submission.spec, freeze(submission.directory)
    preview = _preview(client, spec)
    if not as_json:
        _show(spec, preview, client)
        terminal.say(f"  code: {frozen}", dim=True)
    if dry_run:
        if as_json:
            terminal.say_json({"spec": spec, "preview": preview})
        return
    if not yes and not click.confirm("Submit?", default=True, err=as_json):
        raise click.exceptions.Exit(0)
    spec = msgspec.structs.replace(spec, code=client.upload(frozen.data))
    answer = client.submitted(spec, key=key, drop_deadline=drop_deadline)
    job = answer.job
    if as_json:
        terminal.say_json({"job": job, "note": answer.note, "preview": preview})
    else:
        terminal.say(f"Submitted {job}.", bold=True)
        if answer.note:
            progress.note(answer.note)
        next_commands = (f"coadapt {each}{same_cluster()} {job}" for each in ("why", "logs -f", "wait"))
        terminal.say(f"  Next: {'   '.join(next_commands)}", dim=True)


def _preview(client: Client, spec: JobSpec) -> Preview | None:
    from coadapt.client import UnreachableError

    try:
        return client.preview(spec)
    except UnreachableError:
        client.cluster()  # raises if the controller cannot be reached at all
        return None


def _show(spec: JobSpec, preview: Preview | None, client: Client) -> None:
    worker = spec.worker
    least, most = worker.min * spec.gpus_per_replica, worker.max * spec.gpus_per_replica
    size = str(least) if least == most else f"{least}..{most}"
    kind = f" {'/'.join(spec.gpu_types)}" if spec.gpu_types else ""
    counted = "GPU" if size == "1" else "GPUs"
    terminal.say(f"{spec.name}: {size}{kind} {counted}, {' '.join(spec.command)[:100]}", bold=True)
    if not spec.preemptible:
        terminal.say(
            "  Not preemptible: it runs at a fixed size and is not stopped (see --preemptible).", dim=True
        )
    if preview is None:
        progress.note("no prediction: the controller cannot make a forecast at the moment")
        return
    currency = client.cluster().currency
    rows = [_option_row(each, currency) for each in (preview.chosen, *preview.others)]
    if spec.elastic:
        rows[0][0] = size  # resized by the policy; the other rows keep one size
    terminal.say_table(["GPUS", "BATCH", "STARTS", "ENDS IN", "COST"], rows)
    if preview.sentence:
        terminal.say(f"  {preview.sentence}")
    for note in preview.notes:
        progress.note(note)


def _option_row(option: Option, currency: str) -> list[str]:
    from coadapt.cli.jobs import _job_table

    now = time.time()
    if option.cost is not None:
        cost = f"{option.cost:,.2f}" + (f" {currency}" if currency else "")
    else:
        cost = terminal.shown(option.gpu_s, lambda seconds: f"{seconds / 3600:.2f} GPU-h")
    starts = "-" if option.starts_at is None else _job_table.ago(option.starts_at, now)
    return [
        str(option.gpus),
        terminal.shown(option.batch, terminal.count),
        "now" if option.starts_at is not None and option.starts_at <= now + 1 else starts,
        _job_table.until(option.finishes, now),
        cost,
    ]
