"""``coadapt submit``: a job, with what it will cost and when it will be done, before it is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client
    from coadapt.model import JobSpec
    from coadapt.wire import Option, Preview


def _print_example(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from coadapt.spec import example_file

        click.echo(example_file(), nl=False)
        ctx.exit()


def _print_schema(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from coadapt.spec import schema_file

        click.echo(schema_file(), nl=False)
        ctx.exit()


@click.command("submit", context_settings={"ignore_unknown_options": False})
@click.argument("given", nargs=-1, metavar="[SPEC.yaml] [-- COMMAND...]", type=click.UNPROCESSED)
@click.option("--name", help="What to call it; default by the script.")
@click.option("--gpus", metavar="GPUS", help="For example a100:1..8, t4:4 or 1..8: how many it may have.")
@click.option("--batch", type=click.IntRange(1), help="Batch size the script was made for.")
@click.option(
    "--max-batch", type=click.IntRange(1), help="Largest batch size; with it the batch size adapts."
)
@click.option(
    "--per-gpu-batch",
    metavar="RANGE",
    help="Batch sizes one GPU may have, 32..1024; default: up to --batch on the fewest GPUs.",
)
@click.option("--epochs", type=click.IntRange(1), help="Epochs it trains.")
@click.option("--data-size", type=click.IntRange(1), help="Examples in one pass.")
@click.option("--deadline", metavar="TIME", help='"6h", "tomorrow 9:00".')
@click.option("--target", metavar="GOAL", help='For example "val_acc>=0.93".')
@click.option("--priority", type=click.IntRange(-20, 20), help="Higher goes first.")
@click.option("--retries", type=click.IntRange(0, 100), help="How often a failed job is tried again.")
@click.option("--time-limit", metavar="TIME", help="Most training time.")
@click.option("--after", multiple=True, metavar="JOB", help="Starts when that job has succeeded; repeatable.")
@click.option(
    "--env", "envs", multiple=True, metavar="NAME=VALUE", help="Environment of the job; repeatable."
)
@click.option("--preemptible/--not-preemptible", default=None, help="Whether it may be stopped and moved.")
@click.option("--workdir", metavar="DIR", help="Directory of its code, packed now; default the present one.")
@click.option("--key", help="Submitting twice with the same key is submitting once.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--example",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_example,
    help="Print a job file with every key explained, and exit.",
)
@click.option(
    "--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema,
    help="Print the JSON Schema of a job file, and exit.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what it would mean, and submit nothing.")
@connected
def command(
    client: Client,
    given: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    key: str | None,
    workdir: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Submits a job: SPEC.yaml, or a command behind '--'. Options win over the file.

    \b
    coadapt submit train.yaml
    coadapt submit --gpus t4:1..8 --batch 128 --max-batch 4096 -- python train.py --lr 0.1

    The code in the working directory is packed at submission: later changes do not reach the job.
    """
    import msgspec

    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table
    from coadapt.client import read_submission
    from coadapt.spec import freeze

    job_given = read_submission(given, workdir=workdir, **options)
    spec, frozen = job_given.spec, freeze(job_given.directory)
    preview = _preview(client, spec)
    if not as_json:
        _show(spec, preview, client)
        terminal.say(f"  code: {frozen}", dim=True)
    if dry_run:
        if as_json:
            _job_table.say_json({"spec": spec, "preview": preview})
        return
    _confirm(yes)
    spec = msgspec.structs.replace(spec, code=client.upload(frozen.data))
    job = client.submit(spec, key=key)
    if as_json:
        _job_table.say_json({"job": job, "preview": preview})
    else:
        terminal.say(f"submitted {job}", bold=True)
        terminal.say(f"  coadapt why {job}    coadapt logs -f {job}    coadapt wait {job}", dim=True)


def _preview(client: Client, spec: JobSpec) -> Preview | None:
    from coadapt.client import UnreachableError

    try:
        return client.preview(spec)
    except UnreachableError:
        client.cluster()  # nobody there at all is another matter
        return None


def _show(spec: JobSpec, preview: Preview | None, client: Client) -> None:
    from coadapt import progress
    from coadapt.cli import terminal

    worker = spec.worker
    least, most = worker.min * spec.gpus_per_replica, worker.max * spec.gpus_per_replica
    size = str(least) if least == most else f"{least}..{most}"
    kind = f" {'/'.join(spec.gpu_types)}" if spec.gpu_types else ""
    counted = "GPU" if size == "1" else "GPUs"
    terminal.say(f"{spec.name}: {size}{kind} {counted}, {' '.join(spec.command)[:100]}", bold=True)
    if not spec.preemptible:
        terminal.say("  runs at one size without being stopped (it does not say that it can be)", dim=True)
    if preview is None:
        progress.note("no prediction: the controller cannot look ahead at the moment")
        return
    currency = client.cluster().currency
    rows = [_option_row(each, currency) for each in (preview.chosen, *preview.others)]
    if spec.elastic:
        rows[0][0] = size  # as the policy would move it, beside sizes that stay
    terminal.say_table(["GPUS", "BATCH", "STARTS", "DONE IN", "COST"], rows)
    if preview.sentence:
        terminal.say(f"  {preview.sentence}")
    for note in preview.notes:
        progress.note(note)


def _option_row(option: Option, currency: str) -> list[str]:
    import time

    from coadapt.cli import terminal
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


def _confirm(yes: bool) -> None:
    import sys

    from coadapt.errors import InputError

    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("nobody is there to be asked; submit without asking by -y")
    if not click.confirm("Submit?", default=True):
        raise click.exceptions.Exit(0)
