"""The file that ``coadapt backup`` writes: a tar archive whose first member says what it is, and whose last one lists the rest.

    header.json     format, versions, which home it was made of and when
    NAME ...        files, directories and links of the home
    manifest.json   kind, size, mode and SHA-256 of every member, and what the backup lists without holding it

Because the manifest comes last, a file that was cut off is known as such. ``read_archive`` checks every member while it
is read; the archive is opened for reading only.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Literal, TypeVar

import msgspec

from coadapt.errors import InputError
from coadapt.spec.code_archive import link_fault

FORMAT = 1
_HEADER, _MANIFEST = "header.json", "manifest.json"
_CHUNK = 1 << 20
_MOST_JSON = 1 << 30
#: Told the bytes that were handled.
Advance = Callable[[int], None]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive is."""

    format: int = FORMAT
    #: Version of the coadapt that wrote it, and of the tables of the store in it.
    coadapt: str
    schema: int
    #: Unix seconds.
    made_at: float
    #: The home it was made of: its path, its id and its machine.
    home: str
    home_id: str
    host: str
    #: Id of the store.
    store: str


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A file, directory or link of the archive; the digest of a link is of what it points to."""

    name: str
    kind: Literal["file", "directory", "link"]
    bytes: int = 0
    mode: int = 0o600
    sha256: str = ""


class ListedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint at the time of the backup; ``held``: the archive holds it. Without a digest it was not read."""

    job: str
    name: str
    bytes: int
    sha256: str = ""
    held: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an archive holds."""

    members: tuple[Member, ...]
    #: Jobs that have not ended, and those of them whose code was not in the home.
    unfinished: tuple[str, ...] = ()
    without_code: tuple[str, ...] = ()
    checkpoints: tuple[ListedFile, ...] = ()


class ArchiveWriter:
    """Adds members to an archive that is being written (``new_archive``)."""

    def __init__(self, tar: tarfile.TarFile, advance: Advance) -> None:
        self._tar, self._advance = tar, advance
        self._members: list[Member] = []

    def add_bytes(self, name: str, data: bytes, mode: int = 0o600) -> None:
        """Adds a file with this content."""
        self._add_stream(name, io.BytesIO(data), len(data), mode)

    def add_file(self, name: str, path: Path) -> Member:
        """Adds a regular file as it is when it is opened; a file that shrinks meanwhile is an InputError."""
        with _opened(path) as file:
            found = os.fstat(file.fileno())
            return self._add_stream(name, file, found.st_size, stat.S_IMODE(found.st_mode))

    def add_tree(self, name: str, root: Path) -> None:
        """Adds a directory with everything in it; what is neither file, directory nor link to the inside is left out.

        Jobs run there: what one of them removes meanwhile is left out, too.
        """
        self._add_directory(name, root)
        for each in sorted(root.iterdir()):
            inner = f"{name}/{each.name}"
            with suppress(FileNotFoundError):
                found = each.lstat()
                if stat.S_ISLNK(found.st_mode):
                    target = os.readlink(each)  # noqa: PTH115 - as written, not resolved
                    if not _leaves(inner, target):
                        self._add_link(inner, target)
                elif stat.S_ISDIR(found.st_mode):
                    self.add_tree(inner, each)
                elif stat.S_ISREG(found.st_mode):
                    self.add_file(inner, each)

    def finish(
        self,
        unfinished: tuple[str, ...],
        without_code: tuple[str, ...],
        checkpoints: tuple[ListedFile, ...],
    ) -> Manifest:
        """Writes the manifest; ``unfinished``, ``without_code`` and ``checkpoints`` as in ``Manifest``."""
        manifest = Manifest(
            members=tuple(self._members),
            unfinished=unfinished,
            without_code=without_code,
            checkpoints=checkpoints,
        )
        # not by msgspec: a file may have a name that is no UTF-8, of which its JSON knows nothing
        _put(self._tar, _MANIFEST, json.dumps(msgspec.to_builtins(manifest)).encode())
        return manifest

    def _add_directory(self, name: str, path: Path) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, stat.S_IMODE(path.stat().st_mode)
        self._tar.addfile(info)
        self._members.append(Member(name=name, kind="directory", mode=info.mode))

    def _add_link(self, name: str, target: str) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(info)
        self._members.append(Member(name=name, kind="link", sha256=_digest(os.fsencode(target))))

    def _add_stream(self, name: str, file: IO[bytes], size: int, mode: int) -> Member:
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, mode
        reader = _Digesting(file, self._advance)
        try:
            self._tar.addfile(info, reader)
        except OSError as error:
            if "unexpected end of data" in str(error):
                raise InputError(f"{name} became shorter while it was read; try again") from None
            raise
        member = Member(name=name, kind="file", bytes=size, mode=mode, sha256=reader.sha256)
        self._members.append(member)
        return member


@contextmanager
def new_archive(path: Path, header: Header, advance: Advance = lambda count: None) -> Iterator[ArchiveWriter]:
    """Writes an archive; it gets its name at the end, after it was read back, unless there is an error.

    Args:
        path: Its file, which must not exist.
        header: What it is.
        advance: Called with the bytes that were handled.
    """
    if path.exists():
        raise InputError(f"{path} exists; choose another name for the backup")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600), "w+b") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _put(tar, _HEADER, msgspec.json.encode(header))
                yield ArchiveWriter(tar, advance)
            file.flush()
            os.fsync(file.fileno())
        read_archive(part, advance=advance)
        _give_name(part, path)
        _sync_directory(path.parent)
    except FileExistsError:
        raise InputError(f"{path} exists; choose another name for the backup") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def _give_name(part: Path, path: Path) -> None:
    """Renames, never over a file that appeared meanwhile where the file system has hard links."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:
        part.rename(path)


def read_header(path: Path) -> Header:
    """Returns the header; InputError if the file is no backup, or one of a newer coadapt."""
    with _reading(path) as tar:
        return _header(tar, path)


def read_archive(
    path: Path, into: Path | None = None, advance: Advance = lambda count: None
) -> tuple[Header, Manifest]:
    """Reads an archive and checks every member; with ``into``, writes the members below that directory.

    Args:
        path: The archive.
        into: An existing, empty directory; None: the members are only checked.
        advance: Called with the bytes that were handled.
    """
    seen: dict[str, Member] = {}
    links: list[tuple[str, str]] = []
    directories: list[tuple[str, int]] = []
    with _reading(path) as tar:
        header = _header(tar, path)
        # next, not iteration, which would begin with the header again
        while (info := tar.next()) is not None:
            if info.name == _MANIFEST:
                manifest = _decoded(_content(tar, info), Manifest, path)
                break
            member = _received(tar, info, path, into, advance)
            if member.name in seen:
                raise _damaged(path, f"{member.name} is in it twice")
            seen[member.name] = member
            if member.kind == "link":
                if not _leaves(info.name, info.linkname):
                    links.append((info.name, info.linkname))
            elif member.kind == "directory":
                directories.append((info.name, member.mode))
        else:
            raise _damaged(path, "its end is missing")
        if tar.next() is not None:
            raise _damaged(path, "something follows its end")
    _compare(seen, manifest, path)
    if into is not None:
        # at the end: nothing is written through a link, or into a directory that may not be written
        for name, target in links:
            (into / name).symlink_to(target)
        for name, mode in reversed(directories):
            (into / name).chmod(mode)
    return header, manifest


def _compare(seen: dict[str, Member], manifest: Manifest, path: Path) -> None:
    listed = {member.name: member for member in manifest.members}
    if absent := sorted(listed.keys() - seen.keys()):
        raise _damaged(path, f"{absent[0]} is missing")
    for name, member in seen.items():
        if listed.get(name) != member:
            raise _damaged(path, f"{name} is not what was written")


def _received(
    tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path, into: Path | None, advance: Advance
) -> Member:
    """Reads one member, and writes it where it is wanted."""
    parts = PurePosixPath(info.name).parts
    if not parts or info.name.startswith("/") or ".." in parts or "\0" in info.name:
        raise _damaged(path, f"{info.name!r} is not a name inside a home directory")
    target = None if into is None else into / info.name
    if target is not None:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if info.isdir():
        if target is not None:
            target.mkdir(mode=0o700, exist_ok=True)
        return Member(name=info.name, kind="directory", mode=info.mode)
    if info.issym():
        if _is_forged(info.name, info.linkname):
            raise _damaged(path, f"{info.name!r} is a link to the outside")
        return Member(name=info.name, kind="link", sha256=_digest(os.fsencode(info.linkname)))
    if not info.isreg():
        raise _damaged(path, f"{info.name!r} is no file")
    source = tar.extractfile(info)
    assert source is not None
    digest, count = hashlib.sha256(), 0
    with _written(target, info.mode) as file:
        while data := source.read(_CHUNK):
            digest.update(data)
            count += len(data)
            advance(len(data))
            if file is not None:
                file.write(data)
    return Member(name=info.name, kind="file", bytes=count, mode=info.mode, sha256=digest.hexdigest())


@contextmanager
def _written(path: Path | None, mode: int) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        yield file
        os.fchmod(file.fileno(), stat.S_IMODE(mode))


def _leaves(name: str, target: str) -> bool:
    """Whether a link may point outside of the tree that it is in (HOME/code/SHA, HOME/checkpoints/JOB)."""
    inside = PurePosixPath(name).parts[2:]
    return not inside or bool(link_fault("/".join(inside), target))


def _is_forged(name: str, target: str) -> bool:
    """Whether no coadapt wrote such a link. Older ones wrote some that may lead outside; these are not made."""
    if target.startswith("/"):
        return True
    depth = len(PurePosixPath(name).parts) - 3
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


@contextmanager
def _reading(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            yield tar
    except tarfile.TarError as error:
        with suppress(OSError), path.open("rb") as file:
            if file.read(16) == b"SQLite format 3\0":
                raise InputError(
                    f"{path} is a store, not the backup of a home (an older coadapt wrote those); "
                    "serve a copy of it: coadapt serve --store COPY"
                ) from None
        raise InputError(
            f"{path} is damaged, or no backup of coadapt ({error}); use another backup"
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _header(tar: tarfile.TarFile, path: Path) -> Header:
    first = tar.next()
    if first is None or first.name != _HEADER:
        raise InputError(f"{path} is no backup of coadapt; 'coadapt backup FILE' writes one")
    content = _content(tar, first)
    version = _decoded(content, _Versioned, path)
    if version.format > FORMAT:
        raise InputError(
            f"{path} has backup format {version.format}, this coadapt reads up to {FORMAT}; "
            f"use coadapt {version.coadapt or 'of the version'} that wrote it, or a newer one"
        )
    return _decoded(content, Header, path)


class _Versioned(msgspec.Struct):
    """What every header has."""

    format: int
    coadapt: str = ""


_T = TypeVar("_T")


def _decoded(data: bytes, kind: type[_T], path: Path) -> _T:
    try:
        return msgspec.convert(json.loads(data), type=kind)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from None


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    source = tar.extractfile(info) if info.isreg() and info.size <= _MOST_JSON else None
    return b"" if source is None else source.read()


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    tar.addfile(info, io.BytesIO(data))


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} is damaged ({what}); use another backup")


class _Digesting:
    """A file that is read once, and its digest."""

    def __init__(self, file: IO[bytes], advance: Advance) -> None:
        self._file, self._advance, self._hash = file, advance, hashlib.sha256()

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(count)
        self._hash.update(data)
        self._advance(len(data))
        return data

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def digest_of(path: Path, advance: Advance = lambda count: None) -> str:
    """Returns the SHA-256 of a regular file; calls ``advance`` with the bytes read."""
    with _opened(path) as file:
        reader = _Digesting(file, advance)
        while reader.read(_CHUNK):
            pass
        return reader.sha256


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, not a link, and no pipe that would block."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        yield file


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
