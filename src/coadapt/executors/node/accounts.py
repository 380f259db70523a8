"""Unix accounts that jobs run as (``coadapt serve --run-as submitter``), and the files of the home that are theirs.

    HOME/accounts/NAME/code/SHA/   a copy of the job's code, which belongs to the account
    HOME/checkpoints/JOB/          belongs to the account

Everything else of the home stays closed to them; the directories above can be passed through and not be listed. Directories
whose entries belong to an account belong to root themselves, so that no account can replace them by links.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from coadapt.errors import InputError

#: A directory of root's that others may pass through and not list.
_PASSAGE = 0o711


class Account(NamedTuple):
    """A Unix account."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a login would set."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


def account_of(name: str) -> Account:
    """Returns the account called ``name``; InputError if there is none, or if it is root's."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise InputError(
            f"there is no Unix account {name!r} on this machine; this cluster runs jobs as the user who submits them"
        ) from None
    if found.pw_uid == 0:
        raise InputError(
            f"jobs of {name!r} would run as root; this cluster runs jobs as the user who submits them: submit with a user's token"
        )
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return Account(name, found.pw_uid, found.pw_gid, groups, found.pw_dir, found.pw_shell or "/bin/sh")


def check_run_as(run_as: str) -> None:
    """InputError if this process cannot run jobs as other accounts."""
    if run_as and os.geteuid() != 0:
        raise InputError(
            "--run-as submitter needs root: only root starts processes as other users; start 'coadapt serve' as root, or omit it"
        )


def open_passages(home: Path) -> None:
    """Lets accounts pass through the directories above their own; called before the first job of an account starts."""
    for path in (home, home / "accounts", home / "checkpoints"):
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(_PASSAGE)


def own_checkpoints(directory: Path, account: Account) -> None:
    """Makes the directory of a job's checkpoints, or gives an existing one of ours to the account."""
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != account.uid:
        _give(directory, account)


def own_code(home: Path, code: Path, account: Account) -> Path:
    """Returns the account's own copy of frozen code, which is made if there is none."""
    place = home / "accounts" / account.name / "code"
    for path in (place.parent, place):
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(_PASSAGE)
    mine = place / code.name
    if mine.is_dir() and not mine.is_symlink():
        return mine
    # made where no account can reach it, and renamed when it is whole
    part = Path(tempfile.mkdtemp(prefix=f".{account.name}.", dir=home / "accounts"))
    try:
        copy = part / code.name
        shutil.copytree(code, copy, symlinks=True)
        _give(copy, account)
        copy.rename(mine)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return mine


def _give(directory: Path, account: Account) -> None:
    """Gives a tree of ours to an account; links themselves, not what they point to."""
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            os.chown(os.path.join(root, name), account.uid, account.gid, follow_symlinks=False)  # noqa: PTH118
    os.chown(directory, account.uid, account.gid)
    directory.chmod(0o700)
