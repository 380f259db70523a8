"""The contract of an executor plug-in, and lookup by name (``plugins.EXECUTORS``)."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Literal

    from coadapt.executors.node.keeper_shutdown import Ended
    from coadapt.model import Node
    from coadapt.runtime import Executor, JobFiles, JobSource
    from coadapt.store.home import Home
    from coadapt.wire.serve_options import ServeOptions


class ExecutorPlugin(Protocol):
    """Makes and manages executors of one kind. Usually a class with class methods."""

    def offered_nodes(self, options: ServeOptions) -> Sequence[Node]:
        """Returns the nodes that are known before anything starts; InputError for impossible ``options``. Called by ``serve``."""

    def connect(self, home: Home, options: ServeOptions, *, jobs: JobSource, log: str) -> Executor:
        """Returns the executor of a cluster; called by every controller that starts.

        Args:
            home: home directory of the controller.
            options: what ``coadapt serve`` was started with.
            jobs: asked what to run whenever a job starts.
            log: identity of the event log; actions of any other must be refused.

        A plug-in whose method also takes ``epoch: int`` is told the epoch of the controller's lease: what was told of an epoch must
        refuse controllers of smaller ones, which were replaced and may not know it yet.
        """

    def job_files(self, home: Home, options: ServeOptions) -> JobFiles:
        """Returns access to output and checkpoints for a process beside the controller: the API."""

    # -- without a controller ----------------------------------------------------------------------

    def running_jobs(self, home: Home, options: ServeOptions) -> Collection[str]:
        """Returns the jobs that run, also while no controller does."""

    def end(self, home: Home, options: ServeOptions) -> Ended:
        """Ends all jobs after they saved their state, and confirms that no process is left; for ``coadapt down``."""

    def examine(
        self, home: Home, options: ServeOptions, *, served: bool
    ) -> Iterable[tuple[str, Literal["ok", "warn", "bad"], str, str]]:
        """Returns findings for ``coadapt doctor``: subject, verdict, text and remedy. ``served``: a controller should be
        running.
        """


def find_executor(name: str) -> ExecutorPlugin:
    """Returns the plug-in called ``name``; UnknownNameError if there is none."""
    from coadapt.plugins import EXECUTORS

    return cast("ExecutorPlugin", EXECUTORS.load(name))


def connect_executor(
    name: str, home: Home, options: ServeOptions, *, jobs: JobSource, log: str, epoch: int = 0
) -> Executor:
    """Connects the executor called ``name``; ``home``, ``options``, ``jobs``, ``log`` and ``epoch`` as in
    ``ExecutorPlugin.connect``.
    """
    connect: Callable[..., Executor] = find_executor(name).connect
    fenced = {"epoch": epoch} if "epoch" in signature(connect).parameters else {}
    return connect(home, options, jobs=jobs, log=log, **fenced)
