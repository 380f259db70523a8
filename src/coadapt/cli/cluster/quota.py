"""``coadapt quota``: show or set the GPU limit of a user or team."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected, same_cluster
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.client import Client


@click.command("quota")
@click.argument("group", required=False)
@click.argument("gpus", required=False)
@connected
def quota(client: Client, group: str | None, gpus: str | None, as_json: bool) -> None:
    """Show all quotas, or set the quota of a user or team (administrators only).

    A quota is the maximum number of GPUs that the jobs of a user or team hold together.

    \b
    coadapt quota
    coadapt quota alice 8
    coadapt quota alice none
    """
    if group is not None:
        most = _gpus(group, gpus)
        client.set_quota(group, most)
        if as_json:
            terminal.say_json({"group": group, "gpus": most})
        else:
            terminal.say(_changed(group, most))
        return
    found = client.quotas()
    if as_json:
        terminal.say_json(found)
    elif not found:
        terminal.say(f"No quotas are set. Set one: coadapt quota{same_cluster()} alice 8")
    else:
        rows = [[each.group, str(each.used), "-" if each.gpus is None else str(each.gpus)] for each in found]
        terminal.say_table(["GROUP", "GPUS USED", "QUOTA"], rows)


def _changed(group: str, most: int | None) -> str:
    if most is None:
        return f"Removed the quota of {group}."
    return f"The quota of {group} is now {'1 GPU' if most == 1 else f'{most:,} GPUs'}."


def _gpus(group: str, text: str | None) -> int | None:
    if text is None:
        raise InputError(
            f"the number of GPUs for {group} is missing; write 'coadapt quota {group} 8', or 'none' for no limit"
        )
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{text!r} is not a number of GPUs; write a whole number, or 'none'")
    # Python does not parse thousands of digits, and the API refuses ten
    return int((text.lstrip("0") or "0")[:9])
