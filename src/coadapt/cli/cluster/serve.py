"""``coadapt serve``, ``down`` and ``dashboard``: run a live cluster on this machine."""

from __future__ import annotations

import os
from typing import Any

import click

from coadapt.cli.connection import home_option, server_option
from coadapt.cli.parameter_types import DURATION


@click.command("serve")
@home_option
@click.option(
    "--listen", metavar="HOST:PORT", help="Address of the API; port 0: any free one. Default: 127.0.0.1:8642."
)
@click.option("--policy", help="Scheduling policy, see 'coadapt policies'. Default: coadapt.")
@click.option(
    "--policy-option",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Option of the policy. Repeatable.",
)
@click.option("--placement", metavar="NAME", help="Placement algorithm. Default: the one of the policy.")
@click.option(
    "--interval",
    "interval_s",
    type=DURATION,
    help="Decide at multiples of this time. Default: at every event.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the random numbers.")
@click.option(
    "--executor",
    metavar="NAME",
    help="What runs jobs: local, processes on this machine (default); joined, machines that run 'coadapt node join'; slurm; ray; kubernetes.",
)
@click.option(
    "--engine-option",
    "engine_settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="Option of the engine, for example partition=gpu for Slurm. Repeatable.",
)
@click.option(
    "--idle",
    "idle_s",
    type=DURATION,
    help="Time for which an engine's nodes that nothing uses are kept. Default: 60s.",
)
@click.option(
    "--lease",
    "lease_s",
    type=DURATION,
    help="Time that jobs on other machines go on while the controller is unreachable. Default: 5m.",
)
@click.option(
    "--checkpoints",
    metavar="DIR",
    help="Directory for checkpoints that all machines see. Default: in the home.",
)
@click.option(
    "--trusted-network",
    metavar="10.1.0.0/16",
    help="Private network in which the API may listen without TLS; everybody in it can read tokens.",
)
@click.option(
    "--virtual", metavar="4x4:t4", help="Virtual GPUs: real processes at simulated speed. Default: real GPUs."
)
@click.option(
    "--gpus", metavar="N", help="Number of GPUs, or of cores if there are none. Default: auto, all."
)
@click.option(
    "--run-as",
    type=click.Choice(["server", "submitter"]),
    help="Unix account of jobs: the one that serves (default), or, if root serves, the submitting user's.",
)
@click.option(
    "--store", metavar="FILE|URL", help="Event store: file or postgresql://... Default: file in the home."
)
@click.option("--prices", metavar="FILE", help="File of prices per GPU-hour, by GPU type.")
@click.option(
    "--tls-cert", metavar="FILE", help="TLS certificate; required unless the API listens on loopback."
)
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate.")
@click.option(
    "--webhook",
    "webhooks",
    metavar="URL",
    multiple=True,
    help="URL to notify of ended and failed jobs and of deadlines at risk. Repeatable.",
)
@click.option(
    "--grace-period", "grace_s", type=DURATION, help="Time for a stopped job to save its state. Default: 30s."
)
@click.option(
    "--liveness",
    "liveness_s",
    type=DURATION,
    help="Replace a controller or API process that makes no progress for this time. Default: 60s.",
)
@click.option(
    "--retain",
    metavar="[WHAT=]TIME",
    multiple=True,
    help="How long records, code, checkpoints or logs are kept: 30d (records), logs=14d. Repeatable. "
    "Default: records=forever, code=30d, checkpoints=forever, logs=14d.",
)
@click.option(
    "--retain-audit",
    metavar="TIME",
    help='Retention of the audit log, for example 90d, or "forever". Default: 400d.',
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="Host name in addresses of the API, for example behind a proxy. Repeatable.",
)
@click.option(
    "--trust-proxy",
    "trust_proxy",
    metavar="ADDRESS",
    multiple=True,
    help='Address or network of a reverse proxy that signs users in, or "none". Repeatable.',
)
@click.option(
    "--proxy-role",
    "proxy_roles",
    metavar="GROUP=ROLE",
    multiple=True,
    help='Role of a group that the proxy names; "*=user": of everybody else. Repeatable.',
)
@click.option(
    "--proxy-user-header", metavar="NAME", help="Header with the user's name. Default: X-Forwarded-User."
)
@click.option(
    "--proxy-groups-header",
    metavar="NAME",
    help="Header with the user's groups, separated by commas. Default: X-Forwarded-Groups.",
)
@click.option(
    "--rate-limit",
    "requests_per_s",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Requests per second of one user. Default: 500.",
)
@click.option("--detach", is_flag=True, help="Run in the background; return when the API listens.")
@click.option(
    "--standby",
    is_flag=True,
    help="Wait beside the cluster of the home directory, and take over if its controller ends or hangs.",
)
def serve(home: str | None, detach: bool, standby: bool, settings: tuple[str, ...], **given: Any) -> None:
    """Run a cluster on this machine: controller, API and dashboard, until Ctrl-C. Jobs keep running afterwards.

    Options you omit keep their values from the previous 'serve' in the same home directory.

    \b
    coadapt serve
    coadapt serve --virtual 4x4:t4 --policy pollux --policy-option p=-1 --listen 127.0.0.1:0
    """
    from coadapt.live import home_of, serve, serve_in_background, serve_standby

    if standby:
        if detach or settings or any(value not in (None, ()) for value in given.values()):
            raise click.UsageError("--standby takes its options from the cluster; give --home only")
        serve_standby(home_of(home))
        return
    start = serve_in_background if detach else serve
    start(home_of(home), settings, given)


@click.command("down")
@home_option
def down(home: str | None) -> None:
    """Stop the jobs (each saves its state), keeper, API and controller, and check that no process is left.

    Unfinished jobs continue at the next 'coadapt serve'.
    """
    from coadapt.live import end_all, home_of

    for line in end_all(home_of(home)):
        click.echo(line)


@click.command("dashboard")
@server_option
@home_option
def dashboard(server: str | None, home: str | None) -> None:
    """Print a link to the dashboard that signs you in. It works once, within five minutes.

    With --server or $COADAPT_SERVER: print the address of the sign-in page of that controller.
    """
    from coadapt.live import home_of, sign_in_link

    url = server or (None if home else os.environ.get("COADAPT_SERVER"))
    if url:
        click.echo(f"{url.rstrip('/')}/sign-in")
        click.echo("Open this page and sign in with your API token, the one in $COADAPT_API_TOKEN.")
        return
    click.echo(sign_in_link(home_of(home)))
