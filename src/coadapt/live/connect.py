"""Finds the controller and the credentials to use: by address and token, or by a home directory on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from coadapt.store.home import Home

if TYPE_CHECKING:
    from coadapt.client import Client

ADDRESS, TOKEN = "address", "token"


def cluster_home(given: str | None = None) -> Path:
    """Returns the path of the controller's home directory on this machine."""

    return home_of(given).path


def connect(
    url: str | None = None, token: str | None = None, *, home: str | None = None, ca_file: str | None = None
) -> Client:
    """Returns a client of a controller.

    Args:
        url: address of the controller; None: ``$COADAPT_SERVER``, else the one whose home is on this machine.
        token: API token; None: ``$COADAPT_API_TOKEN``, else the token of the local home.
        home: home directory of a local controller; takes precedence over ``$COADAPT_SERVER``.
        ca_file: certificates to trust; None: ``$COADAPT_CA_FILE``.
    """
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


def home_of(given: str | None) -> Home:
    """Returns the home directory ``given``, or the user's own if None."""
    if given is not None:
        return Home(given)
    from coadapt.store.home import home

    return Home(Path(home()) / "cluster")
