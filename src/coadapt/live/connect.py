"""Finds the controller and the credentials to use: by address and token, or by a home directory on this machine."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from coadapt.errors import InputError
from coadapt.store.home import Home, home

if TYPE_CHECKING:
    from coadapt.client import Client


def home_of(given: str | None = None) -> Home:
    """Returns the home directory ``given``; None: the default one of this user."""
    return Home(given if given is not None else Path(home()) / "cluster")


def home_flag(place: Home) -> str:
    """Returns the option ``--home DIR`` for hints, with a leading blank; empty for the default home."""
    try:
        default = home_of().path
    except InputError:  # this user has no default home
        default = None
    return "" if place.path == default else f" --home {shlex.quote(str(place.path))}"


def connect(
    url: str | None = None, token: str | None = None, *, home: str | None = None, ca_file: str | None = None
) -> Client:
    """Returns a client of a controller.

    Args:
        url: Address of the controller; None: ``$COADAPT_SERVER``, else the controller whose home is on this machine.
        token: API token; None: ``$COADAPT_API_TOKEN``, else the token in the local home.
        home: Home directory of a local controller; takes precedence over ``$COADAPT_SERVER``.
        ca_file: File of trusted certificates in PEM; None: ``$COADAPT_CA_FILE``.
    """
    from coadapt.client import Client, UnreachableError

    url = url or (None if home else os.environ.get("COADAPT_SERVER") or None)
    ca_file = ca_file or os.environ.get("COADAPT_CA_FILE") or None
    given = os.environ.get("COADAPT_API_TOKEN") if token is None else token
    if url:
        return Client(url, given or "", ca_file=ca_file)
    place = home_of(home)
    try:
        address = place.address.read_text(errors="replace").strip()
    except FileNotFoundError:
        raise UnreachableError(
            f"no controller is running in {place.path}; start one with 'coadapt serve{home_flag(place)}', "
            "or give the address of another with --server URL"
        ) from None
    return Client(address, given or (_local_token(place) if token is None else ""), ca_file=ca_file)


def _local_token(place: Home) -> str:
    try:
        return place.token.read_text(errors="replace").strip()
    except OSError:
        return ""
