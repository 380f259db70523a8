"""``coadapt quota``: show or set the GPU limit of a user or team."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli.connection import connected

if TYPE_CHECKING:
    from coadapt.client import Client


@click.command("quota")
@click.argument("group", required=False)
@click.argument("gpus", required=False)
@connected
def quota(client: Client, group: str | None, gpus: str | None, as_json: bool) -> None:
    """Shows quotas, or sets one: 'coadapt quota alice 8'; 'coadapt quota alice none' lifts it.

    A quota is the most GPUs that jobs of a user or team have together. Setting one is for administrators.
    """
    from coadapt.cli import terminal
    from coadapt.cli.jobs import _job_table
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
            _job_table.say_json({"group": group, "gpus": most})
        else:
            terminal.say(f"quota of {group}: {gpus}")
        return
    found = client.quotas()
    if as_json:
        _job_table.say_json(found)
    elif not found:
        terminal.say("No quotas: everybody may have everything. Set one: coadapt quota alice 8")
    else:
        rows = [[each.group, str(each.used), "-" if each.gpus is None else str(each.gpus)] for each in found]
        terminal.say_table(["GROUP", "USED", "QUOTA"], rows)
