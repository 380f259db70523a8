"""Packs a job's code at submission, so that resizes and retries run the same code even if the directory changes.

In a Git repository: the files that Git tracks or would track (commit, changes and new files; .gitignore is obeyed).
Elsewhere: all files except those that .coadaptignore names and those that are never code. The home directory of a
cluster is never packed, because it contains tokens and keys. The same files give the same bytes.
"""

from __future__ import annotations

import fnmatch
import gzip
import io
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from coadapt.errors import InputError

ORIGIN = ".coadapt-origin.json"
IGNORE = ".coadaptignore"
#: Files that identify the home directory of a cluster (``store.home``).
_HOME = ("serve.json", "token", "keeper")
_NEVER = frozenset(
    (".git", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache")
)
#: Limits on the unpacked bytes and files; a larger directory contains data, not code.
MOST_BYTES, MOST_FILES = 1 << 30, 50_000


#: Limits on names in an archive: bytes of a path, bytes of a component, components.
MOST_PATH, MOST_COMPONENT, MOST_DEPTH = 1024, 255, 64
#: Control characters, and those that change the direction of text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def name_fault(name: str) -> str:
    """Returns why a file of this name may not be in an archive; empty: it may."""
    if _CONTROL.search(name):
        return "has control characters in its name"
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        return "is not a path below the directory"
    encoded = [os.fsencode(part) for part in parts]
    if sum(map(len, encoded)) + len(parts) > MOST_PATH or max(map(len, encoded)) > MOST_COMPONENT:
        return f"has a path of more than {MOST_PATH} bytes, or a part of more than {MOST_COMPONENT}"
    if len(parts) > MOST_DEPTH:
        return f"lies more than {MOST_DEPTH} directories deep"
    return ""


def link_fault(name: str, target: str) -> str:
    """Returns why a symbolic link ``name`` to ``target`` may not be in an archive; empty: it may.

    ``..`` is allowed at the beginning of the target only, and no further up than to the directory: behind a name it
    would be resolved from wherever that name leads.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    depth = len([part for part in name.split("/") if part not in ("", ".")]) - 1
    if target.startswith("/") or ".." in parts[up:] or up > depth:
        return "is a link that leads outside"
    if len(parts) == up == depth:
        return "is a link to the directory itself"
    return name_fault("/".join(parts[up:])) if parts[up:] else ""


class Frozen(NamedTuple):
    """The packed code and its origin."""

    data: bytes
    files: int
    commit: str
    #: Whether there were changes that are not in the commit.
    changed: bool

    def __str__(self) -> str:
        what = f"{self.files} file{'' if self.files == 1 else 's'}, {len(self.data) / 1024:,.1f} KiB"
        if not self.commit:
            return what
        return f"{what}, commit {self.commit[:10]}{' with changes' if self.changed else ''}"


def freeze(directory: Path) -> Frozen:
    """Pack the files that a job in ``directory`` may need."""
    if not directory.is_dir():
        raise InputError(f"working directory {directory} does not exist")
    names = _tracked(directory)
    commit, changed = _state(directory) if names is not None else ("", False)
    paths = sorted(_outside_homes(directory, names if names is not None else _walked(directory)))
    stream = io.BytesIO()
    total = files = 0
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in paths:
            size = _add(archive, directory, name)
            if size is None:
                continue
            files, total = files + 1, total + size
            if total > MOST_BYTES or files > MOST_FILES:
                raise InputError(
                    f"working directory {directory} contains more than {MOST_BYTES >> 20} MiB or {MOST_FILES:,} files; exclude data "
                    f"and results with .gitignore or {IGNORE}, or choose another directory with --workdir"
                )
        _add_text(archive, ORIGIN, json.dumps({"commit": commit, "changed": changed}, sort_keys=True))
    return Frozen(stream.getvalue(), files, commit, changed)


def _outside_homes(directory: Path, names: Iterable[str]) -> Iterator[str]:
    """Filter out files in the home directory of a cluster; raises an InputError if ``directory`` is inside one."""
    known: dict[Path, bool] = {}

    def in_home(folder: Path) -> bool:
        if folder not in known:
            is_home = all((directory / folder / name).exists() for name in _HOME)
            known[folder] = is_home or (folder != folder.parent and in_home(folder.parent))
        return known[folder]

    if in_home(Path()):
        raise InputError(
            f"{directory} is the home directory of a cluster, not the code of a job; choose another directory with --workdir"
        )
    return (name for name in names if not in_home(Path(name).parent))


def _add(archive: tarfile.TarFile, directory: Path, name: str) -> int | None:
    """Adds a file or a link that stays inside; returns its size, None for what is left out."""
    path = directory / name
    if name == ORIGIN:
        return None
    if fault := name_fault(name):
        raise InputError(f"{str(path)!r} {fault}; leave it out by .gitignore or {IGNORE}")
    if path.is_symlink():
        target = os.readlink(path)  # noqa: PTH115 - as written, not resolved
        if link_fault(name, target):
            return None
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        archive.addfile(info)
        return 0
    if not path.is_file():
        return None  # deleted since Git listed it, or not a regular file
    try:
        data = path.read_bytes() if path.stat().st_size <= MOST_BYTES else None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if data is None:
        raise InputError(
            f"{path} is larger than {MOST_BYTES >> 20} MiB; exclude it with .gitignore or {IGNORE}"
        )
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755 if path.stat().st_mode & 0o100 else 0o644
    archive.addfile(info, io.BytesIO(data))
    return len(data)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(text.encode()), 0o644
    archive.addfile(info, io.BytesIO(text.encode()))


def _tracked(directory: Path) -> list[str] | None:
    """Files that Git tracks or would, below ``directory``; None where there is no repository, or no Git."""
    listed = _git(directory, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        return None
    return sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})


def _state(directory: Path) -> tuple[str, bool]:
    commit = _git(directory, "rev-parse", "HEAD")
    changes = _git(directory, "status", "--porcelain", "--untracked-files=normal", "--", ".")
    return (commit or b"").decode().strip(), bool((changes or b"").strip())


def _git(directory: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _walked(directory: Path) -> Iterator[str]:
    ignored = _ignored(directory / IGNORE)
    for root, folders, files in os.walk(directory):
        base = Path(root).relative_to(directory)
        folders[:] = sorted(
            folder for folder in folders if folder not in _NEVER and not _matches(str(base / folder), ignored)
        )
        for name in files:
            path = str(base / name)
            if not _matches(path, ignored) and not name.endswith(".pyc"):
                yield path


def _ignored(path: Path) -> list[str]:
    if not path.is_file():
        return []
    lines = (line.strip().rstrip("/") for line in path.read_text(errors="replace").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _matches(path: str, patterns: list[str]) -> bool:
    name = path.rsplit("/", 1)[-1]
    return any(fnmatch.fnmatch(path, each) or fnmatch.fnmatch(name, each) for each in patterns)


#: What may come out of an archive.
MOST_UNPACKED_BYTES, MOST_UNPACKED_FILES = 2 << 30, 100_000


def unpack(archive: Path, into: Path) -> None:
    """Unpacks an archive: only files, directories and links within, and not too much of it. InputError if it is not that.

    The filter "data" of PEP 706 is not enough: in Python releases up to 2025 it resolves links by a function that gives
    up on long paths (CVE-2025-4517). ``Members`` decides by names alone.
    """
    into.mkdir(mode=0o700)
    files, members = 0, Members()
    size = 0
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                files, size = files + 1, size + member.size
                if files > MOST_UNPACKED_FILES or size > MOST_UNPACKED_BYTES:
                    raise InputError(
                        f"the code is more than {MOST_UNPACKED_FILES:,} files or {MOST_UNPACKED_BYTES >> 30} GiB unpacked",
                    )
                members.check(member)
                tar.extract(member, into, filter="data")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        # a file system's own complaint would name our directories
        what = str(error) if isinstance(error, tarfile.ReadError) else type(error).__name__
        raise InputError(f"the code cannot be unpacked ({what[:100]})") from None


class Members:
    """Checks the members of an archive in their order: none is written through a link or over another.

    By induction every link leads inside: its own directory is real, ``..`` stands at the beginning of its target only,
    and whatever the rest of the target passes through are links that were checked, too.
    """

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._links: set[str] = set()

    def check(self, member: tarfile.TarInfo) -> None:
        """Raises InputError if the member may not be unpacked."""
        name = "/".join(part for part in member.name.split("/") if part not in ("", "."))
        fault = name_fault(member.name.rstrip("/")) if name else ""
        if not fault and (member.issym() or member.islnk()):
            fault = self._link_fault(name, member)
        if not fault and (name in self._files or name in self._links):
            fault = "is in the archive twice"
        parents = name.split("/")[:-1]
        above = ["/".join(parents[: at + 1]) for at in range(len(parents))]
        if not fault and any(each in self._links or each in self._files for each in above):
            fault = "lies below a link or a file"
        if fault:
            raise InputError(f"{name[:100]!r} in the archive {fault}")
        if member.issym():
            self._links.add(name)
        elif not member.isdir():
            self._files.add(name)

    def _link_fault(self, name: str, member: tarfile.TarInfo) -> str:
        if member.issym():
            return link_fault(name, member.linkname)
        return (
            "" if member.linkname in self._files else "is a hard link to something else than a file before it"
        )
