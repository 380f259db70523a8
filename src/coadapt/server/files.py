"""Opens files beneath a directory and nowhere else: jobs can write there, and could leave links to what is not theirs to show."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# a named pipe must not keep us waiting
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def directory_beneath(root: Path, *parts: str) -> Iterator[int]:
    """A directory, step by step, through no link; FileNotFoundError where there is none."""
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
    """A regular file, through no link; FileNotFoundError where there is none."""
    with directory_beneath(root, *parts[:-1]) as directory:
        found = _open(parts[-1], _FILE, directory)
    with os.fdopen(found, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(parts[-1])
        yield file


def regular_files(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    """Names of the regular files in an open directory, and what is known of them."""
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
        # a link, a file in a directory's place, nothing at all: for whoever asks it is the same
        raise FileNotFoundError(part) from error
