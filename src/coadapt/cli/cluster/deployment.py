"""``coadapt systemd-unit`` and ``coadapt prometheus-rules``: print files for the operation of a cluster."""

from __future__ import annotations

import getpass

import click

from coadapt.cli.connection import home_option


@click.command("systemd-unit")
@home_option
@click.option("--user", metavar="NAME", help="User of the machine who runs the cluster. Default: you.")
@click.option("--standby", is_flag=True, help="Unit of a standby, which takes over from the first unit.")
def systemd_unit(home: str | None, user: str | None, standby: bool) -> None:
    """Print a unit for systemd that serves the cluster, with the options of its previous start.

    \b
    coadapt systemd-unit --home /var/lib/coadapt --user coadapt > /etc/systemd/system/coadapt.service
    """
    from coadapt.live import home_of, systemd_unit

    place = home_of(home).path
    click.echo(systemd_unit(place, user=user or getpass.getuser(), standby=standby), nl=False)


@click.command("prometheus-rules")
def prometheus_rules() -> None:
    """Print alert rules for Prometheus.

    \b
    coadapt prometheus-rules > /etc/prometheus/rules/coadapt.yml
    """
    from coadapt.live import alert_rules

    click.echo(alert_rules(), nl=False)
