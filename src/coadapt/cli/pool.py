"""``coadapt pool``: summarise a file of past jobs."""

from __future__ import annotations

import click

from coadapt.cli import terminal
from coadapt.cli.parameter_types import json_option


@click.command("pool")
@click.argument("file")
@json_option
def command(file: str, as_json: bool) -> None:
    """Summarise the past jobs in FILE, which 'coadapt history import' or 'coadapt simulate --save-pool' wrote for --pool.

    Jobs whose names differ only in numbers and hashes have the same signature. WORK is the median number of useful
    examples, for jobs without a batch size the median number of seconds. CHANGE COST is a median, too.
    """
    from coadapt import progress
    from coadapt.store import pool_rows, read_pool, too_few_measured

    pool = read_pool(file)
    rows = pool_rows(pool)
    if as_json:
        terminal.say_json(rows)
        return
    if not rows:
        terminal.say(f"{file} contains no past jobs.")
        return
    cells = [
        [
            row["signature"] or "-",
            terminal.count(row["jobs"]),
            terminal.count(row["points"]),
            terminal.shown(row["work"], lambda work: f"{work:,.4g}" if work < 1e4 else f"{work:.3g}"),
            terminal.shown(row["change_cost_s"], terminal.duration),
        ]
        for row in rows
    ]
    terminal.say_table(["SIGNATURE", "JOBS", "POINTS", "WORK", "CHANGE COST"], cells)
    if few := too_few_measured(pool):
        progress.note(few)
