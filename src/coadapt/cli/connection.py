"""Which controller a command talks to, and as whom.

By ``--server`` or ``$COADAPT_SERVER``, with the token in ``$COADAPT_API_TOKEN``; else the controller of this machine, whose
home directory (``--home``, else ``cluster`` in coadapt's own) holds its address and the local administrator's token.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from coadapt.client import Client

_F = TypeVar("_F", bound=Callable[..., Any])
ADDRESS, TOKEN = "address", "token"


def cluster_home(given: str | None = None) -> Path:
    """The controller's home directory on this machine."""
    from coadapt.cli.homes import home_of

    return home_of(given).path


def connect(
    url: str | None = None, token: str | None = None, *, home: str | None = None, ca_file: str | None = None
) -> Client:
    """A client; without ``url``, of the controller that ``$COADAPT_SERVER`` names or that runs on this machine."""
    from coadapt.client import Client, UnreachableError

    # a home that was named is meant, whatever the environment says
    url = url or (None if home else os.environ.get("COADAPT_SERVER") or None)
    ca_file = ca_file or os.environ.get("COADAPT_CA_FILE") or None
    if url:
        return Client(
            url, os.environ.get("COADAPT_API_TOKEN", "") if token is None else token, ca_file=ca_file
        )
    where = cluster_home(home)
    try:
        address = (where / ADDRESS).read_text(errors="replace").strip()
    except FileNotFoundError:
        raise UnreachableError(
            f"no controller has been started in {where}; start one by 'coadapt serve', or name one by --server URL"
        ) from None
    if token is None:
        token = os.environ.get("COADAPT_API_TOKEN") or _local_token(where)
    return Client(address, token, ca_file=ca_file)


def _local_token(where: Path) -> str:
    try:
        return (where / TOKEN).read_text(errors="replace").strip()
    except OSError:
        return ""


def connected(command: _F) -> _F:
    """Gives a command the options that say which controller, and ``--json``; it is called with ``client``."""
    from functools import wraps

    @wraps(command)
    def with_client(*args: Any, server: str | None, home: str | None, **given: Any) -> Any:
        with connect(server, home=home) as client:
            return command(*args, client=client, **given)

    for option in (
        click.option(
            "--json", "as_json", is_flag=True, help="Print JSON with stable keys, and nothing else."
        ),
        click.option(
            "--home", metavar="DIR", help="Home of a controller on this machine.", type=click.Path()
        ),
        click.option("--server", metavar="URL", help="Address of a controller; default $COADAPT_SERVER."),
    ):
        with_client = option(with_client)
    return with_client  # type: ignore[return-value]
