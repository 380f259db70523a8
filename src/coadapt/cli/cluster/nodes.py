"""``coadapt nodes`` and ``coadapt drain``: list the nodes, drain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected, same_cluster

if TYPE_CHECKING:
    from coadapt.client import Client
    from coadapt.wire import NodeLine


#: Seconds after which an agent that was not heard is called silent.
_HEARD_S = 20.0


@click.command("nodes")
@connected
def nodes(client: Client, as_json: bool) -> None:
    """List the nodes, their GPUs and the jobs on them."""
    from coadapt.cli.jobs import _job_table

    found = client.nodes()
    if as_json:
        terminal.say_json(found)
        return
    if not found:
        terminal.say("No nodes. A machine joins with 'coadapt node join URL'.")
        return
    if any(each.lease_left_s is not None for each in found):
        rows = [[*_cells(each), _lease(each)] for each in found]
        _job_table.text_columns(("NODE", "STATE", "TYPE", "GPUS USED", "JOBS", "AGENT"), rows, right=(3,))
        return
    rows = [_cells(each) for each in found]
    _job_table.text_columns(("NODE", "STATE", "TYPE", "GPUS USED", "JOBS"), rows, right=(3,))


def _cells(each: NodeLine) -> list[str]:
    return [
        each.node,
        each.state,
        each.gpu_type,
        f"{sum(each.jobs.values())} of {each.gpus}",
        ", ".join(f"{job} ({count})" for job, count in each.jobs.items()) or "-",
    ]


def _lease(each: NodeLine) -> str:
    """When the agent of a machine that joined was heard, in words."""
    if each.lease_left_s is None or each.silent_s is None:
        return "-"
    left = "" if each.remaining_s is None else f", leaves in {each.remaining_s / 60:.0f} min"
    if each.silent_s < _HEARD_S:
        return f"connected{left}"
    if each.lease_left_s > 0:
        return f"silent for {each.silent_s:.0f} s, lease ends in {each.lease_left_s:.0f} s"
    return "silent, lease has ended: waiting until its processes must be gone"


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
