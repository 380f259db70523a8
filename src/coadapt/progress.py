"""Progress bars and notes: on standard error; bars on a terminal only, and only for what takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 2.0
_REFRESH_S = 0.1


class Bars:
    """Progress bars, one per task. Costs next to nothing where no bar is shown."""

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
        """Show that ``done`` of ``total`` are done in task ``name``."""
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
        """Show that one more of ``total`` is done in task ``name``."""
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


class Pulse:
    """Shows that a task of unknown length is running: a bar without a length, and the elapsed time."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what, self._seen = what, sys.stderr.isatty() and not quiet
        self._timer = threading.Timer(PATIENCE_S, self.begin)
        self._timer.daemon = True
        self._lock, self._over = threading.Lock(), False
        self._progress: Progress | None = None

    def __enter__(self) -> Pulse:
        if self._seen:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._progress is not None:
                self._progress.stop()

    def begin(self) -> None:
        """Show the bar; called when the task has taken longer than two seconds."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._over or not self._seen or self._progress is not None:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            # standard output is for the answer, wherever it goes
            self._progress = Progress(
                *columns, console=Console(stderr=True), transient=True, redirect_stdout=False
            )
            self._progress.add_task(self._what, total=None)
            self._progress.start()


def note(text: str) -> None:
    """Print a remark that is not part of the result on standard error."""
    click.echo(f"note: {text}", err=True)
