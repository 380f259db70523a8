"""``coadapt serve``, ``down`` and ``dashboard``: a live cluster on this machine.

``coadapt serve``: a live cluster on this machine.

``coadapt down``: ends everything of a live cluster.

``coadapt dashboard``: a link that signs the local administrator in.
"""

from __future__ import annotations

from typing import Any

import click

from coadapt.cli.connection import home_option
from coadapt.cli.parameter_types import DURATION


@click.command("serve")
@home_option
@click.option(
    "--listen", metavar="HOST:PORT", help="Where the API listens; port 0 picks one. Default 127.0.0.1:8642."
)
@click.option("--policy", help="See 'coadapt policies'. Default coadapt.")
@click.option(
    "--policy-option", "settings", metavar="NAME=VALUE", multiple=True, help="An option of the policy."
)
@click.option("--placement", metavar="NAME", help="Where jobs run; default: the policy's own.")
@click.option(
    "--interval",
    "interval_s",
    type=DURATION,
    help="Decide at multiples of this; default: when something happens.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Of everything random.")
@click.option("--executor", metavar="NAME", help="What runs jobs. Default local: processes on this machine.")
@click.option(
    "--virtual", metavar="4x4:t4", help="Virtual GPUs: real processes, paced; default: this machine's own."
)
@click.option(
    "--gpus", metavar="N", help="How many GPUs (or cores, where there are none) to offer. Default auto: all."
)
@click.option(
    "--store",
    metavar="FILE|URL",
    help="The event store: a file, or postgresql://... Default: a file in the home.",
)
@click.option("--prices", metavar="FILE", help="Price of a GPU-hour by type.")
@click.option("--tls-cert", metavar="FILE", help="To listen elsewhere than on this machine.")
@click.option("--tls-key", metavar="FILE")
@click.option(
    "--webhook", "webhooks", metavar="URL", multiple=True, help="Told of ends, failures, deadlines at risk."
)
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    help="What a job gets to save its state when it is stopped. Default 30s.",
)
@click.option(
    "--liveness",
    "liveness_s",
    type=DURATION,
    help="Replace a controller that makes no progress for so long. Default 60s.",
)
@click.option(
    "--retain",
    metavar="TIME",
    help='How long records are kept at least, for example 30d; "forever" as at first.',
)
@click.option("--detach", is_flag=True, help="Return when it listens; it goes on in the background.")
def serve(home: str | None, detach: bool, settings: tuple[str, ...], **given: Any) -> None:
    """A live cluster on this machine: controller, API and dashboard, until Ctrl-C. Jobs go on afterwards.

    What is not given is as at the last start in the same home.

    \b
    coadapt serve
    coadapt serve --virtual 4x4:t4 --policy pollux --policy-option p=-1 --listen 127.0.0.1:0
    """
    from coadapt.live import home_of, serve, serve_in_background

    start = serve_in_background if detach else serve
    start(home_of(home), settings, given)


@click.command("down")
@home_option
def down(home: str | None) -> None:
    """Stops jobs (each saves its state), keeper, API and controller, and makes sure that nothing is left.

    Jobs that have not ended go on at the next 'coadapt serve'.
    """
    from coadapt.live import end_all, home_of

    for line in end_all(home_of(home)):
        click.echo(line)


@click.command("dashboard")
@home_option
def dashboard(home: str | None) -> None:
    """The address of the dashboard, with a code that signs you in: good for five minutes and one use."""
    from coadapt.live import home_of, sign_in_link

    click.echo(sign_in_link(home_of(home)))
