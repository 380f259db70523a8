"""``coadapt serve``: validates and stores the options, then runs the supervisor.

Options override those of the previous start, and are validated before anything starts. The process prepares the home
directory, keeps the controller and the API alive, and prints addresses and hints.
"""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.executors.node.keeper_shutdown import pid_in
from coadapt.live.child_lives import Lives, read_lives, write_lives
from coadapt.live.connect import home_flag
from coadapt.live.pilot_renewal import RENEWAL_S, directory_of
from coadapt.live.supervisor import Child, Chore, Supervisor, locked
from coadapt.store.home import Home, write_private
from coadapt.units import parse_duration
from coadapt.wire.serve_options import GC_S, ServeOptions

if TYPE_CHECKING:
    from coadapt.store.audit_log import Attribution

#: Shortest time that records are kept.
_LEAST_RETAIN_S = 3600.0
_FILES = ("prices", "tls_cert", "tls_key")
#: Packages that the extra ``server`` installs.
_SERVER_PACKAGES = ("starlette", "uvicorn", "prometheus_client", "jinja2")
_SHORTEST_S, _LONGEST_S = 1.0, 365 * 86400.0
#: A legitimate decision of a large cluster takes up to 2 s.
_LEAST_LIVENESS_S = 5.0
#: Requests that a user may make at once, in seconds of the rate.
_BURST_S = 4.0
_HOST_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,252}[a-z0-9])?|[0-9a-f:]{2,45}")
#: Bytes of a store that is read through before a start; a larger one takes too long, and 'coadapt doctor' does it.
_MOST_CHECKED = 2 << 30


def options_of(home: Home, settings: Sequence[str], given: Mapping[str, Any]) -> ServeOptions:
    """Returns the options of this start; raises an InputError if they are invalid.

    Args:
        home: Home directory, with the options of the previous start.
        settings: Options of the policy, NAME=VALUE.
        given: Options by name, see ``ServeOptions``; None or empty: not given.
    """
    before = home.read_options() if home.options_file.exists() else ServeOptions()
    changes = {name: value for name, value in given.items() if value not in (None, ())}
    if "retain" in changes:
        changes |= retentions(changes.pop("retain"))
    if "retain_audit" in changes:
        changes["audit_days"] = _days(changes.pop("retain_audit"), "--retain-audit")
    if "requests_per_s" in changes:
        changes["burst"] = max(round(_BURST_S * changes["requests_per_s"]), 1)
    if "proxy_roles" in changes:
        from coadapt.plugins import assignments

        changes["proxy_roles"] = assignments(changes["proxy_roles"])
    if changes.get("trust_proxy") == ("none",):
        changes |= {"trust_proxy": (), "proxy_roles": {}}
    for name in _FILES:
        if name in changes:
            changes[name] = _file(name, changes[name])
    if "store" in changes and "://" not in changes["store"]:
        changes["store"] = str(Path(changes["store"]).absolute())
    if settings or changes.get("policy", before.policy) != before.policy:
        # the options of another policy do not apply
        from coadapt.plugins import assignments

        changes["options"] = assignments(settings)
    if given_engine := changes.pop("engine_settings", ()):
        from coadapt.plugins import assignments

        changes["engine_options"] = assignments(given_engine)
    elif changes.get("executor", before.executor) != before.executor:
        changes["engine_options"] = {}
    if "checkpoints" in changes:
        changes["checkpoints"] = str(Path(changes["checkpoints"]).absolute())
    if changes.get("run_as") == "server":
        changes["run_as"] = ""
    if "virtual" in changes and "gpus" in changes:
        raise InputError("--virtual and --gpus exclude each other")
    if "virtual" in changes:
        changes["gpus"] = "auto"
    elif "gpus" in changes:
        changes["virtual"] = ""
    options = msgspec.structs.replace(before, **changes)
    _check(options)
    return options


def _check(options: ServeOptions) -> None:
    from coadapt.executors import find_executor
    from coadapt.executors.node.accounts import check_run_as
    from coadapt.runtime.controller import scheduler_of

    scheduler_of(options)
    nodes = find_executor(options.executor).offered_nodes(options)
    check_run_as(options.run_as)
    if options.grace_s <= 0:
        raise InputError(f"--grace-period {options.grace_s:g}s is not possible; it must be longer than 0 s")
    if not _LEAST_LIVENESS_S <= options.liveness_s <= _LONGEST_S:
        raise InputError(f"--liveness {options.liveness_s:g}s is not possible; it must be from 5s to 365d")
    if options.interval_s is not None and not _SHORTEST_S <= options.interval_s <= _LONGEST_S:
        raise InputError(f"--interval {options.interval_s:g}s is not possible; it must be from 1s to 365d")
    # the API checks these as well, but only after the controller has started
    from coadapt.server.http.listening import checked_tls
    from coadapt.server.proxy import checked_proxy
    from coadapt.server.webhooks import checked_url
    from coadapt.spec.prices import read_prices

    checked_tls(options)
    checked_proxy(options)
    for name in options.hosts:
        if not _HOST_NAME.fullmatch(name):
            raise InputError(
                f"--host {name!r} is not a host name; write for example gpus.example.org, without a port"
            )
    read_prices(options.prices, {node.gpu_type for node in nodes})
    for url in options.webhooks:
        checked_url(url)


def resolved(options: ServeOptions) -> ServeOptions:
    """Returns the options with a free port; raises an InputError if the given port is in use.

    Port 0 is replaced by a number, so that the API keeps its address when it is restarted and jobs can report to it.
    """
    from coadapt.server.http.listening import listen

    with listen(options).socket as probe:
        found = probe.getsockname()[1]
    return msgspec.structs.replace(options, listen=f"{options.listen.rpartition(':')[0]}:{found}")


#: Options of ``ServeOptions`` by what ``--retain WHAT=TIME`` names.
_RETAINED = {
    "records": "retain_days",
    "code": "retain_code_days",
    "checkpoints": "retain_checkpoints_days",
    "logs": "retain_logs_days",
}


def retentions(texts: Sequence[str]) -> dict[str, float | None]:
    """Returns the retention times in days that ``--retain`` names, as in "30d" (records) or "logs=14d"; None: unlimited."""
    found: dict[str, float | None] = {}
    for text in texts:
        what, equals, duration = text.partition("=")
        if not equals:
            what, duration = "records", text
        if what not in _RETAINED:
            raise InputError(f"--retain {text}: {what!r} is not one of {', '.join(_RETAINED)}")
        found[_RETAINED[what]] = _days(duration)
    return found


def _days(text: str, option: str = "--retain") -> float | None:
    """Returns the retention time in days; None: unlimited. ``option`` is named in errors."""
    if text == "forever":
        return None
    seconds = parse_duration(text)
    if seconds < _LEAST_RETAIN_S:
        raise InputError(f'{option} {text} is too short; write at least 1h, or "forever"')
    return seconds / 86400.0


def _file(name: str, path: str) -> str:
    if not Path(path).is_file():
        raise InputError(f"--{name.replace('_', '-')} {path}: no such file")
    return str(Path(path).absolute())


#: Time limit for a start in the background, in seconds.
_DETACH_S = 120.0


def require_server() -> None:
    """Raises an InputError if packages of the extra ``server`` are not installed."""
    missing = [name for name in _SERVER_PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(
            f"'coadapt serve' needs the server extra ({', '.join(missing)} not installed): pip install 'coadapt[server]'"
        )


def check_fence(home: Home) -> None:
    """Raises an InputError if the jobs of this home were restored elsewhere: two clusters would run them."""
    if home.fence.exists():
        said = home.fence.read_text(errors="replace").strip()
        raise InputError(
            f"{home.path} must not be served any more: {said}. To serve it all the same, because the other one is gone, "
            f"remove {home.fence}"
        )


def serve(home: Home, settings: Sequence[str] = (), given: Mapping[str, Any] | None = None) -> None:
    """Runs a cluster from its home directory until SIGTERM or Ctrl-C.

    Args:
        home: Home directory of the cluster.
        settings: Options of the policy, NAME=VALUE.
        given: Options by name, see ``ServeOptions``; omitted ones keep their values from the previous start.
    """
    require_server()
    check_fence(home)
    home.make()
    refusal = (
        f"a cluster is already running in {home.path} (process {{pid}}); stop it with 'coadapt down{home_flag(home)}', "
        "or choose another directory with --home"
    )
    with locked(home.lock, refusal):
        # left behind by a process that was killed
        home.address.unlink(missing_ok=True)
        options = resolved(options_of(home, settings, given or {}))
        # fails if the store cannot be used, before the options are written for the next start
        ensure_token(home, options)
        _check_pages(home, options)
        _audit_start(home, options)
        home.write_options(options)
        home.path.chmod(0o711 if options.run_as else 0o700)
        # lives are counted from here; what the last controller hung on is kept for the next
        hang = read_lives(home.children).get("controller", Lives()).hang
        write_lives(home.children, {"controller": Lives(hang=hang)})
        supervisor = Supervisor(
            children_of(home),
            _say,
            liveness_s=options.liveness_s,
            lives_file=home.children,
            chores=[
                Chore([sys.executable, "-m", "coadapt.live.garbage", str(home.path)], home.log("gc"), GC_S),
                Chore(
                    [sys.executable, "-m", "coadapt.live.pilot_renewal", str(home.path)],
                    home.log("pilots"),
                    RENEWAL_S,
                    directory_of(home),
                ),
            ],
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: supervisor.stop())
        supervisor.run(_Greeting(home, options))
        home.address.unlink(missing_ok=True)
    _say(_farewell(home, options))


_MODULES = {"api": "coadapt.live.api_process", "controller": "coadapt.live.controller_process"}


def children_of(home: Home) -> list[Child]:
    """Returns the processes to supervise, the API first.

    The API ends before the controller, so that all accepted requests are in the inbox when the controller ends.
    """
    return [_child(home, part, part) for part in _MODULES]


def _child(home: Home, part: str, name: str) -> Child:
    """The process that runs ``part`` of a cluster under ``name``."""
    command = [sys.executable, "-m", _MODULES[part], str(home.path)]
    words = [*command, name] if part == "controller" else command
    return Child(name, words, home.log(name), progress=home.progress(name))


def serve_standby(home: Home) -> None:
    """Runs a standby for the cluster in ``home``, with its options, until SIGTERM or Ctrl-C."""
    from coadapt.live.standby import stand_by

    require_server()
    check_fence(home)
    stand_by(home, _say, lambda part, name: _child(home, part, name))


def _check_pages(home: Home, options: ServeOptions) -> None:
    """InputError if the store is damaged: the controller would find it out, and be started again and again."""
    from coadapt.store import open_store

    where = home.store(options)
    if "://" in where or Path(where).stat().st_size > _MOST_CHECKED:
        return
    with closing(open_store(where).log()) as log:
        if damage := log.damage():
            raise InputError(
                f"store {where} is damaged ({damage[0]}); restore a backup with 'coadapt restore', see 'coadapt doctor'"
            )


def ensure_token(home: Home, options: ServeOptions) -> None:
    """Creates the token of the local administrator at the first start; the store keeps its hash.

    Raises an InputError if the store belongs to another home.
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
        who = _local("role admin, no expiry; in the home directory")
        tokens.remove(name, who)
        write_private(home.token, f"{token}\n".encode())
        tokens.add(Token(name=name, role="admin", made_at=time.time()), token_hash(token), who)


def _local(detail: str) -> Attribution:
    """The user of this machine who runs a command, for the audit log."""
    from coadapt.store.audit_log import Attribution

    return Attribution(actor=getpass.getuser(), role="admin", via="local", detail=detail)


def _audit_start(home: Home, options: ServeOptions) -> None:
    """Writes the start, and the options that it changes, to the audit log."""
    from coadapt.store import open_store

    before = home.read_options() if home.options_file.exists() else ServeOptions()
    changed = [
        f"{name} {_shown(getattr(before, name))} -> {_shown(getattr(options, name))}"
        for name in options.__struct_fields__
        if getattr(before, name) != getattr(options, name)
    ]
    with closing(open_store(home.store(options)).audit()) as audit:
        audit.add((_local(", ".join(changed)), "serve", ""))


def _shown(value: object) -> str:
    """The value of an option; of a URL only the host, because user, path and query may hold secrets."""
    if value in ("", (), {}, None):
        return "none"
    if isinstance(value, tuple):
        return " ".join(_shown(each) for each in value)
    return re.sub(r"//(?:[^/@\s]*@)?([^/\s'?]*)[^\s',)]*", r"//\1/...", str(value))


def serve_in_background(
    home: Home, settings: Sequence[str], given: Mapping[str, Any], arguments: Sequence[str] | None = None
) -> None:
    """Starts the same command in the background and waits until the API listens.

    Args:
        home: Home directory of the cluster.
        settings: Options of the policy, NAME=VALUE.
        given: Options by name, see ``ServeOptions``.
        arguments: Of the command line in the background; None: those of this process.
    """
    require_server()
    check_fence(home)
    options_of(home, settings, given)  # reports invalid options here and not in a log file
    if arguments is None:
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
        # the file must be new: a killed process, or another one started now, may have left one
        _until(
            lambda: _identity(home.address) not in (None, before) and pid_in(home.lock) == process.pid,
            process,
            log,
        )
    except BaseException:
        # its address was not printed, so the user could not stop it
        process.terminate()
        process.wait()
        raise
    _say(f"Cluster {home.path} runs at {home.address.read_text().strip()} (process {process.pid})")
    for line in _sign_in(home):
        _say(line)
    flag = home_flag(home)
    _say(f"Next: coadapt submit{flag} -- python train.py")
    _say(f"To stop everything: coadapt down{flag}")


def _until(listens: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until ``listens``; raises a CoadaptError if the process ends before, or takes too long."""
    deadline = time.monotonic() + _DETACH_S
    while not listens():
        if process.poll() is not None:
            message = Child("", (), log).last_line().removeprefix("coadapt: ")
            if process.returncode == 2:
                raise InputError(message)
            raise CoadaptError(message or f"'coadapt serve' ended with {process.returncode}; see {log}")
        if time.monotonic() > deadline:
            raise CoadaptError(
                f"'coadapt serve' does not listen after {_DETACH_S:.0f} s and was stopped; see {log}"
            )
        time.sleep(0.1)


def _identity(path: Path) -> tuple[int, int] | None:
    """Identifies a version of a file; None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


class _Greeting:
    """Prints once where the API listens."""

    def __init__(self, home: Home, options: ServeOptions) -> None:
        self._home, self._options, self._printed = home, options, False

    def __call__(self) -> None:
        if not self._printed and self._home.address.exists():
            self._printed = True
            for line in _greeting(self._home, self._options):
                _say(line)


def _greeting(home: Home, options: ServeOptions) -> Sequence[str]:
    from coadapt.executors import find_executor
    from coadapt.model import Cluster, format_cluster

    address = home.address.read_text().strip()
    nodes = tuple(find_executor(options.executor).offered_nodes(options))
    offer = format_cluster(Cluster(nodes=nodes)) if nodes else f"nodes of the executor {options.executor}"
    return (
        f"Cluster {home.path}: {offer}, policy {options.policy}",
        f"API and dashboard: {address} (token: {home.token})",
        *_sign_in(home),
        *_proxies(home, options),
        f"Next, in another terminal: coadapt submit{home_flag(home)} -- python train.py",
        f"Ctrl-C stops controller and API; jobs keep running. To stop everything: coadapt down{home_flag(home)}",
    )


def _sign_in(home: Home) -> Sequence[str]:
    """Returns a line with a sign-in link if the API listens on loopback only."""
    from urllib.parse import urlsplit

    from coadapt.server.callers import link

    if urlsplit(home.address.read_text().strip()).hostname not in ("127.0.0.1", "localhost", "::1"):
        return ()
    return (f"Dashboard (one-time sign-in link, valid for 5 minutes): {link(home)}",)


def _proxies(home: Home, options: ServeOptions) -> Sequence[str]:
    """Returns a line about the secret of reverse proxies, if one is trusted."""
    if not options.trust_proxy:
        return ()
    who = ", ".join(options.trust_proxy)
    return (
        f"Users are signed in by the proxy at {who}, which sends the secret in {home.path / 'proxy_secret'}",
    )


def sign_in_link(home: Home) -> str:
    """Returns a link to the dashboard that signs the local administrator in, once."""
    from coadapt.client import UnreachableError
    from coadapt.server.callers import link

    if not home.address.exists():
        raise UnreachableError(
            f"no cluster is running in {home.path}; start it with 'coadapt serve{home_flag(home)}'"
        )
    return link(home)


def _farewell(home: Home, options: ServeOptions) -> str:
    from coadapt.executors import find_executor

    running = find_executor(options.executor).running_jobs(home, options)
    flag = home_flag(home)
    if not running:
        return f"Stopped. No jobs are running. To continue: coadapt serve{flag}"
    jobs = "1 job keeps" if len(running) == 1 else f"{len(running)} jobs keep"
    return f"Stopped. {jobs} running. To continue: coadapt serve{flag}. To stop the jobs: coadapt down{flag}"


def _say(line: str) -> None:
    try:
        click.echo(line)
        sys.stdout.flush()
    except OSError:
        pass  # the cluster outlives its terminal
