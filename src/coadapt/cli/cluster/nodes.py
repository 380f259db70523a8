"""``coadapt nodes``, ``drain NODE``, ``quota``: the cluster itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client


@click.command("nodes")
@connected
def nodes(client: Client, as_json: bool) -> None:
    """The nodes, their GPUs, and who is on them."""
    from coadapt.cli.jobs import _job_table

    found = client.nodes()
    if as_json:
        _job_table.say_json(found)
        return
    rows = [
        [
            each.node,
            each.state,
            each.gpu_type,
            f"{each.gpus - each.free} of {each.gpus}",
            ", ".join(f"{job} ({count})" for job, count in each.jobs.items()) or "-",
        ]
        for each in found
    ]
    _job_table.text_columns(("NODE", "STATE", "TYPE", "GPUS USED", "JOBS"), rows, right=(3,))


@click.command("drain")
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let it take replicas again.")
@connected
def drain(client: Client, node: str, undo: bool, as_json: bool) -> None:
    """Lets no new replicas on a node; jobs that may be moved leave it. For administrators."""
    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table

    (client.open if undo else client.drain)(node)
    if as_json:
        _job_table.say_json({"node": node, "request": "open" if undo else "drain"})
    else:
        terminal.say(f"{'opening' if undo else 'draining'} {node}; 'coadapt nodes' shows who is left")
