"""A PostgreSQL server of our own for tests, where one is installed: a socket in a new directory, no network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote


def why_not() -> str:
    """Why there can be none here; empty: there can."""
    if any(_program(name) is None for name in ("initdb", "postgres", "pg_ctl")):
        return "no PostgreSQL server is installed (Debian: postgresql; elsewhere initdb, postgres and pg_ctl on PATH)"
    if os.geteuid() == 0 and _account() is None:
        return "PostgreSQL does not run as root, and there is no account postgres"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed (the extra postgres)"
    return ""


@contextmanager
def server() -> Iterator[str]:
    """The URL of a new, empty one; it is gone at the end."""
    # not under pytest's directory: the server's account may not look inside, and a socket's path must be short
    with tempfile.TemporaryDirectory(prefix="coadapt-pg-") as name:
        directory = Path(name)
        account = _account() if os.geteuid() == 0 else None
        if account is not None:
            os.chown(directory, account.pw_uid, account.pw_gid)
        data = str(directory / "data")
        kind = ("-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8", "--no-locale")
        _run(directory, "initdb", "-D", data, *kind)
        start_again(directory)
        try:
            yield f"postgresql://tester@/postgres?host={quote(name, safe='')}"
        finally:
            with suppress(subprocess.CalledProcessError):  # a test may have killed it
                _run(directory, "pg_ctl", "-D", data, "-w", "-t", "300", "-m", "immediate", "stop")


def start_again(directory: Path) -> None:
    """Starts the server of a directory, which may have been killed."""
    options = f"-c listen_addresses='' -c unix_socket_directories={directory} -c fsync=off"
    where = ("-D", str(directory / "data"), "-l", str(directory / "log"))
    _run(directory, "pg_ctl", *where, "-w", "-t", "300", "-o", options, "start")


def _run(directory: Path, name: str, *arguments: str) -> None:
    program, account = _program(name), _account() if os.geteuid() == 0 else None
    assert program is not None
    user = None if account is None else account.pw_name
    subprocess.run((program, *arguments), user=user, cwd=directory, check=True, stdout=subprocess.DEVNULL)


def _program(name: str) -> str | None:
    """A program of the server. Debian has them in a directory of their version, which is not on PATH."""
    found = shutil.which(name)
    if found is None:
        there = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        return str(there[-1]) if there else None
    return found


def _account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return None
