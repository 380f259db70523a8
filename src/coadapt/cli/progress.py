"""Progress bars: on standard error, on a terminal only, and only for what takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 2.0
_REFRESH_S = 0.1


class Bars:
    """One bar per task. Costs next to nothing where nobody sees it."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.seen = sys.stderr.isatty() and not quiet
        self._began = self._drawn = time.monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, name: str, done: int, total: int) -> None:
        """``done`` of ``total`` are done."""
        if not self.seen:
            return
        now = time.monotonic()
        if now - self._began < PATIENCE_S or (now - self._drawn < _REFRESH_S and done < total):
            return
        self._drawn = now
        bar = self._started()
        if name not in self._tasks:
            self._tasks[name] = bar.add_task(name, total=total)
        bar.update(self._tasks[name], completed=done, visible=done < total)

    def advance(self, name: str, total: int) -> None:
        """One more is done."""
        self._done[name] = self._done.get(name, 0) + 1
        self.update(name, self._done[name], total)

    def _started(self) -> Progress:
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            # transient: what is left on the screen is the answer
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
        return self._progress
