"""``coadapt gc``: removes what no job needs any more, by the retention policy of the cluster, and compacts the store.

``garbage_plan`` folds the log and says what may go, how large it is and why; ``collect_garbage`` removes it. What a job needs that has not
ended is never touched, nor what an ended job needs within its retention time (to be retried, or looked at).

A directory is renamed into HOME/trash before it is deleted, so a crash leaves it whole where it was, or in the trash,
which the next run empties. The supervisor runs this every 15 minutes as a process of its own with the lowest priority.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.executors.node.keeper_shutdown import is_locked
from coadapt.executors.node.node_files import NodeFiles
from coadapt.executors.node.replica_logs import trim
from coadapt.live.backup import folded
from coadapt.live.compaction import Packed, compact_store, next_stretch
from coadapt.model import AnyEvent, JobSubmitted, RetryRequested
from coadapt.model.snapshot import ENDED, HOLDING
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState
from coadapt.spec.job_rules import SHA256
from coadapt.store import Store, open_store
from coadapt.store.home import ARCHIVE, Home, write_private
from coadapt.store.sqlite import Database
from coadapt.units import format_duration
from coadapt.wire.serve_options import ServeOptions

log = logging.getLogger(__name__)

Kind = Literal["code", "checkpoints", "logs", "work", "trash"]
#: Seconds for which code that no job uses is kept: between its upload and the submission.
ORPHAN_S = 86400.0
#: Bytes that the output of one replica keeps after the end of its attempt.
ENDED_LOG_BYTES = 16 << 20
_DAY_S = 86400.0


class Item(NamedTuple):
    """Something that may go: a directory, or (``keep`` not None) a file that is shortened to so many bytes."""

    kind: Kind
    path: Path
    bytes: int
    why: str
    keep: int | None = None
    #: It is of no job that this cluster knows.
    orphan: bool = False


class Plan(NamedTuple):
    """What may go, and how many records of the store can be packed in the next step."""

    items: list[Item]
    records: int
    #: Checkpoints of jobs that ended or are not known, and that stay because their retention is forever.
    kept_checkpoints: int


class Collected(NamedTuple):
    """What went."""

    items: int
    bytes: int
    packed: Packed
    #: Bytes that the store lost because it was written anew.
    rebuilt_bytes: int = 0


def garbage_plan(home: Home, *, now: float | None = None) -> Plan:
    """Says what may go."""
    options, now = home.read_options(), time.time() if now is None else now
    store = open_store(home.store(options))
    with closing(store.log()) as events:
        stretch = next_stretch(events, now)
        records = 0 if stretch is None else stretch.last - stretch.first + 1
        # first what waits: what is taken from the inbox meanwhile is then in the log
        with closing(store.inbox()) as inbox:
            asked = inbox.waiting()
        state = folded(events)
    waiting = [event for event in asked if isinstance(event, JobSubmitted)]
    # one that ended is to run again: the controller has not heard of it yet
    again = {event.job for event in asked if isinstance(event, RetryRequested)}
    uses = _uses(state, waiting, again)
    unknown_but_there = {event.job for event in waiting} | again
    kept: list[int] = []
    items = [
        *_trash(home),
        *_code(home, options, uses, now),
        *_copies(home, uses),
        *_work(home, options, state, unknown_but_there, now),
        *_checkpoints(home, options, state, unknown_but_there, now, kept),
        *_logs(home, options, state, now),
    ]
    return Plan(items, records, sum(kept))


def collect_garbage(home: Home, *, rebuild: bool = False) -> Collected:
    """Removes what may go, and compacts the store; InputError if another process does so already.

    ``rebuild``: also writes a file that an older coadapt created anew, if the cluster does not run.
    """
    with collecting(home):
        done = collect(home, garbage_plan(home))
        return done._replace(rebuilt_bytes=rebuild_store(home)) if rebuild else done


def collect(home: Home, found: Plan, *, beat: Callable[[], None] = lambda: None) -> Collected:
    """Removes what ``found`` says, as far as it is still so, and compacts the store; hold ``collecting`` meanwhile."""
    count = removed = 0
    store = open_store(home.store(home.read_options()))
    with closing(_Present(store)) as present:
        for item in found.items:
            beat()
            try:
                gone = _shorten(item) if item.keep is not None else _remove(home, item, present)
            except OSError as error:
                log.warning("cannot remove %s: %s", item.path, error)
                continue
            count, removed = count + gone, removed + (item.bytes if gone else 0)
    with closing(store.log()) as events:
        packed = compact_store(events, beat=beat)
    return Collected(count, removed, packed)


def rebuild_store(home: Home) -> int:
    """Writes a SQLite file that an older coadapt created anew, if the cluster does not run; returns the bytes it lost.

    Such a file reuses its free space, but cannot be shortened in small steps.
    """
    where = home.store(home.read_options())
    if "://" in where or is_locked(home.lock):
        return 0
    with closing(Database(Path(where), synchronous="FULL")) as database:
        return 0 if database.can_shrink else database.rebuild()


@contextmanager
def collecting(home: Home) -> Iterator[None]:
    """Holds the lock of the one collector of a home; InputError if another has it."""
    fd = os.open(home.path / "gc.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"'coadapt gc' is already running in {home.path}; try again later") from None
        yield
    finally:
        os.close(fd)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The last collection by the supervisor, in HOME/gc.json, for ``doctor``."""

    #: Unix seconds.
    at: float = 0.0
    items: int = 0
    bytes: int = 0
    #: Why it failed; empty: it did not.
    error: str = ""
    #: (unix seconds, free bytes of the disk), the oldest first.
    free: tuple[tuple[float, int], ...] = ()


def last_run(home: Home) -> Run:
    """Returns what the last collection noted; nothing if there was none."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((home.path / "gc.json").read_bytes(), type=Run)
    return Run()


def note_run(home: Home, *, items: int = 0, removed: int = 0, error: str = "") -> None:
    """Notes a collection; a full disk is no reason to fail."""
    now, before = time.time(), last_run(home).free
    free = (now, shutil.disk_usage(home.path).free)
    samples = before if before and now - before[-1][0] < _SAMPLE_S else (*before[-_MOST_SAMPLES:], free)
    run = Run(at=now, items=items, bytes=removed, error=error, free=samples)
    with suppress(InputError):
        write_private(home.path / "gc.json", msgspec.json.encode(run))


#: Seconds between two samples of the free space, and how many are kept.
_SAMPLE_S, _MOST_SAMPLES = 1800.0, 48


# -- what may go -------------------------------------------------------------------------------------


class _Use(NamedTuple):
    """Who uses some code: whether a job that has not ended, else when the last one ended."""

    live: bool
    ended_at: float


def _uses(state: SchedulerState, waiting: Iterable[JobSubmitted], again: set[str]) -> dict[str, _Use]:
    found: dict[str, _Use] = {event.spec.code: _Use(True, 0.0) for event in waiting if event.spec.code}
    for job in state.jobs.values():
        if job.spec.code:
            known = found.get(job.spec.code, _Use(False, 0.0))
            live = known.live or job.phase not in ENDED or job.id in again
            found[job.spec.code] = _Use(live, max(known.ended_at, job.finished_at or 0.0))
    return found


def _code(home: Home, options: ServeOptions, uses: dict[str, _Use], now: float) -> Iterator[Item]:
    keep_s = _seconds(options.retain_code_days)
    for path in _entries(home.code):
        # the archive of some code goes with it, never before: the code cannot be shipped without
        sha = path.name.removesuffix(ARCHIVE)
        unused_s = now - max(_modified(path), _modified(home.code / sha))
        if not SHA256.fullmatch(sha):
            if unused_s > ORPHAN_S:
                yield Item("code", path, _bytes(path), "an upload that was interrupted", orphan=True)
            continue
        use = uses.get(sha)
        if use is None:
            if unused_s > ORPHAN_S:
                yield Item("code", path, _bytes(path), "no job of this cluster uses it", orphan=True)
        elif not use.live and keep_s is not None and min(now - use.ended_at, unused_s) > keep_s:
            yield Item(
                "code", path, _bytes(path), f"the last job that used it ended {_ago(now, use.ended_at)}"
            )


def _copies(home: Home, uses: dict[str, _Use]) -> Iterator[Item]:
    """Copies of code that belong to accounts (``--run-as submitter``): they go after the code, and are made again with it."""
    for account in _entries(home.path / "accounts"):
        for path in _entries(account / "code"):
            use = uses.get(path.name)
            if not (home.code / path.name).exists() and not (use is not None and use.live):
                yield Item("code", path, _bytes(path), "a copy of code that has gone")


def _checkpoints(
    home: Home, options: ServeOptions, state: SchedulerState, waiting: set[str], now: float, kept: list[int]
) -> Iterator[Item]:
    keep_s = _seconds(options.retain_checkpoints_days)
    for path in _entries(home.checkpoints):
        name = unquote(path.name)
        job = state.jobs.get(name)
        if name in waiting or (job is not None and job.phase not in ENDED):
            continue
        since = job.finished_at if job is not None else None
        since = path.lstat().st_mtime if since is None else since
        if keep_s is None:
            kept.append(_bytes(path))
        elif now - since > keep_s:
            why = (
                "no job of this cluster has this name" if job is None else f"its job ended {_ago(now, since)}"
            )
            yield Item("checkpoints", path, _bytes(path), why, orphan=job is None)


def _work(
    home: Home, options: ServeOptions, state: SchedulerState, waiting: set[str], now: float
) -> Iterator[Item]:
    """Working directories of jobs: copies of code with what the jobs wrote beside it."""
    keep_s = _seconds(options.retain_code_days)
    for path in _entries(home.work):
        name = unquote(path.name)
        job = state.jobs.get(name)
        if name in waiting or (job is not None and job.phase not in ENDED):
            continue
        if job is None:
            if now - _modified(path) > ORPHAN_S:
                yield Item("work", path, _bytes(path), "no job of this cluster has this name", orphan=True)
        elif keep_s is not None and now - (job.finished_at or 0.0) > keep_s:
            yield Item("work", path, _bytes(path), f"its job ended {_ago(now, job.finished_at or 0.0)}")


def _logs(home: Home, options: ServeOptions, state: SchedulerState, now: float) -> Iterator[Item]:
    keep_s = _seconds(options.retain_logs_days)
    node = NodeFiles(home.keeper, home.path)
    running = {node.log_directory(j.id, j.attempt).name for j in state.jobs.values() if j.phase in HOLDING}
    for path in _entries(home.keeper / "logs"):
        if path.name in running or not path.is_dir() or path.is_symlink():
            continue
        files = [each for each in _entries(path) if not each.is_symlink() and each.is_file()]
        written = max((each.lstat().st_mtime for each in (path, *files)), default=0.0)
        if keep_s is not None and now - written > keep_s:
            yield Item("logs", path, _bytes(path), f"last written {_ago(now, written)}")
            continue
        for file in files:
            size = file.lstat().st_blocks * 512
            if size > ENDED_LOG_BYTES and _is_over(state, node, path.name):
                yield Item(
                    "logs",
                    file,
                    size - ENDED_LOG_BYTES // 2,
                    "long output of an ended attempt",
                    ENDED_LOG_BYTES,
                )


def _is_over(state: SchedulerState, node: NodeFiles, directory: str) -> bool:
    """Whether the attempt of this directory is known to have ended: the log may be behind the keeper."""
    name, _, attempt = directory.rpartition(".")
    job: JobState | None = state.jobs.get(unquote(name))
    if job is None or not attempt.isdigit():
        return False
    return job.attempt > int(attempt) or (job.attempt == int(attempt) and job.phase not in HOLDING)


def _trash(home: Home) -> Iterator[Item]:
    for path in _entries(home.trash):
        yield Item("trash", path, _bytes(path), "left by an interrupted removal")


def _modified(path: Path) -> float:
    """When a path was modified; 0 if there is none."""
    with suppress(OSError):
        return path.lstat().st_mtime
    return 0.0


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _bytes(path: Path) -> int:
    """Bytes on the disk below a path; what is removed meanwhile counts as nothing."""
    total = 0
    with suppress(OSError):
        total += path.lstat().st_blocks * 512
        if path.is_dir() and not path.is_symlink():
            total += sum(_bytes(each) for each in path.iterdir())
    return total


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * _DAY_S


def _ago(now: float, then: float) -> str:
    return f"{format_duration(max(now - then, 0.0))} ago"


# -- removal -----------------------------------------------------------------------------------------


class _Present:
    """Looks again before something is removed: a job may have been retried since the plan was made."""

    def __init__(self, store: Store) -> None:
        self._events, self._inbox, self._writer = store.log(), store.inbox(), store.connect()

    @cached_property
    def _state(self) -> SchedulerState:
        """Folded only if there is something to remove."""
        return folded(self._events)

    @contextmanager
    def unused(self, item: Item) -> Iterator[bool]:
        """Yields whether no job needs the item; meanwhile nobody can ask for one that does, since nothing is written."""
        self._advance()
        with self._writer.transaction(lasting=False):
            asked = self._inbox.waiting()
            self._advance()
            yield not self._needs(item, asked)

    def _advance(self) -> None:
        for record in self._events.read(self._state.seq):
            self._state.apply(record)

    def _needs(self, item: Item, asked: list[AnyEvent]) -> bool:
        new = {event.job: event.spec.code for event in asked if isinstance(event, JobSubmitted)}
        again = {event.job for event in asked if isinstance(event, RetryRequested)}
        jobs = self._state.jobs.values()
        live = {job.id: job.spec.code for job in jobs if job.phase not in ENDED or job.id in again}
        if item.kind == "code":
            return item.path.name.removesuffix(ARCHIVE) in {*live.values(), *new.values()}
        if item.kind == "logs":
            # of an attempt that has ended: a further attempt writes elsewhere
            return False
        return unquote(item.path.name) in {*live, *new, *again}

    def close(self) -> None:
        """Closes the store."""
        for each in (self._events, self._inbox, self._writer):
            each.close()


def _remove(home: Home, item: Item, present: _Present) -> bool:
    """Moves a directory to the trash and deletes it there; False if somebody has used it since the plan."""
    if item.kind == "trash":
        _delete(item.path)
        return True
    used = max(_modified(item.path), _modified(item.path.with_name(item.path.name.removesuffix(ARCHIVE))))
    if item.kind == "code" and time.time() - used < _SINCE_PLAN_S:
        return False  # uploaded again meanwhile
    home.trash.mkdir(mode=0o700, exist_ok=True)
    moved = home.trash / f"{item.path.name[:200]}.{uuid.uuid4().hex[:8]}"
    with present.unused(item) as unused:
        if not unused:
            return False
        item.path.rename(moved)
    _delete(moved)
    return True


#: Code that was used since then is not removed.
_SINCE_PLAN_S = 600.0


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for folder, _, _ in os.walk(path):
            with suppress(OSError):
                Path(folder).chmod(0o700)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _shorten(item: Item) -> bool:
    assert item.keep is not None
    return trim(item.path, item.keep)


def main() -> None:
    """``python -m coadapt.live.garbage HOME``: one collection, as the supervisor starts it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.nice(19)
    home = Home(sys.argv[1])
    try:
        done = collect_garbage(home)
    except (CoadaptError, OSError) as error:
        log.error("%s", error)
        note_run(home, error=str(error))
        sys.exit(1)
    note_run(home, items=done.items, removed=done.bytes)
    if done.items or done.packed.records:
        log.info(
            "removed %d items (%d bytes), packed %d records into %d",
            done.items,
            done.bytes,
            done.packed.records,
            done.packed.kept,
        )


if __name__ == "__main__":
    main()
