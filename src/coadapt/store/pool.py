"""The pool of past jobs in a file: there as a whole or not at all, and readable by every later coadapt."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from coadapt.errors import InputError
from coadapt.model import Fact
from coadapt.predict.history import Pool
from coadapt.store.pool_check import impossible

#: Version written by this coadapt; fields are only added, with defaults.
POOL_VERSION = 1


class _Header(Fact, frozen=True):
    version: int


class _PoolFile(Fact, frozen=True):
    version: int
    pool: Pool


def load(path: Path | str) -> Pool:
    """The pool in the file."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read pool {path}: {error.strerror}") from None
    try:
        version = msgspec.json.decode(data, type=_Header).version
        pool = msgspec.json.decode(data, type=_PoolFile).pool if 1 <= version <= POOL_VERSION else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"pool {path} is damaged or no pool ({error}); restore it, or name a new file"
        ) from None
    if version < 1:
        raise InputError(
            f"pool {path} has version {version}, which never was; restore it, or name a new file"
        )
    if pool is None:
        raise InputError(
            f"pool {path} has version {version}, this coadapt reads up to {POOL_VERSION}; use the newer coadapt that wrote it"
        )
    if problem := impossible(pool):
        raise InputError(f"pool {path}: {problem}")
    return pool


def save(path: Path | str, pool: Pool) -> None:
    """Writes the pool; whoever reads meanwhile, or after a power cut, finds the old one or the new one.

    A new file gets the rights every new file gets (umask), one that is replaced keeps its own.
    """
    path = Path(path)
    # omit_defaults would leave out a version of 1 if it had a default; it has none
    data = msgspec.json.encode(_PoolFile(version=POOL_VERSION, pool=pool))
    # named before it is made: an interrupt at any moment leaves nothing behind
    part = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        try:
            with part.open("xb") as stream:
                with suppress(FileNotFoundError):
                    part.chmod(path.stat().st_mode & 0o777)
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write pool {path}: {error.strerror}") from None
