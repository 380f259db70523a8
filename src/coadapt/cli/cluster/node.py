"""``coadapt node``: join a controller with this machine; declare a machine gone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from coadapt.cli import terminal
from coadapt.cli.connection import connected
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.client import Client


@click.group("node")
def command() -> None:
    """Join a controller with this machine; declare a machine gone."""


@command.command("join")
@click.argument("url")
@click.option(
    "--token",
    envvar="COADAPT_NODE_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="Token of role node. Other users of this machine can read it on a command line: prefer the variable or a file.",
)
@click.option("--token-file", metavar="FILE", help="File with the token.")
@click.option("--name", metavar="NAME", help="Name of the node. Default: the host name.")
@click.option(
    "--gpus", metavar="N", default="auto", help="Number of GPUs, or of cores if there are none, to offer."
)
@click.option("--virtual", metavar="4:t4", help="Virtual GPUs: real processes at simulated speed.")
@click.option(
    "--address",
    metavar="ADDRESS",
    help="Address at which other machines reach replicas here. Default: the one on the way to the controller.",
)
@click.option(
    "--ca",
    metavar="FILE",
    default="",
    show_default=False,
    help="Certificates to trust, where the controller's is not signed by a known one.",
)
@click.option(
    "--directory", metavar="DIR", help="Directory for output and code. Default: $COADAPT_HOME/nodes/NAME."
)
@click.option(
    "--until",
    metavar="TIME",
    help="When this machine is taken away: a time from now (8h) or a moment (2026-11-18T20:00). Jobs leave it before. "
    "Default: the end of the Slurm job that this runs in, if Slurm says it.",
)
def join(
    url: str,
    token: str | None,
    token_file: str | None,
    name: str | None,
    gpus: str,
    virtual: str | None,
    address: str | None,
    ca: str,
    directory: str | None,
    until: str | None,
) -> None:
    """Offer this machine to the controller at URL, until Ctrl-C. The controller must run with --executor joined.

    Jobs on this machine save their state and end when it leaves, or when the controller has been unreachable for longer
    than its lease. An administrator creates the token: coadapt token create NAME --role node

    \b
    COADAPT_NODE_TOKEN=... coadapt node join https://controller:8642
    """
    from coadapt.executors import join_machine

    code = join_machine(
        url,
        token=token or "",
        token_file=token_file or "",
        name=name or "",
        gpus=gpus,
        virtual=virtual or "",
        address=address or "",
        ca=ca,
        directory=directory or "",
        until=until or "",
    )
    raise SystemExit(code)


@command.command("gone")
@click.argument("node")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connected
def gone(client: Client, node: str, yes: bool, as_json: bool) -> None:
    """Declare that no process is left on the machine of NODE, for example because it is switched off. Administrators only.

    Its jobs start elsewhere at once, without waiting for its lease. If its processes still run, jobs run twice.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("cannot ask for confirmation: standard input is not a terminal; use --yes")
        question = f"Is the machine of {node} switched off, or are all processes of jobs there gone?"
        if not click.confirm(question, default=False, err=as_json):
            raise InputError("nothing was declared")
    client.node_gone(node)
    if as_json:
        terminal.say_json({"node": node, "request": "gone"})
    else:
        terminal.say(f"{node} is gone; its jobs start elsewhere.")
