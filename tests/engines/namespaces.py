"""Machines with networks of their own: network namespaces on a bridge. Needs root and ``ip``.

Every set has its own bridge and its own network 10.231.N.0/24, so that several tests can run at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple


class Place(NamedTuple):
    """A namespace: its address, and the command that runs another one in it."""

    name: str
    address: str
    inside: tuple[str, ...]


def why_not() -> str:
    """Why namespaces cannot be had here; empty: they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command ip is not installed"
    probe = f"coadapt-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        _ip("netns", "delete", probe)
        return ""
    return f"network namespaces cannot be made: {made.stderr.strip()}"


@contextmanager
def network(names: Sequence[str]) -> Iterator[tuple[str, list[Place]]]:
    """The address of this machine on a new bridge, and a namespace for each name."""
    number = _bridge()
    bridge, here = f"coadapt{number}", f"10.231.{number}.1"
    made: list[str] = []
    try:
        _ip("addr", "add", f"{here}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        places = []
        for nth, name in enumerate(names):
            space, address = f"coadapt{number}-{name}", f"10.231.{number}.{nth + 2}"
            _ip("netns", "add", space)
            made.append(space)
            _ip("link", "add", f"cv{number}-{nth}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", f"cv{number}-{nth}", "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            places.append(Place(name, address, ("ip", "netns", "exec", space)))
        yield here, places
    finally:
        for space in made:
            _ip("netns", "delete", space)
        _ip("link", "delete", bridge)


def _bridge() -> int:
    """Makes a bridge under the first number that is free."""
    for number in range(256):
        made = subprocess.run(
            ["ip", "link", "add", f"coadapt{number}", "type", "bridge"], capture_output=True, check=False
        )
        if made.returncode == 0:
            return number
    raise AssertionError("no bridge can be made")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
