"""Which controller a command talks to, as whom, and the home directory it names.

Which controller a command talks to, and as whom.

By ``--server`` or ``$COADAPT_SERVER``, with the token in ``$COADAPT_API_TOKEN``; else the controller of this machine, whose
home directory (``--home``, else ``cluster`` in coadapt's own) holds its address and the local administrator's token.

The home directory of a live cluster as commands name it, and the option for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def connected(command: _F) -> _F:
    """Gives a command the options that say which controller, and ``--json``; it is called with ``client``."""
    from functools import wraps

    @wraps(command)
    def with_client(*args: Any, server: str | None, home: str | None, **given: Any) -> Any:
        from coadapt import connect

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


home_option = click.option(
    "--home", metavar="DIR", help="Where the cluster keeps everything; default: $COADAPT_HOME/cluster."
)
