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
    from coadapt.cli import live_words

    found = client.nodes()
    if as_json:
        live_words.say_json(found)
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
    live_words.text_columns(("NODE", "STATE", "TYPE", "GPUS USED", "JOBS"), rows, right=(3,))


@click.command("drain")
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let it take replicas again.")
@connected
def drain(client: Client, node: str, undo: bool, as_json: bool) -> None:
    """Lets no new replicas on a node; jobs that may be moved leave it. For administrators."""
    from coadapt.cli import live_words, show

    (client.open if undo else client.drain)(node)
    if as_json:
        live_words.say_json({"node": node, "request": "open" if undo else "drain"})
    else:
        show.say(f"{'opening' if undo else 'draining'} {node}; 'coadapt nodes' shows who is left")


@click.command("quota")
@click.argument("group", required=False)
@click.argument("gpus", required=False)
@connected
def quota(client: Client, group: str | None, gpus: str | None, as_json: bool) -> None:
    """Shows quotas, or sets one: 'coadapt quota alice 8'; 'coadapt quota alice none' lifts it.

    A quota is the most GPUs that jobs of a user or team have together. Setting one is for administrators.
    """
    from coadapt.cli import live_words, show
    from coadapt.errors import InputError

    if group is not None and gpus is None:
        raise InputError(
            f"how many GPUs for {group}? write 'coadapt quota {group} 8', or 'none' for no limit"
        )
    if group is not None and gpus is not None:
        if (gpus != "none" and not gpus.isascii()) or not (gpus == "none" or gpus.isdigit()):
            raise InputError(f"{gpus!r} is not a number of GPUs; write a whole number, or 'none'")
        # of thousands of digits Python makes no number, and the API has no use for ten
        most = None if gpus == "none" else int((gpus.lstrip("0") or "0")[:9])
        client.set_quota(group, most)
        if as_json:
            live_words.say_json({"group": group, "gpus": most})
        else:
            show.say(f"quota of {group}: {gpus}")
        return
    found = client.quotas()
    if as_json:
        live_words.say_json(found)
    elif not found:
        show.say("No quotas: everybody may have everything. Set one: coadapt quota alice 8")
    else:
        rows = [[each.group, str(each.used), "-" if each.gpus is None else str(each.gpus)] for each in found]
        show.say_table(["GROUP", "USED", "QUOTA"], rows)
