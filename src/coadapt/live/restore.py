"""``coadapt restore``: a new home from a backup.

Everything is written to a directory beside the new home, checked, and renamed at the end: a restore is whole or not
there. The backup is only read.

What is restored is a *new cluster*: its home, its store and the key of its agents are others than those of the cluster
that was backed up, so that keepers, homes and agents of the old one have nothing to do with it. The record
``ClusterRestored`` ends the attempts that ran at the time of the backup. Both clusters would run the same jobs: the old
home must not be running, and is fenced where it can be reached.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec

from coadapt.errors import CoadaptError, InputError, StoreError
from coadapt.executors.node.keeper_shutdown import is_locked, keeper_lock, leftovers, tokens_of
from coadapt.live.backup import NAMED_FILES, folded
from coadapt.live.connect import home_flag
from coadapt.model import AnyEvent, ClusterRestored, PauseRequested, Record
from coadapt.model.snapshot import ENDED, HOLDING, Phase
from coadapt.progress import Bars
from coadapt.scheduler.state.state import SchedulerState
from coadapt.store import open_store
from coadapt.store._sql import VERSION as SCHEMA
from coadapt.store.home import Home, StoredCode, write_private
from coadapt.store.home_archive import Header, ListedFile, Manifest, digest_of, read_archive, read_header
from coadapt.store.log import SqlLog
from coadapt.wire.serve_options import ServeOptions

#: What happens to a job that had checkpoints which are not in the new home.
MissingCheckpoints = Literal["restart", "hold"]


class Restored(NamedTuple):
    """Jobs of the backup that have not ended, by what becomes of them, and files that were not as the backup says."""

    header: Header
    jobs: int
    waiting: list[str]
    continuing: list[str]
    #: They ran, and nothing is here from which they could continue.
    from_start: list[str]
    held: list[str]
    without_code: list[str]
    refused_files: list[str]
    fenced: str


def restore_home(
    path: Path,
    home: Home,
    *,
    store: str | None = None,
    checkpoints: Path | None = None,
    missing_checkpoints: MissingCheckpoints = "restart",
    hold: bool = False,
    quiet: bool = False,
) -> Restored:
    """Makes the new home ``home`` from the backup ``path``.

    Args:
        path: The backup.
        home: The new home; an InputError if there is anything in it.
        store: URL of an empty PostgreSQL store; None: a file in the new home.
        checkpoints: Directory with the checkpoints of the old home, from which those of unfinished jobs are copied.
        missing_checkpoints: What happens to a job that had checkpoints which are not there: "restart" from its beginning,
            or "hold" until somebody resumes it.
        hold: Pauses every job, so that nothing runs: for a look, or a drill beside the old cluster.
        quiet: Show no progress bar.
    """
    _check_empty(home.path)
    header = read_header(path)
    if header.schema > SCHEMA:
        raise InputError(
            f"{path} has a store of schema {header.schema}, this coadapt reads up to {SCHEMA}; "
            f"use coadapt {header.coadapt} or a newer one"
        )
    old = Home(header.home)
    if not hold:
        _check_stopped(old, header)
    part = home.path.with_name(f".{home.path.name}.restore-{os.getpid()}")
    try:
        home.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.mkdir(mode=0o700)
        with Bars(quiet=quiet) as bars:
            total, done = max(path.stat().st_size >> 20, 1), [0]

            def advance(count: int) -> None:
                done[0] += count
                bars.update("MiB", min(done[0] >> 20, total), total)

            header, manifest = read_archive(path, part, advance)
        new = Home(part)
        new.make()
        refused = _copy_checkpoints(new, manifest, checkpoints) if checkpoints is not None else []
        found = _restart(new, header, manifest, missing_checkpoints, hold, path)
        _write_settings(new, home, store)
        if store is not None:
            open_store(store).fill_from(part / "store.db")
            for name in ("store.db", "store.db-wal", "store.db-shm"):
                (part / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            home.path.rmdir()
        part.rename(home.path)
    except OSError as error:
        raise InputError(f"cannot restore to {home.path}: {error.strerror or error}") from None
    finally:
        _remove(part)
    fenced = "" if hold else _fence(old, header, home)
    return found._replace(refused_files=refused, fenced=fenced)


def restore_lines(found: Restored, home: Home) -> list[str]:
    """Returns what a user has to know of a restore."""
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.header.made_at))
    lines = [
        f"Restored {home.path} from the backup of {made} ({found.header.home} on {found.header.host}): "
        f"{found.jobs:,} job{'' if found.jobs == 1 else 's'}. What was submitted or changed after that is not there."
    ]
    for names, what in (
        (found.waiting, "Waiting as before"),
        (found.continuing, "Continuing from their checkpoints"),
        (found.from_start, "Starting from their beginning, because no checkpoint of them is here"),
        (found.held, "Paused until 'coadapt resume JOB'"),
        (found.without_code, "Waiting for their code, which was not in the backup ('coadapt why JOB')"),
    ):
        if names:
            lines.append(f"{what}: {_some(names)}.")
    for name in found.refused_files:
        lines.append(f"Not copied, because it is damaged or incomplete: {name}.")
    if found.fenced:
        lines.append(f"{found.fenced} is fenced: 'coadapt serve' refuses it.")
    elif not found.held:
        lines.append(
            f"Do not serve {found.header.home} on {found.header.host} again: both would run the same jobs."
        )
    return [*lines, f"Next: coadapt serve{home_flag(home)}"]


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _check_empty(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} is not empty; a backup is restored to a new home directory")


def _check_stopped(old: Home, header: Header) -> None:
    """InputError if the cluster that was backed up runs on this machine, or was restored here already."""
    if not _is_here(old, header):
        return
    # keeper and hub go on with their jobs after the controller was stopped
    if any(map(is_locked, (old.lock, keeper_lock(old.keeper), keeper_lock(old.hub)))):
        raise InputError(
            f"the cluster of this backup is running in {old.path}; both would run the same jobs. "
            f"Stop it with 'coadapt down{home_flag(old)}', or restore with --hold to look at a copy that runs nothing"
        )
    # a keeper that was killed may have left processes, whom only the next keeper or 'down' would end
    if left := leftovers(tokens_of(old.keeper), old.keeper):
        what = "1 process of a job" if len(left) == 1 else f"{len(left)} processes of jobs"
        raise InputError(
            f"{what} of the cluster of this backup in {old.path} still run; both would run the same jobs. "
            f"End them with 'coadapt down{home_flag(old)}', or restore with --hold to look at a copy that runs nothing"
        )
    with suppress(OSError):
        raise InputError(
            f"the cluster of this backup is fenced: {old.fence.read_text().strip()}; both would run the same jobs. If that "
            f"one is gone, remove {old.fence}, or restore with --hold to look at a copy that runs nothing"
        )


def _is_here(old: Home, header: Header) -> bool:
    with suppress(OSError):
        return (old.path / "id").read_text().strip() == header.home_id
    return False


def _fence(old: Home, header: Header, home: Home) -> str:
    """Keeps the old home from being served; returns its path, or nothing if it is not on this machine."""
    if not _is_here(old, header):
        return ""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    write_private(old.fence, f"its jobs were restored to {home.path} on {when}\n".encode())
    return str(old.path)


def _restart(
    new: Home,
    header: Header,
    manifest: Manifest,
    missing: MissingCheckpoints,
    hold: bool,
    path: Path,
) -> Restored:
    """Makes the store a new one, and appends what the restore changes; returns what becomes of each job."""
    try:
        with closing(open_store(new.path / "store.db").log()) as log:
            if damage := log.damage(full=True):
                raise StoreError(damage[0])
            state = folded(log)
            state.validate()
            found = _outlook(new, header, manifest, state)
            lost = [job for job in found.from_start if job in _with_checkpoints(manifest)]
            paused = manifest.unfinished if hold else tuple(lost) if missing == "hold" else ()
            log.become_new()
            events: list[AnyEvent] = [ClusterRestored(made_at=header.made_at)]
            events += [PauseRequested(job=job) for job in paused]
            _append(log, state, events)
            state.validate()
        if hold:
            # after what still waits there: a submission, or a request to resume
            with closing(open_store(new.path / "store.db").inbox()) as inbox:
                for job in paused:
                    inbox.put(PauseRequested(job=job))
    except (CoadaptError, ArithmeticError, LookupError, ValueError) as error:
        raise InputError(f"the store in {path} cannot be used ({error}); use another backup") from None
    return found._replace(
        held=list(paused),
        waiting=_without(found.waiting, paused),
        continuing=_without(found.continuing, paused),
        from_start=_without(found.from_start, paused),
        without_code=_without(found.without_code, paused),
    )


def _without(names: list[str], others: tuple[str, ...]) -> list[str]:
    return [name for name in names if name not in others]


def _outlook(new: Home, header: Header, manifest: Manifest, state: SchedulerState) -> Restored:
    """What becomes of each job that has not ended."""
    there = StoredCode(new.code)
    found = Restored(header, len(state.jobs), [], [], [], [], [], [], "")
    for name in manifest.unfinished:
        job = state.jobs.get(name)
        if job is not None and job.phase in ENDED:
            continue
        if job is not None and job.spec.code and job.spec.code not in there:
            found.without_code.append(name)
        elif job is None or (job.phase not in HOLDING and job.phase is not Phase.PAUSED):
            found.waiting.append(name)
        elif _has_checkpoints(new, name):
            found.continuing.append(name)
        else:
            found.from_start.append(name)
    return found


def _has_checkpoints(home: Home, job: str) -> bool:
    root = home.checkpoints / quote(job, safe="")
    return root.is_dir() and any(path.is_file() for path in root.rglob("*"))


def _with_checkpoints(manifest: Manifest) -> set[str]:
    return {each.job for each in manifest.checkpoints}


def _append(log: SqlLog, state: SchedulerState, events: list[AnyEvent]) -> None:
    at = max(time.time(), state.now)
    first = log.last() + 1
    records = [Record(seq=first + number, at=at, event=event) for number, event in enumerate(events)]
    for record in records:
        state.apply(record)
    log.append(records)


def _copy_checkpoints(new: Home, manifest: Manifest, source: Path) -> list[str]:
    """Copies the checkpoints of unfinished jobs; returns those that the backup lists and that are not as they were.

    A file that the backup does not list, or that is newer than the list, was written after the backup: it is copied, too.
    """
    if not source.is_dir():
        raise InputError(f"--checkpoints {source}: no such directory")
    listed = {(each.job, each.name): each for each in manifest.checkpoints}
    refused = []
    for job in manifest.unfinished:
        root, target = source / quote(job, safe=""), new.checkpoints / quote(job, safe="")
        if root.is_symlink() or not root.is_dir():
            continue
        for path in sorted(each for each in root.rglob("*") if each.is_file() and not each.is_symlink()):
            name = str(path.relative_to(root))
            if (known := listed.get((job, name))) is not None and _is_damaged(path, known):
                refused.append(f"{job}/{name}")
                continue
            copy = target / name
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    return refused


def _is_damaged(path: Path, known: ListedFile) -> bool:
    return path.stat().st_size < known.bytes or (
        path.stat().st_size == known.bytes and bool(known.sha256) and digest_of(path) != known.sha256
    )


def _write_settings(new: Home, home: Home, store: str | None) -> None:
    """The options as they were, except where things are."""
    options = new.read_options()
    changes: dict[str, str] = {"store": store or ServeOptions().store}
    for option in NAMED_FILES:
        if (new.path / "settings" / option).exists():
            changes[option] = str(home.path / "settings" / option)
    new.write_options(msgspec.structs.replace(options, **changes))


def _remove(part: Path) -> None:
    if part.exists():
        for folder, _, _ in os.walk(part):
            with suppress(OSError):
                Path(folder).chmod(0o700)  # code directories may be read-only
        shutil.rmtree(part, ignore_errors=True)
