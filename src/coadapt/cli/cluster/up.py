"""``coadapt up``: turn an allocation of Slurm, a cluster of Ray, or pods of Kubernetes into a cluster."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from coadapt.cli.connection import home_option


@click.command("up")
@click.option("--slurm", is_flag=True, help="Nodes of a Slurm allocation.")
@click.option(
    "--ray",
    metavar="auto|HOST:PORT",
    help="Nodes of the Ray cluster with this head, or of the one that this machine belongs to.",
)
@click.option("--kubernetes", is_flag=True, help="Pods of a Kubernetes namespace.")
@click.option("-n", "--namespace", default="", help="Kubernetes namespace.")
@click.option("--image", default="", help="Container image with coadapt, for Kubernetes.")
@click.option("-p", "--partition", default="", help="Slurm partition.")
@click.option("-N", "--nodes", type=click.IntRange(1, 10_000), default=1, help="Number of nodes.")
@click.option(
    "-t",
    "--time",
    default="",
    metavar="TIME",
    help="Time limit, for example 24h; for Slurm also as it writes it, 1-00:00:00.",
)
@click.option("-A", "--account", default="", help="Slurm account.")
@click.option("--qos", default="", help="Slurm quality of service.")
@click.option("-C", "--constraint", default="", help="Slurm constraint on nodes.")
@click.option("--gres", default="", help="Generic resources of each node, for example gpu:4.")
@click.option(
    "--prelude", default="", help="Shell commands before the agent starts, for example 'module load cuda'."
)
@click.option("--gpus", default="auto", help="Number of GPUs to use on each node.")
@click.option("--virtual", metavar="4:t4", default="", help="Virtual GPUs on each node.")
@click.option(
    "--listen",
    default="",
    metavar="HOST:PORT",
    help="Address at which nodes reach the controller, if it has to be started.",
)
@click.option(
    "--trusted-network",
    default="",
    metavar="10.1.0.0/16",
    help="Private network in which the API may listen without TLS.",
)
@click.option(
    "--renew/--no-renew",
    default=True,
    help="Whether the allocation is renewed before its time limit, while jobs run. Default: yes.",
)
@click.option(
    "--engine-option",
    "engine_settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Option of Ray's or Kubernetes' adapter, for example python=/opt/env/bin/python. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and do nothing.")
@home_option
def up(home: str | None, slurm: bool, ray: str | None, kubernetes: bool, **given: str | int | bool) -> None:
    """Ask an engine for nodes and use them as the cluster. No administrator's rights are needed.

    The controller runs on this machine, and is started if none runs. On Slurm, the allocation is
    renewed before its time limit while jobs run, and jobs move to the new nodes; without new ones they save their state
    in time, and continue when there are nodes again. Ray's nodes are used as jobs need them, beside other
    work in the same Ray.

    \b
    coadapt up --slurm -p gpu -N 4 -t 24h --gres gpu:4 --listen 10.1.0.1:8642 --trusted-network 10.1.0.0/16
    coadapt up --slurm -p gpu -N 4 -t 24h --dry-run
    coadapt up --ray auto --listen 10.1.0.1:8642 --trusted-network 10.1.0.0/16
    coadapt up --kubernetes -n team -N 4 --gpus 8 --image registry.example/coadapt:0.1.0 --listen 10.1.0.1:8642 --trusted-network 10.1.0.0/16
    """
    from coadapt.errors import InputError
    from coadapt.live import home_of, up_kubernetes, up_ray, up_slurm

    place = home_of(home)
    if [slurm, ray is not None, kubernetes].count(True) != 1:
        raise InputError(
            "name one engine: coadapt up --slurm, coadapt up --ray auto, or coadapt up --kubernetes"
        )
    if slurm:
        lines = up_slurm(place, **_taken(given, _SLURM, "--slurm"))
    elif kubernetes:
        lines = up_kubernetes(place, **_taken(given, _KUBERNETES, "--kubernetes"))
    else:
        assert ray is not None
        lines = up_ray(place, ray, **_taken(given, _COMMON | {"engine_settings"}, "--ray"))
    for line in lines:
        click.echo(line)


#: Options that each engine takes.
_COMMON = {"listen", "trusted_network", "dry_run"}
_NODES = {"nodes", "time", "prelude", "gpus", "virtual"}
_SLURM = _COMMON | _NODES | {"partition", "account", "qos", "constraint", "gres", "renew"}
_KUBERNETES = _COMMON | _NODES | {"namespace", "image", "engine_settings"}


def _taken(given: dict[str, str | int | bool], taken: set[str], engine: str) -> dict[str, Any]:
    """The options that an engine takes; InputError if another one was typed."""
    from coadapt.errors import InputError

    context = click.get_current_context()
    foreign = [
        each.opts[-1]
        for each in context.command.params
        if each.name in given
        and each.name not in taken
        and context.get_parameter_source(each.name) is not ParameterSource.DEFAULT
    ]
    if foreign:
        raise InputError(f"{engine} does not take {', '.join(foreign)}")
    return {name: given[name] for name in sorted(taken)}
