"""``coadapt top``: ``ps``, live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected
from coadapt.cli.finite import Finite

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coadapt.client import Client
    from coadapt.wire.api import ClusterNow, JobLine

_COLOURS = {"RUNNING": "green", "FAILED": "red", "SUCCEEDED": "dim", "CANCELLED": "dim", "PENDING": "yellow"}


@click.command("top")
@click.option(
    "--every", type=Finite(0.2, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Show it once and end.")
@connected
def command(client: Client, every: float, once: bool, as_json: bool) -> None:
    """The cluster and its jobs, again and again until Ctrl-C."""
    import sys
    import time

    from coadapt.cli import live_words
    from coadapt.errors import InputError

    if as_json:
        live_words.say_json({"cluster": client.cluster(), "jobs": client.jobs(limit=100).jobs})
        return
    if not once and not sys.stdout.isatty():
        raise InputError("top needs a terminal; 'coadapt ps' or 'coadapt top --once' print to anything")
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if once:
        console.print(picture(client.cluster(), client.jobs(limit=100).jobs))
        return
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                rows = max(console.size.height - 6, 5)
                live.update(picture(client.cluster(), client.jobs(limit=rows).jobs), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        return


def picture(cluster: ClusterNow, jobs: list[JobLine]) -> RenderableType:
    """The cluster and its jobs as they are; also what the demo shows."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from coadapt.cli import live_words

    used = cluster.gpus - cluster.free_gpus
    width = 30
    full = round(width * used / cluster.gpus) if cluster.gpus else 0
    head = Text.assemble(
        ("GPUs ", "bold"),
        ("█" * full, "green"),
        ("░" * (width - full), "dim"),
        f" {used} of {cluster.gpus}   ",
        "   ".join(f"{phase.lower()} {count}" for phase, count in cluster.phases.items() if count),
    )
    table = Table(box=None, pad_edge=False, expand=True)
    for at, name in enumerate(live_words.HEADER):
        last = at == len(live_words.HEADER) - 1
        table.add_column(
            name,
            justify="right" if at in (2, 3, 4, 6) else "left",
            no_wrap=True,
            ratio=1 if last else None,
            overflow="ellipsis",
        )
    for line in jobs:
        table.add_row(
            *(Text(cell) for cell in live_words.row(line, cluster.now, cluster.currency)),
            style=_COLOURS.get(line.phase),
        )
    foot = f"{live_words.moment(cluster.now)}  policy {cluster.policy}"
    if cluster.controller_age_s is None or cluster.controller_age_s > 15:
        foot += "  THE CONTROLLER IS NOT AT WORK"
    return Group(head, Text(), table, Text(), Text(foot, style="dim"))
