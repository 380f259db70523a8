"""Checkpoints in a directory: written atomically, verified when read, the last few retained.

State is the same on every replica (random generators, which differ, are gathered), so it is one file, and any number of replicas can
load it. A file is written under a temporary name, synced, and renamed. It ends with a digest of its content, so that a damaged file
is detected and the one before is used. An attempt that a newer one has replaced may not commit (fencing): its file would
undo the newer attempt's work.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from coadapt.errors import CoadaptError, InputError

log = logging.getLogger(__name__)
_MARK = b"coadapt1"
_DIGEST = 32
_FENCE = "attempt"


class Checkpoints:
    """Checkpoints of ``attempt`` in ``directory``: at most ``keep`` files of ``budget_bytes`` together; the newest is always retained."""

    def __init__(
        self, directory: Path, *, attempt: int = 0, keep: int = 3, budget_bytes: float = float("inf")
    ) -> None:
        if keep < 1:
            raise InputError(f"keep={keep}: it must be at least 1")
        self.directory, self.attempt, self.keep, self.budget_bytes = directory, attempt, keep, budget_bytes
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None

    def claim(self) -> None:
        """Make this attempt the owner of the directory: older ones may no longer commit."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot create the checkpoint directory {self.directory}: {error.strerror}"
            ) from error
        if (newer := self._owner()) > self.attempt:
            raise InputError(f"attempt {newer} has replaced attempt {self.attempt} in {self.directory}")
        _write_whole(self.directory / _FENCE, lambda file: file.write(str(self.attempt).encode()))
        for left in self.directory.glob("*.tmp"):
            with suppress(OSError):
                left.unlink()

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after ``step``; returns once it is on disk."""
        self.wait()
        self._write(step, state)

    def save_in_background(self, step: int, state: dict[str, Any]) -> None:
        """Write it in a thread; ``state`` must not change any more. The next call of ``wait`` logs a failure."""
        self.wait()

        def write() -> None:
            try:
                self._write(step, state)
            except Exception as error:
                self._failure = error

        self._writer = threading.Thread(target=write, name="coadapt-checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Wait for a checkpoint in the background; log an error if it could not be written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            log.error("%s; training continues without it", failure)

    def latest(self) -> dict[str, Any] | None:
        """The newest undamaged state; logs a warning for every damaged one."""
        for path in reversed(self.files()):
            try:
                return _read(path)
            except (OSError, ValueError, RuntimeError, EOFError, KeyError) as error:
                log.warning("checkpoint %s is damaged (%s); using the one before", path.name, error)
        return None

    def files(self) -> list[Path]:
        """All checkpoints, oldest first."""
        return sorted(self.directory.glob("step-*.ckpt"))

    def _owner(self) -> int:
        try:
            return int((self.directory / _FENCE).read_text())
        except (OSError, ValueError):
            return -1

    def _write(self, step: int, state: dict[str, Any]) -> None:
        if (newer := self._owner()) > self.attempt:
            raise CoadaptError(f"attempt {newer} has replaced attempt {self.attempt}: nothing was saved")
        path = self.directory / f"step-{step:012d}.ckpt"
        try:
            _write_whole(path, lambda file: _put(file, state))
        except OSError as error:
            raise CoadaptError(f"cannot save checkpoint {path}: {error.strerror or error}") from error
        self._prune()

    def _prune(self) -> None:
        files, size = self.files(), 0
        for number, path in enumerate(reversed(files)):
            with suppress(OSError):
                size += path.stat().st_size
                if number >= self.keep or (number and size > self.budget_bytes):
                    path.unlink()


def _put(file: IO[bytes], state: dict[str, Any]) -> None:
    memory = io.BytesIO()
    torch.save(state, memory)
    payload = memory.getbuffer()
    file.write(payload)
    file.write(hashlib.sha256(payload).digest() + _MARK)


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    payload, digest, mark = data[: -_DIGEST - 8], data[-_DIGEST - 8 : -8], data[-8:]
    if mark != _MARK or hashlib.sha256(payload).digest() != digest:
        raise ValueError("its digest does not match")
    # our own file, written by the same user's job: it may contain any object
    state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=False)
    return state


def _write_whole(path: Path, put: Any) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            put(file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        with suppress(OSError):
            scratch.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
