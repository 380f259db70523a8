"""A directory of results that is there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coadapt.errors import InputError

#: Everything we ever write into such a directory; a directory with nothing else in it is ours.
FILES = frozenset(
    ("summary.json", "jobs.csv", "events.jsonl.gz", "report.html", "trace.json", "compare.json", "runs.csv")
)


def check_directory(target: Path, *, force: bool = False, by: str = "--force") -> None:
    """InputError unless results may be written to ``target``: it is new, empty, ours, or ``force``.

    ``by``: how whoever asked would force it.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"{target} exists and is not a directory; choose another name for the results")
    if not target.exists() or force:
        return
    foreign = _foreign(target)
    if foreign:
        raise InputError(
            f"{target} holds files that are not ours ({foreign[0]}); choose another directory, or write beside them by {by}"
        )


def _foreign(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name not in FILES)


@contextmanager
def fresh_directory(target: Path, *, force: bool = False, by: str = "--force") -> Iterator[Path]:
    """A directory to write into, which becomes ``target`` at the end; on any error nothing is left of it."""
    target = target.absolute()
    check_directory(target, force=force, by=by)
    home = next(parent for parent in target.parents if parent.exists())
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=home))
    except OSError as error:
        raise InputError(f"cannot write to {home}: {error.strerror}") from None
    try:
        yield staging
        _move(staging, target, home)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move(staging: Path, target: Path, home: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    staging.chmod(0o777 & ~mask)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        staging.rename(target)
        return
    if _foreign(target):
        # forced: what is not ours stays
        for name in FILES:
            (target / name).unlink(missing_ok=True)
        for path in list(staging.iterdir()):
            path.replace(target / path.name)
        return
    # a directory cannot be replaced in one step; the old one is complete until the new one is
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=home)) / target.name
    target.rename(old)
    try:
        staging.rename(target)
    except OSError:
        old.rename(target)
        raise
    finally:
        shutil.rmtree(old.parent, ignore_errors=True)


@contextmanager
def fresh_file(target: Path, *, force: bool = False) -> Iterator[Path]:
    """The same for one file; an existing one needs ``force``."""
    if target.is_dir():
        raise InputError(f"{target} is a directory; name a file")
    if target.exists() and not force:
        raise InputError(f"{target} exists; choose another name, or replace it by --force")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
