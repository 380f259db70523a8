"""``coadapt top``: show the cluster and its jobs, updated live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected
from coadapt.cli.parameter_types import Finite
from coadapt.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coadapt.client import Client
    from coadapt.wire import ClusterNow, JobLine

_COLOURS = {
    "RUNNING": "green",
    "FAILED": "red",
    "SUCCEEDED": "dim",
    "CANCELLED": "dim",
    "QUEUED": "yellow",
    "PREEMPTED": "yellow",
    "PAUSED": "yellow",
}

#: Minimum width of the column WHY; other columns are left out to make room for it.
_LEAST_WHY = 20
#: Columns that a narrow terminal leaves out, in this order.
_DISPENSABLE = ("COST", "BATCH")
#: Characters per line where the output is not a terminal: more than any row has.
_UNLIMITED = 100_000


@click.command("top")
@click.option("--interval", type=Finite(0.2, 3600), default=2.0, help="Seconds between updates.")
@click.option("--once", is_flag=True, help="Show the current state once and exit.")
@connected
def top(client: Client, interval: float, once: bool, as_json: bool) -> None:
    """Show the cluster and its jobs, updated live until Ctrl-C."""
    if as_json:
        terminal.say_json({"cluster": client.cluster(), "jobs": client.jobs(limit=100).jobs})
        return
    if not once and not sys.stdout.isatty():
        raise InputError("'coadapt top' needs a terminal; use 'coadapt ps' or 'coadapt top --once' instead")
    from rich.console import Console
    from rich.live import Live

    if once and not sys.stdout.isatty():
        # a pipe has no width: nothing is cut
        full = picture(client.cluster(), client.jobs(limit=100).jobs)
        Console(width=_UNLIMITED).print(full)
        return
    console = Console()
    if once:
        console.print(picture(client.cluster(), client.jobs(limit=100).jobs, console.width))
        return
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                rows = max(console.size.height - 6, 5)
                jobs = client.jobs(limit=rows).jobs
                live.update(picture(client.cluster(), jobs, console.width), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def picture(cluster: ClusterNow, jobs: list[JobLine], columns: int | None = None) -> RenderableType:
    """The cluster and its jobs, for a terminal of ``columns`` characters; None: as wide as the longest row."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from coadapt.cli.jobs import _job_table

    used = cluster.gpus - cluster.free_gpus
    width = 30
    full = round(width * used / cluster.gpus) if cluster.gpus else 0
    head = Text.assemble(
        ("GPUs ", "bold"),
        ("█" * full, "green"),
        ("░" * (width - full), "dim"),
        f" {used} of {cluster.gpus}   ",
        "   ".join(f"{state.lower()} {count}" for state, count in cluster.states.items() if count),
    )
    rows = [_job_table.row(line, cluster.now, cluster.currency) for line in jobs]
    left_out = _left_out(rows, columns)
    shown = [at for at, name in enumerate(_job_table.HEADER) if name not in left_out]
    table = Table(box=None, pad_edge=False, expand=columns is not None)
    for at in shown:
        table.add_column(
            _job_table.HEADER[at],
            justify="right" if at in (2, 3, 4, 6) else "left",
            no_wrap=True,
            ratio=1 if columns is not None and at == len(_job_table.HEADER) - 1 else None,
            overflow="ellipsis",
        )
    for line, cells in zip(jobs, rows, strict=True):
        table.add_row(*(Text(cells[at]) for at in shown), style=_COLOURS.get(line.state))
    foot = f"{_job_table.moment(cluster.now)}  policy {cluster.policy}"
    if cluster.controller_age_s is None or cluster.controller_age_s > 15:
        foot += "  THE CONTROLLER IS NOT RUNNING"
    if left_out:
        foot += f"  (too narrow for {', '.join(left_out)})"
    return Group(head, Text(), table, Text(), Text(foot, style="dim"))


def _left_out(rows: list[list[str]], width: int | None) -> list[str]:
    """Columns to leave out on a narrow terminal, so that the others are complete and WHY has room."""
    from coadapt.cli.jobs import _job_table

    if width is None:
        return []
    each = {
        name: max(len(name), *(len(cells[at]) for cells in rows), 0) + 2  # two blanks between columns
        for at, name in enumerate(_job_table.HEADER[:-1])
    }
    dropped: list[str] = []
    for name in _DISPENSABLE:
        if sum(each.values()) + _LEAST_WHY <= width:
            break
        del each[name]
        dropped.append(name)
    return dropped
