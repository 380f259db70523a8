"""The executor for machines that join by themselves: ``coadapt node join`` on each (docs/design/0025-engines.md).

The controller speaks with the hub as it does with a keeper, and starts it where none runs; agents on other machines reach
the hub through the API.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from coadapt.errors import CoadaptError, InputError
from coadapt.executors.agent.session_messages import AgentsListed, ListAgents
from coadapt.executors.engines._base import Engine
from coadapt.executors.hub.hub_client import HubAwayError, HubFiles, ask_hub
from coadapt.executors.local import LocalExecutor
from coadapt.executors.node import keeper_shutdown
from coadapt.executors.node.keeper_shutdown import Ended
from coadapt.model import Node
from coadapt.runtime import JobSource, LogSlice, SavedCheckpoint, Stream
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.wire.node_messages import Launch
from coadapt.wire.serve_options import ServeOptions


class JoinedExecutor(LocalExecutor):
    """Implements ``runtime.ports.Executor`` over the hub of a home; arguments as in ``LocalExecutor``."""

    name = "joined"
    help = "Machines that join by 'coadapt node join'."

    def __init__(
        self,
        home: Home,
        *,
        log: str,
        jobs: JobSource,
        checkpoints: Path | None = None,
        grace_s: float = 30.0,
        patience_s: float = 30.0,
        epoch: int = 0,
    ) -> None:
        self._home = home
        self._remote = HubFiles(home.hub, checkpoints or home.checkpoints)
        super().__init__(home.hub, log=log, jobs=jobs, grace_s=grace_s, patience_s=patience_s, epoch=epoch)

    # -- by name (``ExecutorPlugin``) ----------------------------------------------------------------

    @classmethod
    def offered_nodes(cls, options: ServeOptions) -> tuple[Node, ...]:
        """Returns no nodes: machines join later. InputError for options of another executor, or an impossible lease."""
        if options.virtual or options.gpus != "auto":
            raise InputError(
                f"--executor {cls.name} runs jobs on other machines; give --virtual or --gpus to 'coadapt node join' there"
            )
        if options.engine_options and cls.name == "joined":
            raise InputError("--engine-option is for executors that use an engine, as --executor slurm does")
        if not 1.0 <= options.lease_s <= 86400.0:
            raise InputError(f"--lease {options.lease_s:g}s is not possible; it must be from 1s to 24h")
        return ()

    @classmethod
    def connect(
        cls, home: Home, options: ServeOptions, *, jobs: JobSource, log: str, epoch: int = 0
    ) -> JoinedExecutor:
        """Connects to the hub of ``home``, and starts it if none runs.

        ``options``, ``jobs``, ``log`` and ``epoch`` as in ``ExecutorPlugin.connect``.
        """
        return cls(
            home,
            log=log,
            jobs=jobs,
            checkpoints=checkpoint_place(home, options),
            grace_s=options.grace_s,
            epoch=epoch,
        )

    @classmethod
    def engine(cls, home: Home, options: ServeOptions, cluster: str) -> Engine | None:
        """Returns the engine that grants room, for the hub; None: machines join by themselves. ``cluster``: identity of the log."""
        return None

    @classmethod
    def job_files(cls, home: Home, options: ServeOptions) -> HubFiles:  # type: ignore[override]
        """Returns access to output by way of the hub."""
        return HubFiles(home.hub, checkpoint_place(home, options))

    @classmethod
    def running_jobs(cls, home: Home, options: ServeOptions) -> set[str]:
        """Returns the jobs that have not ended, by the hub's rows in the store."""
        from coadapt.executors.hub.hub_journal import running_jobs

        return running_jobs(open_store(home.store(options)).connect())

    @classmethod
    def end(cls, home: Home, options: ServeOptions) -> Ended:
        """Has all jobs save their state and end, then the hub; agents stay joined and wait for the next."""
        before = cls.running_jobs(home, options)
        lines = []
        if before or keeper_shutdown.keeper_runs(home.hub):
            events = open_store(home.store(options)).log()
            identity = events.identity
            events.close()
            executor = cls.connect(home, options, jobs=_NoJobs(), log=identity)
            # an agent that cannot be reached is waited for until its lease has run out
            executor.patience_s += options.lease_s + options.grace_s
            executor.shutdown()
            jobs = (
                "no job ran" if not before else f"{len(before)} running job{'s' * (len(before) > 1)} stopped"
            )
            lines.append(
                f"The hub has ended; {jobs}. Machines that joined wait for the next 'coadapt serve'."
            )
        return Ended(lines, len(before))

    @classmethod
    def examine(
        cls, home: Home, options: ServeOptions, *, served: bool
    ) -> Iterator[tuple[str, Literal["ok", "warn", "bad"], str, str]]:
        """Returns findings about the hub and the machines that joined."""
        if not keeper_shutdown.keeper_runs(home.hub):
            if served:
                yield (
                    "hub",
                    "bad",
                    "not running although the cluster is served",
                    f"see {home.hub / 'keeper.log'}",
                )
            else:
                yield "hub", "ok", "does not run", ""
            return
        try:
            listed = ask_hub(home.hub, ListAgents())
        except HubAwayError as error:
            yield "hub", "bad", str(error), f"see {home.hub / 'keeper.log'}"
            return
        assert isinstance(listed, AgentsListed)
        yield "hub", "ok", f"running, {len(listed.agents)} machines joined", ""
        for each in listed.agents:
            names = ", ".join(each.nodes)
            if each.silent_s > options.lease_s / 3:
                text = f"{names} was last heard {each.silent_s:.0f} s ago; its lease ends in {each.lease_left_s:.0f} s"
                yield "machine", "warn", text, f"look at 'coadapt node join' on {each.machine}"
            elif not each.shares_checkpoints:
                text = f"{names} does not see the checkpoints in {checkpoint_place(home, options)}"
                yield (
                    "machine",
                    "warn",
                    text,
                    "name a directory that all machines see: coadapt serve --checkpoints DIR",
                )

    # -- the port -------------------------------------------------------------------------------------

    def read_log(
        self, job: str, attempt: int, rank: int, stream: Stream, offset: int, limit: int
    ) -> LogSlice | None:
        """Reads output from the machine that has it; arguments as in ``JobFiles.read_log``."""
        return self._remote.read_log(job, attempt, rank, stream, offset, limit)

    def checkpoints(self, job: str) -> Sequence[SavedCheckpoint]:
        """Returns the checkpoints of a job in the shared place."""
        return self._remote.checkpoints(job)

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "coadapt.executors.hub.hub_process", str(self._home.path)]


def checkpoint_place(home: Home, options: ServeOptions) -> Path:
    """Returns the directory of checkpoints that machines share."""
    return Path(options.checkpoints) if options.checkpoints else home.checkpoints


class _NoJobs:
    """Starts nothing."""

    def launch(self, job: str) -> Launch:
        """Raises: a cluster that is being ended starts no job."""
        raise CoadaptError(f"job {job} cannot start: the cluster is being ended")
