"""The supervisor's process: prepares the home, keeps controller and API alive, says what the user needs to know."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import click

from coadapt.cluster.home import Home, write_private
from coadapt.cluster.locks import locked, pid_in
from coadapt.cluster.supervisor import Child, Supervisor
from coadapt.errors import CoadaptError, InputError
from coadapt.wire.serve import ServeOptions

#: Seconds that a start in the background may take.
_DETACH_S = 120.0


def serve(home: Home, options_of: Callable[[], ServeOptions]) -> None:
    """Until SIGTERM or Ctrl-C."""
    from coadapt.cli.serve_options import resolved

    home.make()
    refusal = (
        f"{home.path} is served already, by process {{pid}}; 'coadapt down' ends it, --home names another"
    )
    with locked(home.lock, refusal):
        # one that was killed has left it behind
        home.address.unlink(missing_ok=True)
        options = resolved(options_of())
        # a store that will not do is said now: what is written is what the next serve begins with
        ensure_token(home, options)
        home.write_options(options)
        supervisor = Supervisor(children_of(home), _say)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: supervisor.stop())
        supervisor.run(_Greeting(home, options))
        home.address.unlink(missing_ok=True)
    _say(_farewell(home))


def children_of(home: Home) -> list[Child]:
    """The API first: what it promised before it ended is in the inbox when the controller ends."""
    modules = {"api": "coadapt.server", "controller": "coadapt.cli.controller_process"}
    return [
        Child(name, [sys.executable, "-m", module, str(home.path)], home.log(name))
        for name, module in modules.items()
    ]


def ensure_token(home: Home, options: ServeOptions) -> None:
    """The local admin's token, made at the first start; the store has its hash. InputError if it is another home's store."""
    from coadapt.store import open_store
    from coadapt.store.tokens import Token, new_token, token_hash

    store = open_store(home.store(options))
    with closing(store.log()) as log:
        log.bind(home.identity)
    with closing(store.tokens()) as tokens:
        if home.token.exists():
            known = tokens.find(token_hash(home.token.read_text(errors="replace").strip()))
            if known is not None and not known.expired(time.time()):
                return
        name, token = getpass.getuser(), new_token()
        tokens.remove(name)
        write_private(home.token, f"{token}\n".encode())
        tokens.add(Token(name=name, role="admin", made_at=time.time()), token_hash(token))


def detached(home: Home) -> None:
    """Starts the same command in the background and waits until it listens."""
    arguments = [each for each in sys.argv[1:] if each != "--detach"]
    home.make()
    log, before = home.log("serve"), _identity(home.address)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "coadapt.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        # an address that a killed one has left behind is not the new one's, nor is that of one started beside it
        _until(
            lambda: _identity(home.address) not in (None, before) and pid_in(home.lock) == process.pid,
            process,
            log,
        )
    except BaseException:
        # nobody has been told of it, so nobody would end it
        process.terminate()
        process.wait()
        raise
    _say(f"coadapt serves {home.path} at {home.address.read_text().strip()} (process {process.pid})")
    for line in _sign_in(home):
        _say(line)
    _say("Next: coadapt submit -- python train.py; 'coadapt down' ends it")


def _until(listens: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """CoadaptError with what it said last if it ends before, or takes too long."""
    deadline = time.monotonic() + _DETACH_S
    while not listens():
        if process.poll() is not None:
            said = Child("", (), log).said_last().removeprefix("coadapt: ")
            raise (
                InputError(said) if process.returncode == 2 else CoadaptError(said or f"it ended; see {log}")
            )
        if time.monotonic() > deadline:
            raise CoadaptError(f"it does not listen after {_DETACH_S:.0f} s, and was ended; see {log}")
        time.sleep(0.1)


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a file from one that was there before under the same name."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


class _Greeting:
    """Says once where the API listens."""

    def __init__(self, home: Home, options: ServeOptions) -> None:
        self._home, self._options, self._said = home, options, False

    def __call__(self) -> None:
        if not self._said and self._home.address.exists():
            self._said = True
            for line in greeting(self._home, self._options):
                _say(line)


def greeting(home: Home, options: ServeOptions) -> Sequence[str]:
    """What the user wants to know now."""
    from coadapt.cli.controller_process import nodes_of
    from coadapt.model import Cluster, format_cluster

    address = home.address.read_text().strip()
    nodes = nodes_of(options)
    return (
        f"coadapt serves {home.path}: {format_cluster(Cluster(nodes=nodes))}, policy {options.policy}",
        f"API and dashboard: {address}   (token: {home.token})",
        *_sign_in(home),
        "Next, in another terminal: coadapt submit -- python train.py",
        "Ctrl-C ends controller and API, jobs go on; 'coadapt down' ends everything.",
    )


def _sign_in(home: Home) -> Sequence[str]:
    """A link for the browser of whoever sits here; elsewhere a link would travel further than it should."""
    from urllib.parse import urlsplit

    from coadapt.server.once import link

    if urlsplit(home.address.read_text().strip()).hostname not in ("127.0.0.1", "localhost", "::1"):
        return ()
    return (f"Dashboard, signed in (once, within 5 minutes): {link(home)}",)


def _farewell(home: Home) -> str:
    from coadapt.cluster.ending import keeper_runs, tokens_of

    running = {job for job, ended in tokens_of(home).values() if not ended} if keeper_runs(home) else set()
    if not running:
        return "Stopped. No job is running; 'coadapt serve' goes on where this left off."
    jobs = "1 job goes" if len(running) == 1 else f"{len(running)} jobs go"
    return f"Stopped. {jobs} on running; 'coadapt serve' takes over again, 'coadapt down' stops them too."


def _say(line: str) -> None:
    try:
        click.echo(line)
        sys.stdout.flush()
    except OSError:
        pass  # the terminal is gone; the cluster need not be
