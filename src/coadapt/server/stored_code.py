"""Which frozen code is here: directories in HOME/code, named by the hash of the archive they came from."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from coadapt.server.check_spec import SHA256


class StoredCode(Collection[str]):
    """Hashes of the code that is here."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __contains__(self, sha: object) -> bool:
        return isinstance(sha, str) and SHA256.fullmatch(sha) is not None and (self.root / sha).is_dir()

    def __iter__(self) -> Iterator[str]:
        return (each.name for each in self.root.iterdir() if SHA256.fullmatch(each.name))

    def __len__(self) -> int:
        return sum(1 for _ in self)
