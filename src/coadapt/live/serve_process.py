"""``coadapt serve``: checks and stores its settings, then runs the supervisor's process.

New options are joined with those of the last start, and checked before anything starts. The process prepares the
home, keeps controller and API alive, and prints what the user needs to know.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.executors.node.keeper_control import pid_in
from coadapt.live.child_lives import Lives, read_lives, write_lives
from coadapt.live.supervisor import Child, Supervisor, locked
from coadapt.store.home import Home, write_private
from coadapt.units import parse_duration
from coadapt.wire.serve_options import ServeOptions

#: Less could forget what people are still asking about.
_LEAST_RETAIN_S = 3600.0
_FILES = ("prices", "tls_cert", "tls_key")
_SHORTEST_S, _LONGEST_S = 1.0, 365 * 86400.0
#: A legitimate decision of a large cluster takes up to 2 s.
_LEAST_LIVENESS_S = 5.0
#: Bytes of a store that is read through before a start; a larger one takes too long, and 'coadapt doctor' does it.
_MOST_CHECKED = 2 << 30


def options_of(home: Home, settings: Sequence[str], given: Mapping[str, Any]) -> ServeOptions:
    """Returns the options; InputError with a one-line message if they are invalid."""
    before = home.read_options() if home.options_file.exists() else ServeOptions()
    told = {name: value for name, value in given.items() if value not in (None, ())}
    if "retain" in told:
        told["retain_days"] = _days(told.pop("retain"))
    for name in _FILES:
        if name in told:
            told[name] = _file(name, told[name])
    if "store" in told and "://" not in told["store"]:
        told["store"] = str(Path(told["store"]).absolute())
    if settings or told.get("policy", before.policy) != before.policy:
        # options of another policy mean nothing to this one
        from coadapt.plugins import assignments

        told["options"] = assignments(settings)
    if "virtual" in told and "gpus" in told:
        raise InputError("--virtual and --gpus exclude each other: virtual GPUs are not this machine's")
    if "virtual" in told:
        told["gpus"] = "auto"
    elif "gpus" in told:
        told["virtual"] = ""
    options = msgspec.structs.replace(before, **told)
    _check(options)
    return options


def _check(options: ServeOptions) -> None:
    from coadapt.executors import find_executor
    from coadapt.runtime.controller import scheduler_of

    scheduler_of(options)
    nodes = find_executor(options.executor).offered_nodes(options)
    if options.grace_s <= 0:
        raise InputError(f"grace {options.grace_s:g} is not possible; it must be more than 0 seconds")
    if not _LEAST_LIVENESS_S <= options.liveness_s <= _LONGEST_S:
        raise InputError(f"--liveness {options.liveness_s:g}s is not possible; it must be from 5s to 365d")
    if options.interval_s is not None and not _SHORTEST_S <= options.interval_s <= _LONGEST_S:
        raise InputError(f"--interval {options.interval_s:g}s is not possible; it must be from 1s to 365d")
    # the API would find these out as well, but not before the rest has been started
    from coadapt.server.http.listening import checked_tls
    from coadapt.server.webhooks import checked_url
    from coadapt.spec.prices import read_prices

    checked_tls(options)
    read_prices(options.prices, {node.gpu_type for node in nodes})
    for url in options.webhooks:
        checked_url(url)


def resolved(options: ServeOptions) -> ServeOptions:
    """With a port that is free right now; InputError with the port if it is not.

    Port 0 becomes a number: the API keeps its address when it is started again, and jobs go on reporting there.
    """
    from coadapt.server.http.listening import listen

    with listen(options).socket as probe:
        found = probe.getsockname()[1]
    return msgspec.structs.replace(options, listen=f"{options.listen.rpartition(':')[0]}:{found}")


def _days(text: str) -> float | None:
    """How long records are kept, in days; None: for ever."""
    if text == "forever":
        return None
    seconds = parse_duration(text)
    if seconds < _LEAST_RETAIN_S:
        raise InputError(f'--retain {text} is too short; at least 1h, or "forever"')
    return seconds / 86400.0


def _file(name: str, path: str) -> str:
    if not Path(path).is_file():
        raise InputError(f"--{name.replace('_', '-')} {path}: there is no such file")
    return str(Path(path).absolute())


#: Seconds that a start in the background may take.
_DETACH_S = 120.0


def serve(home: Home, settings: Sequence[str] = (), given: Mapping[str, Any] | None = None) -> None:
    """Serves a cluster from its home until SIGTERM or Ctrl-C.

    Args:
        settings: NAME=VALUE, options of the policy.
        given: Options by name, see ``ServeOptions``; what is not given is as at the last start in the same home.
    """
    home.make()
    refusal = (
        f"{home.path} is served already, by process {{pid}}; 'coadapt down' ends it, --home names another"
    )
    with locked(home.lock, refusal):
        # one that was killed has left it behind
        home.address.unlink(missing_ok=True)
        options = resolved(options_of(home, settings, given or {}))
        # a store that will not do is said now: what is written is what the next serve begins with
        ensure_token(home, options)
        _check_pages(home, options)
        home.write_options(options)
        # lives are counted from here; what the last controller hung on is kept for the next
        hang = read_lives(home.children).get("controller", Lives()).hang
        write_lives(home.children, {"controller": Lives(hang=hang)})
        supervisor = Supervisor(
            children_of(home), _say, liveness_s=options.liveness_s, lives_file=home.children
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: supervisor.stop())
        supervisor.run(_Greeting(home, options))
        home.address.unlink(missing_ok=True)
    _say(_farewell(home, options))


def children_of(home: Home) -> list[Child]:
    """Returns the children to supervise, the API first.

    The API ends before the controller, so that requests it accepted are in the inbox when the controller ends.
    """
    modules = {"api": "coadapt.server", "controller": "coadapt.live.controller_process"}
    progress = {"controller": home.progress}
    return [
        Child(
            name,
            [sys.executable, "-m", module, str(home.path)],
            home.log(name),
            progress=progress.get(name),
        )
        for name, module in modules.items()
    ]


def _check_pages(home: Home, options: ServeOptions) -> None:
    """InputError if the store is damaged: the controller would find it out, and be started again and again."""
    from coadapt.store import open_store

    where = home.store(options)
    if "://" in where or Path(where).stat().st_size > _MOST_CHECKED:
        return
    with closing(open_store(where).log()) as log:
        if damage := log.damage():
            raise InputError(
                f"store {where} is damaged ({damage[0]}); restore a backup and name it with --store, see 'coadapt doctor'"
            )


def ensure_token(home: Home, options: ServeOptions) -> None:
    """Makes the local administrator's token at the first start; the store keeps its hash.

    InputError if the store belongs to another home.
    """
    from coadapt.store import open_store
    from coadapt.store.token_table import Token, new_token, token_hash

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


def serve_in_background(home: Home, settings: Sequence[str], given: Mapping[str, Any]) -> None:
    """Starts the same command in the background and waits until it listens."""
    options_of(home, settings, given)  # what is wrong with it is said here, not in a log
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
        # it was not announced yet, so no user would end it
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
    """Returns the text that ``coadapt serve`` prints once the cluster is up."""
    from coadapt.executors import find_executor
    from coadapt.model import Cluster, format_cluster

    address = home.address.read_text().strip()
    nodes = tuple(find_executor(options.executor).offered_nodes(options))
    offer = format_cluster(Cluster(nodes=nodes)) if nodes else f"nodes of the executor {options.executor}"
    return (
        f"coadapt serves {home.path}: {offer}, policy {options.policy}",
        f"API and dashboard: {address}   (token: {home.token})",
        *_sign_in(home),
        "Next, in another terminal: coadapt submit -- python train.py",
        "Ctrl-C ends controller and API, jobs go on; 'coadapt down' ends everything.",
    )


def _sign_in(home: Home) -> Sequence[str]:
    """A link for the browser of whoever sits here; elsewhere a link would travel further than it should."""
    from urllib.parse import urlsplit

    from coadapt.server.callers import link

    if urlsplit(home.address.read_text().strip()).hostname not in ("127.0.0.1", "localhost", "::1"):
        return ()
    return (f"Dashboard, signed in (once, within 5 minutes): {link(home)}",)


def sign_in_link(home: Home) -> str:
    """Returns the address of the dashboard, with a code that signs the local administrator in once."""
    from coadapt.client import UnreachableError
    from coadapt.server.callers import link

    if not home.address.exists():
        raise UnreachableError(f"nothing serves {home.path}; start it with 'coadapt serve'")
    return link(home)


def _farewell(home: Home, options: ServeOptions) -> str:
    from coadapt.executors import find_executor

    running = find_executor(options.executor).running_jobs(home, options)
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
