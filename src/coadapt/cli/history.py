"""``coadapt history``: import finished runs into the pool of past jobs, and show it."""

from __future__ import annotations

import click

from coadapt.cli import terminal
from coadapt.cli.parameter_types import Finite, json_option
from coadapt.cli.pool import command as show

#: Reasons that are printed one by one.
_NAMED = 5


@click.group("history")
def command() -> None:
    """Import finished runs into the pool of past jobs that --pool takes, and show the pool."""


command.add_command(show, "show")


@command.command("import")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--pool", required=True, metavar="FILE", help="File of the pool; it is made if it does not exist."
)
@click.option("--name", help="Name of the job. Default: that of the run, or of its file.")
@click.option(
    "--gpus",
    metavar="TYPE:NUMBER",
    help="GPUs of the runs, for example a100:8, if their records do not tell.",
)
@click.option("--nodes", type=click.IntRange(1, 1_000_000), help="Nodes of the runs.")
@click.option(
    "--batch", type=Finite(most=1e12, above=0), help="Total batch size, if the records do not tell."
)
@click.option(
    "--data-size", type=Finite(most=1e18, above=0), help="Examples of a pass, if the records do not tell."
)
@json_option
def import_command(
    paths: tuple[str, ...],
    pool: str,
    name: str | None,
    gpus: str | None,
    nodes: int | None,
    batch: float | None,
    data_size: float | None,
    as_json: bool,
) -> None:
    """Add the finished runs in PATH to a pool of past jobs: step times, batch sizes and total work.

    PATH is a training log in any format of docs/logs.md, a TensorBoard event file, a table of runs that W&B or MLflow exports, a
    store of coadapt, or a folder of these. A run that is in the pool already is not added again.

    \b
    coadapt history import runs/ --pool past.json --gpus a100:8
    coadapt history import wandb_export.csv --pool past.json
    coadapt plan job.yaml --pool past.json --deadline 10h
    """
    from coadapt import progress
    from coadapt.errors import InputError
    from coadapt.explain import RunFacts, import_history

    kind, _, count = (gpus or "").partition(":")
    if gpus is not None and not (kind and count.isdigit() and 0 < int(count) <= 1_000_000):
        raise InputError(f"--gpus {gpus!r} is not TYPE:NUMBER, for example a100:8")
    facts = RunFacts(
        name=name,
        gpu_type=kind or None,
        gpus=int(count) if count else None,
        nodes=nodes,
        batch=batch,
        data_size=data_size,
    )
    found = import_history(paths, pool=pool, facts=facts)
    if as_json:
        terminal.say_json(found.to_dict())
        return
    again = f", {found.known} known already" if found.known else ""
    terminal.say(
        f"{terminal.count(found.added)} run{'' if found.added == 1 else 's'} added to {pool}{again}; "
        f"it has {terminal.count(found.jobs)} past job{'' if found.jobs == 1 else 's'}."
    )
    for where, why in found.left_out[:_NAMED]:
        progress.note(f"{where} is left out: {why}")
    if len(found.left_out) > _NAMED:
        progress.note(f"{len(found.left_out) - _NAMED} more are left out; --json names them")
