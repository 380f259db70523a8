"""Routes of frozen code: a packed tar is checked against its hash and unpacked beneath HOME/code and nowhere else."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import FileResponse

from coadapt.server.audit_trail import attribution
from coadapt.server.http.problems import Refused, not_found, unavailable
from coadapt.server.http.routing import Call, Route, check_length, too_large
from coadapt.spec.code_archive import unpack
from coadapt.spec.job_rules import SHA256
from coadapt.wire.api import MOST_CODE, Accepted

MEDIA = "application/x-tar+gzip"
#: What must stay free on the disk.
_LEAST_FREE = 1 << 30
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
        archive = call.services.code.archive(sha)
        # code that came while nothing was shipped has no archive: it is received once more
        if sha in call.services.code and (archive.is_file() or not call.services.ships_code):
            # in use again: 'coadapt gc' goes by it
            with suppress(OSError):
                os.utime(root / sha)
            return Accepted()
        if self._busy >= _AT_ONCE:
            raise unavailable("too many uploads at once; try again")
        self._busy += 1
        part = root / f".{sha}.{os.urandom(4).hex()}.part"
        try:
            part.mkdir(mode=0o700, parents=True)
            await self._receive(call.request, part / "archive", sha)
            await asyncio.to_thread(unpack, part / "archive", part / "code")
            if call.services.ships_code:
                # before the code is there: whoever finds the code finds its archive, too
                (part / "archive").replace(archive)
            _into_place(part / "code", root / sha)
        finally:
            self._busy -= 1
            shutil.rmtree(part, ignore_errors=True)
        if (who := attribution()) is not None:
            # enough to find it in HOME/code
            call.services.audit.note(who, "upload", sha[:12])
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


def _into_place(unpacked: Path, place: Path) -> None:
    try:
        unpacked.rename(place)
    except OSError:
        if not place.is_dir():  # not merely that another was faster with the same
            raise


def get(call: Call) -> FileResponse:
    """``GET /v1/code/{sha256}``: the archive as it was received, for agents on other machines."""
    sha = call.path["sha256"]
    path = call.services.code.archive(sha)
    if not SHA256.fullmatch(sha) or not path.is_file():
        raise not_found("code", sha)
    return FileResponse(path, media_type=MEDIA)


def routes() -> tuple[Route, ...]:
    """With a count of their own."""
    return (
        Route("PUT", "/v1/code/{sha256}", Receiver().put, Accepted, "writer", status=201, media=MEDIA),
        Route("GET", "/v1/code/{sha256}", get, None, "node", media=MEDIA),
    )
