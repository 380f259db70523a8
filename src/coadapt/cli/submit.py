"""``coadapt submit``: a job, with what it will cost and when it will be done, before it is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client
    from coadapt.model import JobSpec
    from coadapt.wire.api import Option, Preview


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
@click.option("--retries", type=click.IntRange(0, 1000), help="How often a failed job is tried again.")
@click.option("--time-limit", metavar="TIME", help="Most training time.")
@click.option("--after", multiple=True, metavar="JOB", help="Starts when that job has succeeded; repeatable.")
@click.option(
    "--env", "envs", multiple=True, metavar="NAME=VALUE", help="Environment of the job; repeatable."
)
@click.option("--preemptible/--not-preemptible", default=None, help="Whether it may be stopped and moved.")
@click.option("--workdir", metavar="DIR", help="Directory of its code, packed now; default the present one.")
@click.option("--key", help="Submitting twice with the same key is submitting once.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
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

    from coadapt.cli import live_words, show
    from coadapt.cli.freeze import freeze

    spec, directory = _spec(given, options, workdir)
    frozen = freeze(directory)
    preview = _preview(client, spec)
    if not as_json:
        _show(spec, preview, client)
        show.say(f"  code: {frozen}", dim=True)
    if dry_run:
        if as_json:
            live_words.say_json({"spec": spec, "preview": preview})
        return
    _confirm(yes)
    spec = msgspec.structs.replace(spec, code=client.upload(frozen.data))
    job = client.submit(spec, key=key)
    if as_json:
        live_words.say_json({"job": job, "preview": preview})
    else:
        show.say(f"submitted {job}", bold=True)
        show.say(f"  coadapt why {job}    coadapt logs -f {job}    coadapt wait {job}", dim=True)


def _spec(given: tuple[str, ...], options: dict[str, Any], workdir: str | None) -> tuple[JobSpec, Any]:
    import os
    from pathlib import Path

    from coadapt.cli.job_file import job_spec
    from coadapt.cli.spec_file import read_mapping
    from coadapt.errors import InputError

    files = [each for each in given[:1] if each.endswith((".yaml", ".yml", ".json"))]
    words = given[len(files) :]
    if not files and not words:
        raise InputError(
            "what shall run? give a SPEC.yaml, or a command behind '--': coadapt submit -- python train.py"
        )
    if words and words[0].endswith(".py") and not os.access(words[0], os.X_OK):
        raise InputError(f"{words[0]} is not a program: write coadapt submit -- python {' '.join(words)}")
    mapping = read_mapping(files[0]) if files else {}
    where = files[0] if files else "the command line"
    if words:
        mapping = {**mapping, "run": list(words)}
    if not mapping.get("run"):
        raise InputError(f"{where} has no 'run': what shall be started? for example run: python train.py")
    mapping = _joined(mapping, options)
    directory = Path(workdir or mapping.get("workdir") or (Path(files[0]).parent if files else "."))
    return job_spec(_filled(mapping, where), where=where), directory


def _joined(mapping: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The mapping with what was said by options."""
    from coadapt.errors import InputError

    joined = dict(mapping)
    for name in (
        "name", "epochs", "data_size", "deadline", "target", "priority", "retries", "time_limit", "preemptible",
    ):  # fmt: skip
        if options[name] is not None:
            joined[name] = options[name]
    if options["epochs"] is not None:
        joined.pop("passes", None)
    if options["after"]:
        joined["after"] = list(options["after"])
    if options["gpus"] is not None:
        joined["resources"] = {**(joined.get("resources") or {}), "accelerators": options["gpus"]}
    batch = {
        key: options[name]
        for key, name in (("initial", "batch"), ("max", "max_batch"), ("per_gpu", "per_gpu_batch"))
        if options[name] is not None
    }
    if batch:
        joined["batch"] = {**(joined.get("batch") or {}), **batch}
    envs = dict(joined.get("envs") or {})
    for each in options["envs"]:
        name, sign, value = each.partition("=")
        if not sign or not name:
            raise InputError(f"--env {name!r} has no {'value' if name else 'name'}; write NAME=VALUE")
        envs[name] = value
    return {**joined, "envs": envs} if envs else joined


def _filled(mapping: dict[str, Any], where: str) -> dict[str, Any]:
    """Placeholders of a command that 'coadapt plan' understands, filled in from the specification."""
    import re

    from coadapt.errors import InputError

    run = mapping.get("run")
    if not isinstance(run, str) or not re.search(r"\{(batch_size|epochs|workers|lr|seed)\}", run):
        return mapping
    batch = mapping.get("batch") or {}
    known = {
        "batch_size": batch.get("initial") if isinstance(batch, dict) else None,
        "epochs": mapping.get("epochs") or mapping.get("passes"),
        "lr": mapping.get("lr"),
        "seed": 0,
    }

    def value(match: re.Match[str]) -> str:
        found = known.get(match[1])
        if found is None:
            raise InputError(
                f"{where}: the command needs {{{match[1]}}}, which the specification does not say"
            )
        return str(found)

    return {**mapping, "run": re.sub(r"\{(batch_size|epochs|workers|lr|seed)\}", value, run)}


def _preview(client: Client, spec: JobSpec) -> Preview | None:
    from coadapt.client import UnreachableError

    try:
        return client.preview(spec)
    except UnreachableError:
        client.cluster()  # nobody there at all is another matter
        return None


def _show(spec: JobSpec, preview: Preview | None, client: Client) -> None:
    from coadapt.cli import show

    worker = spec.worker
    least, most = worker.min * spec.gpus_per_replica, worker.max * spec.gpus_per_replica
    size = str(least) if least == most else f"{least}..{most}"
    kind = f" {'/'.join(spec.gpu_types)}" if spec.gpu_types else ""
    counted = "GPU" if size == "1" else "GPUs"
    show.say(f"{spec.name}: {size}{kind} {counted}, {' '.join(spec.command)[:100]}", bold=True)
    if not spec.preemptible:
        show.say("  runs at one size without being stopped (it does not say that it can be)", dim=True)
    if preview is None:
        show.note("no prediction: the controller cannot look ahead at the moment")
        return
    currency = client.cluster().currency
    rows = [_option_row(each, currency) for each in (preview.chosen, *preview.others)]
    if spec.elastic:
        rows[0][0] = size  # as the policy would move it, beside sizes that stay
    show.say_table(["GPUS", "BATCH", "STARTS", "DONE IN", "COST"], rows)
    if preview.sentence:
        show.say(f"  {preview.sentence}")
    for note in preview.notes:
        show.note(note)


def _option_row(option: Option, currency: str) -> list[str]:
    import time

    from coadapt.cli import live_words, show

    now = time.time()
    if option.cost is not None:
        cost = f"{option.cost:,.2f}" + (f" {currency}" if currency else "")
    else:
        cost = show.shown(option.gpu_s, lambda seconds: f"{seconds / 3600:.2f} GPU-h")
    starts = "-" if option.starts_at is None else live_words.ago(option.starts_at, now)
    return [
        str(option.gpus),
        show.shown(option.batch, show.count),
        "now" if option.starts_at is not None and option.starts_at <= now + 1 else starts,
        live_words.until(option.finishes, now),
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
