"""The home directory of a live cluster: where each process finds what the others wrote.

    serve.json   options; the controller and the API read nothing else       id           tells this home from others
    store.db     log, inbox, tokens (unless a URL names another store)        serve.lock   held by the supervisor
    keeper/      the keeper's own                                            token        the local admin's
    code/SHA/    frozen code           checkpoints/JOB/                      address      url of the API, once it listens
    controller.log  api.log  serve.log

Only its owner may look inside: the directory is 0700, its files 0600.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from coadapt.errors import InputError
from coadapt.wire import serve
from coadapt.wire.serve import ServeOptions


class Home:
    """Names of things; nothing is made before ``make`` is called."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.options_file = self.path / "serve.json"
        self.keeper = self.path / "keeper"
        self.code = self.path / "code"
        self.checkpoints = self.path / "checkpoints"
        self.token = self.path / "token"
        self.address = self.path / "address"
        self.lock = self.path / "serve.lock"

    def make(self) -> None:
        """The directory and its rooms, open to their owner only."""
        try:
            for path in (self.path, self.keeper, self.code, self.checkpoints):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise InputError(f"cannot use the home directory {self.path}: {error.strerror}") from None

    def store(self, options: ServeOptions) -> str:
        """Where the store is: a URL, or the path of a file."""
        return options.store if "://" in options.store else str(self.path / options.store)

    def log(self, name: str) -> Path:
        """Where a process writes what it has to say."""
        return self.path / f"{name}.log"

    @property
    def identity(self) -> str:
        """A name no other home has, made when it is first asked for; it moves with the directory."""
        file = self.path / "id"
        if not file.exists():
            write_private(file, f"{uuid.uuid4().hex}\n".encode())
        return file.read_text().strip()

    def read_options(self) -> ServeOptions:
        """As the last ``coadapt serve`` wrote them."""
        try:
            return serve.decode(self.options_file.read_bytes(), str(self.options_file))
        except FileNotFoundError:
            raise InputError(f"{self.path} is no home of a cluster; 'coadapt serve' makes one") from None
        except OSError as error:
            raise InputError(f"cannot read {self.options_file}: {error.strerror}") from None

    def write_options(self, options: ServeOptions) -> None:
        """For the controller and the API."""
        write_private(self.options_file, serve.encode(options))


def write_private(path: Path, data: bytes) -> None:
    """The file as a whole or not at all, readable by its owner only."""
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
