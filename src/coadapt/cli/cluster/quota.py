"""``coadapt quota``: show or set the GPU limit and the budgets of a user or team, and the members of a team."""

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
@click.option(
    "--priority",
    type=click.IntRange(0, 20),
    help="Up to this priority, jobs come before those of other users. Default 0: among the own jobs only.",
)
@click.option(
    "--deadlines", metavar="N", help="Maximum number of jobs with a deadline that have not ended, or 'none'."
)
@click.option(
    "--members",
    metavar="ada,bob",
    help="Users who may submit jobs of this team, or 'none' to remove the list. Once a team has one, jobs of teams without are refused.",
)
@connected
def quota(
    client: Client,
    group: str | None,
    gpus: str | None,
    priority: int | None,
    deadlines: str | None,
    members: str | None,
    as_json: bool,
) -> None:
    """Show all quotas, or set the quota and the budgets of a user or team (administrators only).

    A quota is the maximum number of GPUs that the jobs of a user or team hold together. What is not given stays as it is.

    \b
    coadapt quota
    coadapt quota alice 8
    coadapt quota alice none
    coadapt quota alice --priority 2 --deadlines 3
    coadapt quota vision 16 --members alice,bob
    """
    if group is not None:
        given: dict[str, int | list[str] | None] = {}
        if gpus is not None or (priority is None and deadlines is None and members is None):
            given["gpus"] = _gpus(group, gpus)
        if priority is not None:
            given["priority"] = priority
        if deadlines is not None:
            given["deadlines"] = _number(deadlines, "a number of jobs")
        if members is not None:
            given["members"] = None if members == "none" else [each.strip() for each in members.split(",")]
        client.set_quota(group, **given)  # type: ignore[arg-type]
        if as_json:
            terminal.say_json({"group": group, **given})
        else:
            for name, value in given.items():
                terminal.say(_changed(group, name, value))
        return
    if priority is not None or deadlines is not None or members is not None:
        raise InputError("the user or team is missing; write 'coadapt quota alice --priority 2'")
    found = client.quotas()
    if as_json:
        terminal.say_json(found)
    elif not found:
        terminal.say(
            f"No quotas for you to see. An administrator sets one: coadapt quota{same_cluster()} alice 8"
        )
    else:
        rows = [
            [
                each.group,
                str(each.used),
                _limit(each.gpus),
                str(each.priority),
                str(each.deadlines_used),
                _limit(each.deadlines),
                "-" if each.members is None else ",".join(each.members),
            ]
            for each in found
        ]
        head = ["GROUP", "GPUS USED", "QUOTA", "PRIORITY", "DEADLINES", "MAX DEADLINES", "MEMBERS"]
        terminal.say_table(head, rows)


def _limit(value: int | None) -> str:
    return "-" if value is None else str(value)


def _changed(group: str, name: str, value: int | list[str] | None) -> str:
    if name == "members" or isinstance(value, list):
        if value is None:
            return f"Team {group} has no list of members now."
        return f"Members of team {group} are now {', '.join(map(str, value))}."  # type: ignore[arg-type]
    if name == "priority":
        if not value:
            return f"Priorities of {group} now count among its own jobs only."
        return f"Priorities of {group} now count against other users up to {value}."
    if name == "deadlines":
        if value is None:
            return f"The number of jobs of {group} with a deadline is not limited now."
        return f"{group} may now have {value:,} job{'' if value == 1 else 's'} with a deadline at a time."
    if value is None:
        return f"Removed the quota of {group}."
    return f"The quota of {group} is now {'1 GPU' if value == 1 else f'{value:,} GPUs'}."


def _gpus(group: str, text: str | None) -> int | None:
    if text is None:
        raise InputError(
            f"the number of GPUs for {group} is missing; write 'coadapt quota {group} 8', or 'none' for no limit"
        )
    return _number(text, "a number of GPUs")


def _number(text: str, what: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{text!r} is not {what}; write a whole number, or 'none'")
    # Python does not parse thousands of digits, and the API refuses ten
    return int((text.lstrip("0") or "0")[:9])
