"""Stops a live cluster and confirms that no process is left.

The supervisor is stopped first, with controller and API, so that no more decisions are made; then everything that the
executor runs, after each job has saved its state. The executor confirms that its processes have ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from coadapt import progress
from coadapt.errors import CoadaptError, InputError
from coadapt.executors import AgentsListed, HubAwayError, ListAgents, ask_hub, find_executor
from coadapt.executors.node.keeper_shutdown import PATIENCE_S, end_holder, end_process
from coadapt.executors.node.processes import is_gone
from coadapt.live.connect import home_flag
from coadapt.live.pilot_renewal import end_pilots
from coadapt.live.supervisor import locked
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions


def end_supervisor(home: Home) -> bool:
    """Stops ``coadapt serve`` and its children; returns False if it was not running."""
    return end_holder(home.lock, "supervisor", PATIENCE_S)


def end_controller(owner: str | None) -> bool:
    """Stops a controller that outlived its supervisor, by the owner in its lease; returns False if it has ended."""
    if owner is None or is_gone(owner):
        return False
    host, _, pid, _ = owner.split("/")
    if host != os.uname().nodename:
        raise CoadaptError(
            f"the controller runs on {host} (process {pid}); run 'coadapt down' on that machine"
        )
    end_process(int(pid), lambda: is_gone(owner), PATIENCE_S)
    return True


def end_all(home: Home) -> list[str]:
    """Stops the cluster and returns messages about what was stopped; raises a CoadaptError if a process is left."""
    if not home.options_file.exists():
        return [f"Nothing to stop: {home.path} is not the home directory of a cluster."]
    options = _options(home)
    lines = []
    # first: it would take over
    if end_holder(home.standby_lock, "standby", PATIENCE_S):
        lines.append("Stopped the standby.")
    if end_supervisor(home):
        lines.append("Stopped controller and API.")
    # keeps the cluster from being started again meanwhile
    with locked(
        home.lock, "'coadapt serve' was started again meanwhile (process {pid}); run 'coadapt down' again"
    ):
        if end_controller(_owner(home, options)):
            lines.append("Stopped a controller that had no supervisor.")
        with _api_for_agents(home, options):
            ended = find_executor(options.executor).end(home, options)
            pilots = end_pilots(home)
        lines += [*ended.lines, *pilots]
        home.address.unlink(missing_ok=True)
    if ended.unfinished:
        lines.append(f"Unfinished jobs continue at the next 'coadapt serve{home_flag(home)}'.")
    return [*lines, "Nothing is left running."] if lines else ["Nothing was running."]


def _has_units(home: Home) -> bool:
    """Whether agents run in rooms of an engine, which they are to leave."""
    try:
        listed = ask_hub(home.hub, ListAgents())
    except HubAwayError:
        return False
    return isinstance(listed, AgentsListed) and any(each.unit for each in listed.agents)


@contextmanager
def _api_for_agents(home: Home, options: ServeOptions) -> Iterator[None]:
    """Runs the API while jobs end on other machines, whose agents reach the hub through it."""
    if options.executor == "local" or not (
        find_executor(options.executor).running_jobs(home, options) or _has_units(home)
    ):
        yield
        return
    with home.log("api").open("ab") as log:
        api = subprocess.Popen(
            [sys.executable, "-m", "coadapt.server", str(home.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        api.terminate()
        api.wait()


def _options(home: Home) -> ServeOptions:
    """Reads the options; defaults if the file cannot be read, because jobs must be stopped in any case."""
    try:
        return home.read_options()
    except InputError as error:
        progress.note(str(error))
        return ServeOptions()


def _owner(home: Home, options: ServeOptions) -> str | None:
    from coadapt.store import open_store

    try:
        with closing(open_store(home.store(options)).log()) as log:
            holder = log.holder()
    except InputError:
        return None  # jobs must be stopped even if the store cannot be read
    return None if holder is None else holder.owner
