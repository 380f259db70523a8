"""The lookahead process: simulates the live state forward and folds past states for the API, one question at a time.

It is a process of its own because it takes seconds of CPU and needs policies, which are composed by ``cli``. Questions
and answers are one line of JSON each, over its standard streams.

``Forward`` is the API's side: it starts the process when it is first needed and asks it. A question that exceeds its
time limit ends the process; nothing else is affected.

``python -m coadapt.server.lookahead_process HOME`` is the other side. It runs at lower priority than everything else,
and ends with the API, when its standard input ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from coadapt.model import JobSpec
from coadapt.model.interval import Interval, Outlook
from coadapt.server.http.problems import Refused, store_away, unavailable

log = logging.getLogger("coadapt.forward")

if TYPE_CHECKING:
    from coadapt.scheduler import Scheduler, SchedulerState
    from coadapt.store.home import Home
    from coadapt.store.log import SqlLog
    from coadapt.wire.serve_options import ServeOptions


class AskEta(msgspec.Struct, frozen=True, kw_only=True, tag="eta"):
    """Question: start and end of every job."""


class AskPreview(msgspec.Struct, frozen=True, kw_only=True, tag="preview"):
    """Question: the outcome of submitting a job, as specified and at each number of replicas in ``sizes``."""

    spec: JobSpec
    sizes: tuple[int, ...]


class AskWhy(msgspec.Struct, frozen=True, kw_only=True, tag="why"):
    """Question: why a job had its allocation at a moment of the past."""

    job: str
    at: float


class AskDeadline(msgspec.Struct, frozen=True, kw_only=True, tag="deadline"):
    """Question: whether the deadline of a job can be promised; ``job``: one that was submitted before and is changed."""

    spec: JobSpec
    job: str | None = None


Ask = AskEta | AskPreview | AskWhy | AskDeadline


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as JSON, or one line that says why there is none."""

    answer: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


_T = TypeVar("_T")
MODULE = "coadapt.server.lookahead_process"
#: Seconds for the process to be ready (it has to import much, and to fold the log), and for one answer.
START_S, LIMIT_S = 120.0, 30.0
#: What the process says when it is ready.
READY = b"ready\n"
#: Questions that wait; bytes of an answer; answers that are kept.
_MOST_WAITING, _MOST_BYTES, _MOST_KEPT = 16, 64 << 20, 64


class Forward:
    """The API's side: starts the process and asks it; used from one event loop."""

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
            raise unavailable("too many simulations are queued; try again", 5.0)
        self._waiting += 1
        try:
            async with self._lock:
                told = await self._told(line)
        finally:
            self._waiting -= 1
        if told.error == AWAY:
            raise store_away()
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
                raise unavailable("the simulation failed; see the log of the API", 5.0) from None
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
        """Ends the process, if it runs."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


#: Seconds after a table was read in which its predictions are made anew, and from its first reading to the first of them.
_LOOKED_AT_S, _FIRST_S = 30.0, 2.0
#: Least seconds between two look-aheads for tables, as such and in times of what one took; and for which one is new enough.
_PAUSE_S, _PAUSE_TIMES, _OUTDATED_S = 15.0, 20.0, 60.0


class Outlooks:
    """The newest look-ahead over all jobs, for tables.

    Reading it costs nothing. It is made anew in the background, at most a twentieth of the time, and only while somebody
    reads tables with waiting jobs in them.
    """

    def __init__(self, forward: Forward, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._forward, self._clock = forward, clock
        self._found: dict[str, Outlook] = {}
        self._seq, self._made_at, self._next_at = -1, -math.inf, math.inf
        self._read_at = -math.inf
        #: Counts look-aheads: a row that was made from an older one is out of date.
        self.version = 0

    def of(self, job: str) -> Interval | None:
        """Returns the end of a job as of the newest look-ahead; None if it is not known."""
        self._read_at = self._clock()
        if math.isinf(self._next_at):
            self._next_at = self._read_at + _FIRST_S
        found = self._found.get(job)
        return None if found is None else found.finishes

    async def make(self, seq: int) -> dict[str, Outlook]:
        """Looks ahead from the log up to ``seq``, unless that was done before."""
        began = self._clock()
        self._found = await self._forward.ask(AskEta(), dict[str, Outlook], seq=seq)
        self._seq, self._made_at = seq, self._clock()
        self._next_at = self._made_at + max(_PAUSE_S, _PAUSE_TIMES * (self._made_at - began))
        self.version += 1
        return self._found

    async def refresh(self, seq: int) -> None:
        """Looks ahead again if somebody reads tables, something has changed, and the last time is long enough ago."""
        now = self._clock()
        outdated = seq != self._seq or now - self._made_at >= _OUTDATED_S
        if outdated and now >= self._next_at and now - self._read_at < _LOOKED_AT_S:
            try:
                await self.make(seq)
            except Refused as refused:
                log.info("no look-ahead for tables: %s", refused)
                self._next_at = self._clock() + _OUTDATED_S


async def _exchange(process: asyncio.subprocess.Process, line: bytes) -> Told:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + b"\n")
    await process.stdin.drain()
    return msgspec.json.decode(await process.stdout.readline(), type=Told)


#: The error of an answer that needs a store which is away.
AWAY = "the store does not answer"


class Answers:
    """Answers questions in the process. Follows the log on its own, so that a question costs only what is new."""

    def __init__(self, home: Home) -> None:
        from coadapt.server.log_follower import Follower
        from coadapt.server.services import newest_state
        from coadapt.store import open_store

        self.options: ServeOptions = home.read_options()
        self._log: SqlLog = open_store(home.store(self.options)).log()
        self._follower: Follower = Follower(self._log, newest_state(self._log))

    def of(self, question: Ask) -> Any:
        """Returns the answer to a question, as an object that can be encoded."""
        from coadapt.errors import InputError
        from coadapt.simulation.lookahead import deadline_promise, forward, preview

        if isinstance(question, AskWhy):
            return self._why(question.job, question.at)
        while self._follower.refresh(force=True):
            pass
        state = self._follower.state
        if isinstance(question, AskEta):
            return forward(state, self._scheduler, now=self._follower.now)
        if isinstance(question, AskDeadline):
            if question.job is not None and question.job not in state.jobs:
                raise InputError(f"job {question.job!r} is not in the log yet; try again")
            return deadline_promise(
                state, self._scheduler, question.spec, job=question.job, now=self._follower.now
            )
        return preview(state, self._scheduler, question.spec, question.sizes, now=self._follower.now)

    def _scheduler(self, state: SchedulerState) -> Scheduler:
        from coadapt.runtime.controller import scheduler_of

        scheduler = scheduler_of(self.options)
        scheduler.state = state
        return scheduler

    def _why(self, job: str, at: float) -> Any:
        """The log folded up to then; from a snapshot that is old enough, if there is one."""
        from coadapt.errors import InputError
        from coadapt.explain.explanation import why

        state = _state_before(self._log, at)
        for record in self._log.read(state.seq):
            if record.at > at:
                break
            state.apply(record)
        if job not in state.jobs:
            raise InputError(f"job {job!r} had not been submitted then")
        return why(state, job, at)


def _state_before(events: SqlLog, at: float) -> SchedulerState:
    from coadapt.errors import InputError, SavedStateError
    from coadapt.scheduler import SchedulerState
    from coadapt.scheduler.state import saved_state

    found = events.newest_snapshot()
    while found is not None:
        seq, data = found
        try:
            state = saved_state.load(data)
            if state.now <= at:
                return state
        except SavedStateError:
            pass  # of another version: the log has it all
        found = events.newest_snapshot(before=seq)
    if events.first() > 0:
        raise InputError("the log of that time has been deleted")
    return SchedulerState()


def told(answers: Answers, line: bytes) -> Told:
    """Answers one question. An internal error ends the process, and the API starts another."""
    import msgspec

    from coadapt.errors import InputError, StoreError

    try:
        return Told(answer=msgspec.Raw(msgspec.json.encode(answers.of(msgspec.json.decode(line, type=Ask)))))
    except StoreError as error:
        log.error("%s", error)
        return Told(error=AWAY)
    except InputError as error:
        return Told(error=str(error))


def main() -> None:
    """Answers questions until standard input ends."""
    import msgspec

    from coadapt.store.home import Home

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.nice(5)
    answers = Answers(Home(sys.argv[1]))
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(told(answers, line)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
