"""Shutdown of a live cluster: ends supervisor, controller and everything that the executor runs, and confirms that
nothing is left.

The supervisor ends first (and with it controller and API), so that no more decisions are made; then everything that
the executor runs, after each job saved its state. The executor confirms that its processes are gone.
"""

from __future__ import annotations

import os

import click

from coadapt.errors import CoadaptError
from coadapt.executors import find_executor
from coadapt.executors.node.keeper_control import PATIENCE_S, end_holder, end_process
from coadapt.executors.node.processes import is_gone
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions


def end_supervisor(home: Home) -> bool:
    """Ends ``coadapt serve`` and its children; False if none ran."""
    return end_holder(home.lock, "supervisor", PATIENCE_S)


def end_controller(owner: str | None) -> bool:
    """Ends a controller that outlived its supervisor, by the name in its lease; False if it is gone."""
    if owner is None or is_gone(owner):
        return False
    host, _, pid, _ = owner.split("/")
    if host != os.uname().nodename:
        raise CoadaptError(f"a controller runs on {host} (process {pid}); run 'coadapt down' there")
    end_process(int(pid), lambda: is_gone(owner), PATIENCE_S)
    return True


def end_all(home: Home) -> list[str]:
    """Ends the cluster; returns what was ended, in words. CoadaptError if a process is left."""
    from coadapt.live.supervisor import locked

    if not home.options_file.exists():
        return [f"Nothing runs: {home.path} is no home of a cluster."]
    options = _options(home)
    lines = []
    if end_supervisor(home):
        lines.append("Controller and API have ended.")
    # it must not be started again meanwhile
    with locked(home.lock, "somebody started 'coadapt serve' again (process {pid}); try again"):
        if end_controller(_owner(home, options)):
            lines.append("A controller without a supervisor has ended.")
        ended = find_executor(options.executor).end(home, options)
        lines += ended.lines
        home.address.unlink(missing_ok=True)
    if ended.unfinished:
        lines.append("Jobs that had not ended go on at the next 'coadapt serve'.")
    return [*lines, "Nothing is left running."] if lines else ["Nothing ran."]


def _options(home: Home) -> ServeOptions:
    """As told; a file that cannot be read must not keep jobs from being stopped."""
    from coadapt.errors import InputError

    try:
        return home.read_options()
    except InputError as error:
        click.echo(f"note: {error}", err=True)
        return ServeOptions()


def _owner(home: Home, options: ServeOptions) -> str | None:
    from contextlib import closing

    from coadapt.errors import InputError
    from coadapt.store import open_store

    try:
        with closing(open_store(home.store(options)).log()) as log:
            holder = log.holder()
    except InputError:
        return None  # a store that cannot be read must not keep jobs from being stopped
    return None if holder is None else holder.owner
