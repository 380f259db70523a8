"""Options that say which controller or home directory a command uses.

``--server`` or ``$COADAPT_SERVER``, with the token in ``$COADAPT_API_TOKEN``; otherwise the controller of this machine,
whose home directory (``--home``) holds its address and the token of the local administrator.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from coadapt.cli.parameter_types import json_option

_F = TypeVar("_F", bound=Callable[..., Any])

home_option = click.option(
    "--home", metavar="DIR", help="Home directory of the cluster. Default: $COADAPT_HOME/cluster."
)
server_option = click.option(
    "--server", metavar="URL", help="Address of the controller. Default: $COADAPT_SERVER, else this machine."
)


def connected(command: _F) -> _F:
    """Adds ``--server``, ``--home`` and ``--json`` to a command, and calls it with a ``client``."""

    @wraps(command)
    def with_client(*args: Any, server: str | None, home: str | None, **given: Any) -> Any:
        from coadapt import connect

        with connect(server, home=home) as client:
            return command(*args, client=client, **given)

    return server_option(home_option(json_option(with_client)))  # type: ignore[return-value]


def same_cluster() -> str:
    """The options ``--server`` and ``--home`` of the running command, to be repeated in a hint; begins with a blank."""
    given = click.get_current_context().params
    return "".join(f" --{name} {shlex.quote(given[name])}" for name in ("server", "home") if given.get(name))
