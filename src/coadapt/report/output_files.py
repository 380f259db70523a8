"""Output files and directories that appear as a whole or not at all.

A new directory is written under another name and then renamed. One that exists (it may be the working directory, or a
mount point) stays the same directory: its files are written beside, within it, and moved into place at the end.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    if (target.is_symlink() or target.exists()) and not target.is_dir():
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
    try:
        check_directory(target, force=force, by=by)
        target = target.resolve()
        home = target if target.exists() else next(parent for parent in target.parents if parent.exists())
    except OSError as error:
        raise InputError(f"cannot write to {_short(target)}: {error.strerror or error}") from None
    # named before it is created: an interrupt between the two would leave a directory that is never removed
    staging = home / f".coadapt-{secrets.token_hex(8)}"
    try:
        _make(staging)
        yield staging
        _move(staging, target)
    except BrokenPipeError:
        raise  # of standard output, not of a file
    except OSError as error:
        raise InputError(f"cannot write {_short(target)}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _make(staging: Path) -> None:
    try:
        staging.mkdir(mode=0o700)
    except OSError as error:
        raise InputError(f"cannot write to {staging.parent}: {error.strerror}") from None


def _move(staging: Path, target: Path) -> None:
    if target.exists():
        written = {path.name for path in staging.iterdir()}
        for name in sorted(written):
            (staging / name).replace(target / name)
        # of an earlier result; what is not ours stays
        for name in FILES - written:
            (target / name).unlink(missing_ok=True)
        return
    mask = os.umask(0)
    os.umask(mask)
    staging.chmod(0o777 & ~mask)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(target)


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 200 else text[:200] + " ..."


@contextmanager
def fresh_file(target: Path, *, force: bool = False) -> Iterator[Path]:
    """Writes one file as a whole or not at all; an existing one needs ``force``."""
    try:
        _check_file(target, force)
    except OSError as error:
        raise InputError(f"cannot write {_short(target)}: {error.strerror or error}") from None
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {_short(target)}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _check_file(target: Path, force: bool) -> None:
    if target.is_dir():
        raise InputError(f"{target} is a directory; name a file")
    if target.exists() and not force:
        raise InputError(f"{target} exists; choose another name, or replace it by --force")
