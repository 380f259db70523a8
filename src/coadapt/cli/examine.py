"""What ``coadapt doctor`` looks at: each check says what it found, and what to do about it. Nothing is changed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from urllib.error import URLError
from urllib.request import urlopen

from coadapt.cli.examine_store import store_findings
from coadapt.cli.findings import Finding, bad, ok, warn
from coadapt.cluster import ending
from coadapt.cluster.home import Home
from coadapt.cluster.locks import is_locked, pid_in
from coadapt.errors import CoadaptError

#: Bytes free on the disk below which something will soon go wrong, or does.
_LITTLE, _TOO_LITTLE = 2 << 30, 100 << 20


def examine(home: Home, *, full: bool = False) -> list[Finding]:
    """All checks, in the order a user would want to know."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        lambda: _versions(),
        lambda: _home(home),
        lambda: _disk(home),
        lambda: store_findings(home, full=full),
        lambda: _processes(home),
        lambda: _orphans(home),
        lambda: _port(home),
        lambda: _machine(),
    ]
    found: list[Finding] = []
    for check in checks:
        try:
            found += check()
        except (CoadaptError, OSError) as error:
            found.append(bad(check.__name__.strip("_"), str(error)))
        if found[-1].fatal:
            break
    return found


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield ok("versions", f"coadapt {version('coadapt')}, Python {python}")


def _home(home: Home) -> Iterator[Finding]:
    if not home.options_file.exists():
        yield bad("home", f"{home.path} is no home of a cluster", "coadapt serve makes one", fatal=True)
        return
    home.read_options()
    mine = home.path.stat().st_uid == os.getuid()
    open_to_others = [
        path.name
        for path in (home.path, home.token, home.options_file, home.path / "store.db", home.path / "job_key")
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    if open_to_others:
        names = ", ".join(open_to_others)
        yield bad("permissions", f"others may read {names}", f"chmod -R go= {home.path}")
    elif not mine:
        yield warn("permissions", f"{home.path} belongs to another user", "run commands as that user")
    else:
        yield ok("permissions", f"{home.path} is its owner's only")


def _disk(home: Home) -> Iterator[Finding]:
    free = shutil.disk_usage(home.path).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < _TOO_LITTLE:
        yield bad("disk", text, "free some: nothing can be written down, so nothing is decided")
    elif free < _LITTLE:
        yield warn("disk", text, f"free some soon; checkpoints are in {home.checkpoints}")
    else:
        yield ok("disk", text)


def _processes(home: Home) -> Iterator[Finding]:
    if is_locked(home.lock):
        yield ok("supervisor", f"runs as process {pid_in(home.lock)}")
    else:
        yield warn("supervisor", "does not run", "coadapt serve")
    if ending.keeper_runs(home):
        yield ok("keeper", f"runs as process {pid_in(home.keeper / 'keeper.lock')}")
    elif is_locked(home.lock):
        yield bad(
            "keeper", "does not run although the cluster is served", f"see {home.keeper / 'keeper.log'}"
        )
    else:
        yield ok("keeper", "does not run, and no job does")


def _orphans(home: Home) -> Iterator[Finding]:
    tokens = ending.tokens_of(home)
    left = ending.leftovers(tokens)
    stray = {pid: tokens[t][0] for pid, t in left.items() if tokens[t][1] or not ending.keeper_runs(home)}
    if stray:
        names = ", ".join(f"{pid} of {job}" for pid, job in sorted(stray.items())[:5])
        yield bad("orphans", f"{len(stray)} processes outlived their job: {names}", "coadapt down kills them")
    else:
        yield ok("orphans", f"none; {len(left)} processes of running jobs")


def _port(home: Home) -> Iterator[Finding]:
    if not home.address.exists():
        if is_locked(home.lock):
            yield bad("API", "does not listen", f"see {home.log('api')}")
        else:
            yield ok("API", "does not listen, for nothing is served")
        return
    address = home.address.read_text().strip()
    try:
        if not address.startswith(("http://", "https://")):
            raise URLError(f"{address!r} is no address")
        with urlopen(f"{address}/healthz", timeout=5.0) as answer:
            yield ok("API", f"answers at {address} ({answer.status})")
    except (URLError, OSError) as error:
        yield bad("API", f"does not answer at {address}: {error}", f"see {home.log('api')}")


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    gpus = "nvidia-smi is here" if shutil.which("nvidia-smi") else "no NVIDIA driver"
    yield ok("machine", f"{cores} cores, {gpus}")
    if importlib.util.find_spec("torch") is None:
        yield warn(
            "PyTorch",
            "not in this interpreter; jobs may bring their own",
            "pip install 'coadapt[torch]' for elastic jobs",
        )
    else:
        yield ok("PyTorch", version("torch"))
