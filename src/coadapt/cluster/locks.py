"""Who has a file's lock, and its name: one supervisor per home, one keeper per directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coadapt.cluster.processes import this_process
from coadapt.errors import InputError


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Holds the lock and writes our name into the file; InputError with the holder's pid while another has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = pid_in(path)
            raise InputError(refusal.format(pid="?" if pid is None else pid)) from None
        os.truncate(fd, 0)
        os.write(fd, f"{os.getpid()} {this_process()}\n".encode())
        yield
    finally:
        os.close(fd)


def is_locked(path: Path) -> bool:
    """Whether anybody has it right now."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def pid_in(path: Path) -> int | None:
    """The pid that the last holder wrote into it."""
    try:
        first = path.read_text().split()[:1]
    except OSError:
        return None
    return int(first[0]) if first and first[0].isdigit() else None
