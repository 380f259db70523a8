"""Directories: the user's data directory, the home of a live cluster, and the keys and the code its processes share.

The user's data directory is ``$COADAPT_HOME``, else the one of the XDG base directory specification:
``$XDG_DATA_HOME/coadapt``, which must be absolute to count, else ``~/.local/share/coadapt``.

The home directory of a live cluster is where each process finds what the others wrote:

    serve.json   options; the controller and the API read nothing else       id           tells this home from others
    store.db     log, inbox, tokens (unless a URL names another store)        serve.lock   held by the supervisor
    keeper/      the keeper's own                                            token        the local admin's
    hub/         the hub's lock, socket and log, where jobs run on other machines
    code/SHA/    frozen code           checkpoints/JOB/                      address      url of the API, once it listens
    controller.log  api.log  serve.log  standby.log      standby.lock  held by the supervisor of a standby
    fenced       where the jobs of this home went: it must not be served again
    trash/       what 'coadapt gc' is about to delete                        gc.lock      held by it
    controller.progress, api.progress  what both do         children.json  how often controller and API ended or hung

Only its owner may read it: the directory is 0700, its files 0600. Keys are random, made by the process that needs one
first. Frozen code lies in directories of HOME/code, named by the hash of the archive they came from.
"""

from __future__ import annotations

import os
import secrets
import stat
import uuid
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from coadapt.errors import InputError
from coadapt.spec.job_rules import SHA256
from coadapt.wire import serve_options
from coadapt.wire.agent import KEY_BYTES
from coadapt.wire.serve_options import ServeOptions


def home(environment: Mapping[str, str] | None = None) -> Path:
    """Returns the user's data directory. It need not exist yet; InputError if it or a parent is not a directory."""
    path = _named(environment)
    there = next((each for each in (path, *path.parents) if os.path.exists(each)), path)  # noqa: PTH110 - never raises
    if there.exists() and not there.is_dir():
        raise InputError(f"{there} is not a directory; set COADAPT_HOME to a directory for coadapt's data")
    return path


def _named(environment: Mapping[str, str] | None) -> Path:
    environment = os.environ if environment is None else environment
    if ours := environment.get("COADAPT_HOME"):
        return Path(ours)
    data = environment.get("XDG_DATA_HOME", "")
    if Path(data).is_absolute():
        return Path(data) / "coadapt"
    try:
        return Path("~/.local/share/coadapt").expanduser()
    except RuntimeError:
        raise InputError(
            "this user has no home directory; set COADAPT_HOME to a directory for coadapt's data"
        ) from None


class Home:
    """Paths inside the home directory of a live cluster; nothing is created before ``make`` is called."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.options_file = self.path / "serve.json"
        self.keeper = self.path / "keeper"
        self.hub = self.path / "hub"
        self.code = self.path / "code"
        self.checkpoints = self.path / "checkpoints"
        #: Working directories of jobs.
        self.work = self.path / "work"
        self.token = self.path / "token"
        self.address = self.path / "address"
        self.lock = self.path / "serve.lock"
        self.standby_lock = self.path / "standby.lock"
        self.children = self.path / "children.json"
        self.fence = self.path / "fenced"
        self.trash = self.path / "trash"

    def make(self) -> None:
        """Creates the directory and its subdirectories, accessible to their owner only."""
        try:
            for path in (self.path, self.keeper, self.code, self.checkpoints):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_IMODE(self.path.stat().st_mode) & ~0o711:  # jobs of other accounts pass through it
                self.path.chmod(0o700)
        except OSError as error:
            raise InputError(f"cannot use the home directory {self.path}: {error.strerror}") from None

    def store(self, options: ServeOptions) -> str:
        """Returns the location of the store: a URL, or the path of a file."""
        return options.store if "://" in options.store else str(self.path / options.store)

    def progress(self, name: str = "controller") -> Path:
        """Returns the file in which the process called ``name`` counts its progress."""
        return self.path / f"{name}.progress"

    def log(self, name: str) -> Path:
        """Returns the path of the log file of the process called ``name``."""
        return self.path / f"{name}.log"

    @property
    def identity(self) -> str:
        """A name that no other home has, created on first use; it moves with the directory."""
        file = self.path / "id"
        if not file.exists():
            write_private(file, f"{uuid.uuid4().hex}\n".encode())
        return file.read_text().strip()

    def read_options(self) -> ServeOptions:
        """Reads the options that the last ``coadapt serve`` wrote."""
        try:
            return serve_options.decode(self.options_file.read_bytes(), str(self.options_file))
        except FileNotFoundError:
            raise InputError(
                f"{self.path} is not the home of a cluster; 'coadapt serve' creates one"
            ) from None
        except OSError as error:
            raise InputError(f"cannot read {self.options_file}: {error.strerror}") from None

    def write_options(self, options: ServeOptions) -> None:
        """Writes the options for the controller and the API."""
        write_private(self.options_file, serve_options.encode(options))


def write_private(path: Path, data: bytes) -> None:
    """Writes a file as a whole or not at all, readable by its owner only."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def secret_of(path: Path) -> bytes:
    """Returns the key in the file, which is created if it does not exist. Two processes that create it at once get the same key."""
    try:
        if not path.exists():
            part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(secrets.token_hex(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(part, path)  # fails if another process was faster
            except FileExistsError:
                pass
            finally:
                part.unlink()
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise InputError(f"the key {path} cannot be used ({error}); remove it and start again") from None
    if len(key) < KEY_BYTES:
        raise InputError(f"the key {path} is too short; remove it and start again")
    return key


#: Ends the name of an archive of code, which begins with the name of the code.
ARCHIVE = ".tar.gz"


class StoredCode(Collection[str]):
    """The hashes of the frozen code in a home."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __contains__(self, sha: object) -> bool:
        return isinstance(sha, str) and SHA256.fullmatch(sha) is not None and (self.root / sha).is_dir()

    def __iter__(self) -> Iterator[str]:
        return (each.name for each in self.root.iterdir() if SHA256.fullmatch(each.name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def archive(self, sha: str) -> Path:
        """Returns the file with the code as it was received, for agents on other machines; it may not be there."""
        return self.root / f"{sha}{ARCHIVE}"
