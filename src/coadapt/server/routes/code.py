"""Routes of frozen code: a packed tar is checked against its hash and unpacked beneath HOME/code and nowhere else."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tarfile
from pathlib import Path
from typing import BinaryIO

from starlette.requests import Request

from coadapt.server.audit_trail import attribution
from coadapt.server.http.problems import Refused, unavailable
from coadapt.server.http.routing import Call, Route, check_length, too_large
from coadapt.spec.code_archive import link_fault, name_fault
from coadapt.spec.job_rules import SHA256
from coadapt.wire.api import MOST_CODE, Accepted

MEDIA = "application/x-tar+gzip"
#: What may come out of an archive, and what must stay free on the disk.
_MOST_BYTES, _MOST_FILES, _LEAST_FREE = 2 << 30, 100_000, 1 << 30
#: Seconds between two parts of an archive, and archives that are received at once.
_PART_S, _AT_ONCE = 30.0, 4


class Receiver:
    """Receives archives, a limited number at once."""

    def __init__(self) -> None:
        self._busy = 0

    async def put(self, call: Call) -> Accepted:
        """``PUT /v1/code/{sha256}``."""
        sha, root = call.path["sha256"], call.services.home.code
        if not SHA256.fullmatch(sha):
            raise Refused(422, "code is named by its SHA-256, 64 hexadecimal digits in lower case")
        if call.request.headers.get("content-type", "") != MEDIA:
            raise Refused(415, f"the header Content-Type must be {MEDIA}")
        check_length(call.request, MOST_CODE)
        if sha in call.services.code:
            return Accepted()
        if self._busy >= _AT_ONCE:
            raise unavailable("too many uploads at once; try again")
        self._busy += 1
        part = root / f".{sha}.{os.urandom(4).hex()}.part"
        try:
            part.mkdir(mode=0o700, parents=True)
            await self._receive(call.request, part / "archive", sha)
            await asyncio.to_thread(_unpack, part / "archive", part / "code")
            _into_place(part / "code", root / sha)
        finally:
            self._busy -= 1
            shutil.rmtree(part, ignore_errors=True)
        if (who := attribution()) is not None:
            call.services.audit.note(who, "upload", sha)
        return Accepted()

    async def _receive(self, request: Request, path: Path, sha: str) -> None:
        if shutil.disk_usage(path.parent).free < _LEAST_FREE + MOST_CODE:
            raise unavailable("not enough disk space", 60.0)
        digest = hashlib.sha256()
        with path.open("wb") as file:
            await _copy(request, file, digest)
        if digest.hexdigest() != sha:
            raise Refused(422, f"the SHA-256 of the received data is {digest.hexdigest()}")


async def _copy(request: Request, file: BinaryIO, digest: hashlib._Hash) -> None:
    size, parts = 0, request.stream()
    while True:
        try:
            part = await asyncio.wait_for(anext(parts), _PART_S)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refused(408, f"no data received for {_PART_S:.0f} s") from None
        size += len(part)
        if size > MOST_CODE:
            raise too_large(MOST_CODE)
        digest.update(part)
        file.write(part)


def _unpack(archive: Path, into: Path) -> None:
    """Only files, directories and links within, and not too much of it.

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
                if files > _MOST_FILES or size > _MOST_BYTES:
                    raise Refused(
                        422,
                        f"the code is more than {_MOST_FILES:,} files or {_MOST_BYTES >> 30} GiB unpacked",
                    )
                members.check(member)
                tar.extract(member, into, filter="data")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        # a file system's own complaint would name our directories
        what = str(error) if isinstance(error, tarfile.ReadError) else type(error).__name__
        raise Refused(422, f"the code cannot be unpacked ({what[:100]})") from None


class Members:
    """Checks the members of an archive in their order: none is written through a link or over another.

    By induction every link leads inside: its own directory is real, ``..`` stands at the beginning of its target only,
    and whatever the rest of the target passes through are links that were checked, too.
    """

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._links: set[str] = set()

    def check(self, member: tarfile.TarInfo) -> None:
        """Raises Refused if the member may not be unpacked."""
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
            raise Refused(422, f"{name[:100]!r} in the archive {fault}")
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


def _into_place(unpacked: Path, place: Path) -> None:
    try:
        unpacked.rename(place)
    except OSError:
        if not place.is_dir():  # not merely that another was faster with the same
            raise


def routes() -> tuple[Route, ...]:
    """With a count of their own."""
    return (Route("PUT", "/v1/code/{sha256}", Receiver().put, Accepted, "writer", status=201, media=MEDIA),)
