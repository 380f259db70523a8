"""``coadapt pool``: what a file of past jobs knows."""

from __future__ import annotations

import click


@click.command("pool")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys, and nothing else.")
def command(file: str, as_json: bool) -> None:
    """The past jobs in FILE, which 'coadapt simulate --save-pool FILE' wrote and '--pool FILE' takes.

    Jobs whose names differ in numbers and hashes only are one signature. Work is in useful examples, of jobs without a
    batch size in seconds; work and the cost of a change are medians.
    """
    from coadapt import progress
    from coadapt.cli import terminal
    from coadapt.store import pool_rows, read_pool, too_few_measured

    pool = read_pool(file)
    rows = pool_rows(pool)
    if as_json:
        terminal.say_rows(rows, as_json=True)
        return
    if not rows:
        terminal.say(f"{file} holds no past jobs.")
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
