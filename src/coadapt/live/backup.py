"""``coadapt backup``: one file from which a home can be restored, written while the cluster runs.

It holds the store as of one moment, settings and keys, the code of jobs that have not ended at that moment (and of jobs
that still wait in the inbox), and a list of their checkpoints, or the checkpoints themselves. The output of jobs is not in
it. Files that only one running cluster can have (locks, its id, the key of its agents) are left out: what is restored is a
new cluster (``live.restore``).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from coadapt.errors import InputError
from coadapt.executors.node.node_files import NodeFiles
from coadapt.model import JobSubmitted
from coadapt.model.snapshot import ENDED
from coadapt.progress import Bars
from coadapt.runtime.loop import restore as newest_state
from coadapt.scheduler.state import saved_state
from coadapt.scheduler.state.state import SchedulerState
from coadapt.store import Store, open_store
from coadapt.store._sql import VERSION as SCHEMA
from coadapt.store.home import Home, StoredCode
from coadapt.store.home_archive import ArchiveWriter, Header, ListedFile, Manifest, digest_of, new_archive
from coadapt.store.log import SqlLog
from coadapt.wire import serve_options
from coadapt.wire.serve_options import ServeOptions

#: What to do with checkpoints of jobs that have not ended.
Checkpoints = Literal["list", "include", "none"]
#: Files of the home that belong to its processes, or would make two clusters one.
_LEFT_OUT = frozenset(
    [
        "id",
        "job_key",
        "serve.json",
        "gc.json",
        "address",
        "fenced",
        "children.json",
    ]
)
_OF_PROCESSES = {".log", ".lock", ".progress"}
#: Options that name a file outside of the home; a copy is in the backup.
NAMED_FILES = ("prices", "tls_cert", "tls_key")
#: Largest file of the home that is taken for a setting.
_MOST_SETTING = 64 << 20


class Backup(NamedTuple):
    """What was written."""

    path: Path
    bytes: int
    header: Header
    manifest: Manifest
    jobs: int


def back_up(home: Home, path: Path, *, checkpoints: Checkpoints = "list", quiet: bool = False) -> Backup:
    """Writes a backup of ``home`` to ``path`` and reads it back.

    Args:
        home: Home directory of a cluster, running or not.
        path: File of the backup, which must not exist.
        checkpoints: "list": with size and digest; "include": in the backup; "none": neither.
        quiet: show no progress bar.
    """
    options = home.read_options()
    if path.exists():
        raise InputError(f"{path} exists; choose another name for the backup")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no directory {path.parent}")
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch, Bars(quiet=quiet) as bars:
        copy = Path(scratch) / "store.db"
        open_store(home.store(options)).backup(copy)
        store = open_store(copy, synchronous="OFF")
        made_at = time.time()
        with closing(store.log()) as log:
            state, identity = folded(log), log.identity
        unfinished, codes = _unfinished(state, store)
        files = list(_checkpoints(home, unfinished)) if checkpoints != "none" else []
        total = copy.stat().st_size + sum(size for _, _, _, size in files)
        done = _Counter(bars, 2 * total)
        header = Header(
            coadapt=version("coadapt"),
            schema=SCHEMA,
            made_at=made_at,
            home=str(home.path),
            home_id=home.identity,
            host=os.uname().nodename,
            store=identity,
        )
        with new_archive(path, header, done) as archive:
            archive.add_file("store.db", copy)
            _add_settings(archive, home, options)
            there = StoredCode(home.code)
            for sha in sorted(set(codes.values())):
                if sha in there:
                    archive.add_tree(f"code/{sha}", home.code / sha)
                    if (packed := there.archive(sha)).is_file():
                        archive.add_file(f"code/{packed.name}", packed)
            listed = tuple(_list(archive, files, include=checkpoints == "include", done=done))
            missing = tuple(job for job in unfinished if codes.get(job) and codes[job] not in there)
            manifest = archive.finish(tuple(unfinished), missing, listed)
    return Backup(path, path.stat().st_size, header, manifest, len(state.jobs))


def folded(log: SqlLog) -> SchedulerState:
    """Returns the present state of a log, from its newest snapshot on."""
    state = newest_state(log, saved_state) or SchedulerState()
    for record in log.read(state.seq):
        state.apply(record)
    return state


def _unfinished(state: SchedulerState, store: Store) -> tuple[list[str], dict[str, str]]:
    """Jobs that have not ended, in order, and the code of each; also those that wait in the inbox."""
    specs = {job.id: job.spec for job in state.jobs.values() if job.phase not in ENDED}
    with closing(store.inbox()) as inbox:
        for event in inbox.waiting():
            if isinstance(event, JobSubmitted) and event.job not in state.jobs:
                specs[event.job] = event.spec
    return list(specs), {name: spec.code for name, spec in specs.items() if spec.code}


def _add_settings(archive: ArchiveWriter, home: Home, options: ServeOptions) -> None:
    archive.add_bytes("serve.json", serve_options.encode(options))
    store = Path(home.store(options)).name if "://" not in options.store else "store.db"
    for path in sorted(home.path.iterdir()):
        name = path.name
        of_store = name.startswith(store)
        if name in _LEFT_OUT or of_store or name.startswith(".") or _OF_PROCESSES & set(path.suffixes):
            continue
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_SETTING:
            archive.add_file(name, path)
    if (home.path / "paces").is_dir():
        archive.add_tree("paces", home.path / "paces")
    for option in NAMED_FILES:
        if named := getattr(options, option):
            with suppress(OSError):  # it may be gone, or not ours to read
                archive.add_file(f"settings/{option}", Path(named).resolve())


def _checkpoints(home: Home, jobs: Iterable[str]) -> Iterator[tuple[str, str, Path, int]]:
    """(job, name inside its directory, path, bytes) of every regular file."""
    node = NodeFiles(home.keeper, home.path)
    for job in jobs:
        root = node.checkpoint_directory(job)
        if root is None or root.is_symlink() or not root.is_dir():
            continue
        for folder, _, names in os.walk(root):
            for name in sorted(names):
                if name.startswith(".") or name.endswith((".tmp", ".part")):
                    continue  # being written; it is renamed when it is complete
                path = Path(folder) / name
                with suppress(OSError):
                    found = path.lstat()
                    if stat.S_ISREG(found.st_mode):
                        yield job, str(path.relative_to(root)), path, found.st_size


def _list(
    archive: ArchiveWriter, files: Iterable[tuple[str, str, Path, int]], *, include: bool, done: _Counter
) -> Iterator[ListedFile]:
    for job, name, path, _ in files:
        try:
            if include:
                root = path.parents[len(Path(name).parts) - 1].name
                member = archive.add_file(f"checkpoints/{root}/{name}", path)
                yield ListedFile(job=job, name=name, bytes=member.bytes, sha256=member.sha256, held=True)
            else:
                size = path.stat().st_size
                yield ListedFile(job=job, name=name, bytes=size, sha256=digest_of(path, done))
        except FileNotFoundError:
            continue  # jobs remove their older checkpoints


class _Counter:
    """Adds up bytes for a progress bar."""

    def __init__(self, bars: Bars, total: int) -> None:
        self._bars, self._total, self._done = bars, max(total >> 20, 1), 0

    def __call__(self, count: int) -> None:
        self._done += count
        self._bars.update("MiB", min(self._done >> 20, self._total), self._total)
