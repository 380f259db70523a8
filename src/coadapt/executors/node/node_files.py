"""Files of jobs on one machine: where code, checkpoints, paces and output are, and how they are read for others.

    HOME/code/SHA256/            frozen code
    HOME/work/JOB/               a job's own copy of it, in which it runs
    HOME/checkpoints/JOB/        what a job saved
    HOME/accounts/NAME/          what belongs to a Unix account that jobs run as
    HOME/paces/PROFILE.TYPE.json step times of virtual GPUs
    KEEPER/logs/JOB.ATTEMPT/     output of its replicas: RANK.out, RANK.err

Nothing above the node knows this layout. Jobs can write there, and could leave links to what is not theirs to show:
what is read for others is opened beneath its directory and nowhere else.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from coadapt.executors.node.accounts import Account, open_passages, own_code
from coadapt.executors.node.replica_logs import directory_of
from coadapt.wire.node_messages import LogSlice, SavedCheckpoint, Stream

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# opening a named pipe must not block
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Files of coadapt.torch next to its checkpoints (docs/agent-protocol.md), from which nothing can resume.
_BESIDE = frozenset(["attempt", "history.jsonl"])
_STEP = re.compile(r"(\d{1,15})")


class NodeFiles:
    """Implements ``runtime.ports.JobFiles`` for one machine; used by the keeper and by the API.

    Args:
        keeper: the keeper's directory.
        home: holds code, checkpoints and paces; without it there are none.
        checkpoints: holds checkpoints instead of the home.
    """

    def __init__(self, keeper: Path, home: Path | None = None, checkpoints: Path | None = None) -> None:
        self.keeper, self._home = keeper, home
        self._checkpoints = checkpoints or (None if home is None else home / "checkpoints")

    # -- where things are ----------------------------------------------------------------------------

    def code_directory(self, sha: str) -> str:
        """Returns the working directory of a job's command; empty: the keeper's. FileNotFoundError if the code is missing."""
        if self._home is None or not sha:
            return ""
        found = self._home / "code" / quote(sha, safe="")
        if sha in (".", "..") or not found.is_dir():
            raise FileNotFoundError(f"the job's code is not on this machine: {sha.rpartition('/')[2]}")
        return str(found)

    def work_directory(self, job: str, sha: str) -> str:
        """Returns the working directory of a job's command, its own copy of its code; empty: the keeper's.

        It stays for all attempts of the job, with what the job writes there. The code itself is never a working directory: one job
        would change it for the others. FileNotFoundError if the code is missing.
        """
        code = self.code_directory(sha)
        if not code or self._home is None:
            return ""
        found = self._home / "work" / quote(job, safe="")
        if not found.is_dir():
            found.parent.mkdir(mode=0o700, exist_ok=True)
            # whole when it gets its name
            part = Path(tempfile.mkdtemp(prefix=".", suffix=".part", dir=found.parent))
            try:
                shutil.copytree(code, part / "code", symlinks=True)
                (part / "code").rename(found)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return str(found)

    def account_code_directory(self, sha: str, account: Account) -> str:
        """Returns the working directory of a job that runs as ``account``; empty without a home or code."""
        code = self.code_directory(sha)
        if not code or self._home is None:
            return ""
        return str(own_code(self._home, Path(code), account))

    def open_to_accounts(self) -> None:
        """Lets Unix accounts reach their own files in the home."""
        if self._home is not None:
            open_passages(self._home)

    def checkpoint_directory(self, job: str) -> Path | None:
        """Returns the directory of a job's checkpoints, whatever characters its name has; None without a home."""
        return None if self._checkpoints is None else self._checkpoints / quote(job, safe="")

    def pace(self, profile: str, gpu_type: str) -> str:
        """Returns the file with the step times of a profile on a GPU type; empty if there is none."""
        if self._home is None or not profile:
            return ""
        path = self._home / "paces" / f"{quote(profile, safe='')}.{quote(gpu_type, safe='')}.json"
        return str(path) if path.is_file() else ""

    def log_directory(self, job: str, attempt: int) -> Path:
        """Returns the directory with the output of an attempt."""
        return directory_of(self.keeper, job, attempt)

    # -- what is read for others ---------------------------------------------------------------------

    def read_log(
        self, job: str, attempt: int, rank: int, stream: Stream, offset: int, limit: int
    ) -> LogSlice | None:
        """Reads ``limit`` bytes at ``offset`` of ``stream`` of replica ``rank`` in ``attempt`` of ``job``; see
        ``JobFiles.read_log``.
        """
        path = self.log_directory(job, attempt)
        try:
            with file_beneath(path.parent, path.name, f"{rank}.{stream}") as file:
                return _slice(file, offset, limit)
        except FileNotFoundError:
            return None

    def checkpoints(self, job: str) -> list[SavedCheckpoint]:
        """Returns the checkpoints of a job, unordered, including incomplete ones."""
        path = self.checkpoint_directory(job)
        if path is None:
            return []
        try:
            with directory_beneath(path.parent, path.name) as directory:
                files = list(regular_files(directory))
        except FileNotFoundError:
            return []
        return [_checkpoint(name, found) for name, found in files if name not in _BESIDE]


def _slice(file: BinaryIO, offset: int, limit: int) -> LogSlice:
    size = os.fstat(file.fileno()).st_size
    start = max(size + offset, 0) if offset < 0 else offset if offset <= size else 0  # it was emptied
    with suppress(OSError):  # the beginning of a long file is a hole: the keeper freed it
        start = os.lseek(file.fileno(), start, os.SEEK_DATA)
    file.seek(start)
    data = file.read(limit)
    end = start + len(data)
    return LogSlice(data=data, offset=end, at_end=end >= size)


def _checkpoint(name: str, found: os.stat_result) -> SavedCheckpoint:
    step = _STEP.search(name)
    return SavedCheckpoint(
        name=name.encode(errors="replace").decode(),
        step=int(step[1]) if step else 0,
        bytes=found.st_size,
        made_at=found.st_mtime,
        # a checkpoint is written under another name and renamed when it is complete
        whole=not (name.startswith(".") or name.endswith((".tmp", ".part"))),
    )


@contextmanager
def directory_beneath(root: Path, *parts: str) -> Iterator[int]:
    """Opens a directory part by part and follows no link; FileNotFoundError if there is none."""
    found = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = _open(part, _DIRECTORY, found)
            os.close(found)
            found = inner
        yield found
    finally:
        os.close(found)


@contextmanager
def file_beneath(root: Path, *parts: str) -> Iterator[BinaryIO]:
    """Opens a regular file and follows no link; FileNotFoundError if there is none."""
    with directory_beneath(root, *parts[:-1]) as directory:
        found = _open(parts[-1], _FILE, directory)
    with os.fdopen(found, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(parts[-1])
        yield file


def regular_files(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yields names and status of the regular files in an open directory."""
    for name in os.listdir(directory):
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                yield name, found


def _open(part: str, flags: int, directory: int) -> int:
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise FileNotFoundError(part)
    try:
        return os.open(part, flags, dir_fd=directory)
    except OSError as error:
        # a link, a file instead of a directory, nothing at all: the same to the caller
        raise FileNotFoundError(part) from error
