"""``coadapt nodes`` and ``coadapt drain``: list the nodes, drain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected, same_cluster

if TYPE_CHECKING:
    from coadapt.client import Client


@click.command("nodes")
@connected
def nodes(client: Client, as_json: bool) -> None:
    """List the nodes, their GPUs and the jobs on them."""
    from coadapt.cli.jobs import _job_table

    found = client.nodes()
    if as_json:
        terminal.say_json(found)
        return
    rows = [
        [
            each.node,
            each.state,
            each.gpu_type,
            f"{sum(each.jobs.values())} of {each.gpus}",
            ", ".join(f"{job} ({count})" for job, count in each.jobs.items()) or "-",
        ]
        for each in found
    ]
    _job_table.text_columns(("NODE", "STATE", "TYPE", "GPUS USED", "JOBS"), rows, right=(3,))


@click.command("drain")
@click.argument("node")
@click.option("--undo", is_flag=True, help="Allow new replicas on the node again.")
@connected
def drain(client: Client, node: str, undo: bool, as_json: bool) -> None:
    """Drain a node: it gets no new replicas, and preemptible jobs leave it. Administrators only."""
    (client.open if undo else client.drain)(node)
    if as_json:
        terminal.say_json({"node": node, "request": "open" if undo else "drain"})
    elif undo:
        terminal.say(f"{node} accepts new replicas again.")
    else:
        terminal.say(f"Draining {node}. 'coadapt nodes{same_cluster()}' shows the jobs that are still on it.")
