"""The process that simulates forward and folds back, started when it is first needed: one question at a time, each within a limit.

A question that takes too long costs the process its life, and nobody else anything.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from coadapt.server.problems import Refused, unavailable
from coadapt.wire.forward import Ask, Told

_T = TypeVar("_T")
MODULE = "coadapt.cli.forward_process"
#: Seconds for the process to be ready (it has to import much, and to fold the log), and for one answer.
START_S, LIMIT_S = 120.0, 30.0
#: What the process says when it is ready.
READY = b"ready\n"
#: Questions that wait; bytes of an answer; answers that are kept.
_MOST_WAITING, _MOST_BYTES, _MOST_KEPT = 16, 64 << 20, 64


class Forward:
    """Asks the process; used from one event loop."""

    def __init__(self, home: Path, *, module: str = MODULE) -> None:
        self._home, self._module = home, module
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._kept: dict[tuple[int, bytes], bytes] = {}

    async def ask(self, question: Ask, kind: type[_T], *, seq: int | None = None) -> _T:
        """The answer. With ``seq`` it is kept: it is the same while the log has not grown."""
        line = msgspec.json.encode(question)
        if seq is not None and (seq, line) in self._kept:
            return msgspec.json.decode(self._kept[seq, line], type=kind)
        if self._waiting >= _MOST_WAITING:
            raise unavailable("too many simulations are asked for at once; try again", 5.0)
        self._waiting += 1
        try:
            async with self._lock:
                told = await self._told(line)
        finally:
            self._waiting -= 1
        if told.error:
            raise Refused(422, told.error)
        answer = bytes(told.answer)
        if seq is not None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[seq, line] = answer
        return msgspec.json.decode(answer, type=kind)

    async def _told(self, line: bytes) -> Told:
        try:
            async with asyncio.timeout(START_S):
                process = await self._running()
            async with asyncio.timeout(LIMIT_S):
                return await _exchange(process, line)
        except BaseException as error:
            # an answer that comes now would be taken for that to the next question
            await self.stop()
            if isinstance(error, TimeoutError):
                raise unavailable(f"the simulation did not end within {LIMIT_S:.0f} s", 30.0) from None
            if isinstance(error, OSError | ValueError):
                raise unavailable(
                    "the simulation ended without an answer; see the log of the API", 5.0
                ) from None
            raise

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                str(self._home),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_MOST_BYTES,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
            assert self._process.stdout is not None
            if await self._process.stdout.readline() != READY:
                raise ValueError("it did not become ready")
        return self._process

    async def stop(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _exchange(process: asyncio.subprocess.Process, line: bytes) -> Told:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + b"\n")
    await process.stdin.drain()
    return msgspec.json.decode(await process.stdout.readline(), type=Told)
