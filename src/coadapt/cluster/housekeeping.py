"""Keeps what the keeper writes within bounds: long logs of replicas lose their beginning, old ones go, and so does the journal's past."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from coadapt.cluster import logs

#: How often files that grow are looked at, and old ones looked for.
_TRIM_S, _REMOVE_S = 10.0, 3600.0


class Housekeeping:
    """Of one keeper. Called often, it does something now and then."""

    def __init__(
        self,
        directory: Path,
        *,
        most_bytes: int = logs.MOST_BYTES,
        retention_s: float = logs.RETENTION_S,
        also: Callable[[], object] = lambda: None,
    ) -> None:
        self.directory, self.most_bytes, self.retention_s = directory, most_bytes, retention_s
        #: What else is to be cleared when old files are.
        self._also = also
        self._trim_at = self._remove_at = float("-inf")

    def look(self, now: float, in_use: Collection[Path]) -> None:
        """``in_use`` are directories that replicas write to."""
        if now >= self._trim_at:
            self._trim_at = now + _TRIM_S
            for directory in in_use:
                for path in (*directory.glob("*.out"), *directory.glob("*.err")):
                    logs.trim(path, self.most_bytes)
        if now >= self._remove_at:
            self._remove_at = now + _REMOVE_S
            logs.remove_old(self.directory, {path.name for path in in_use}, age_s=self.retention_s)
            self._also()
