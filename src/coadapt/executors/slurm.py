"""The executor for a Slurm partition of Coadapt's own: agents run in batch jobs that are submitted as jobs need nodes.

Everything but the room comes from ``joined``; ``engines.slurm`` speaks with Slurm.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from coadapt.errors import InputError
from coadapt.executors.engines._base import EngineSilentError
from coadapt.executors.engines.slurm import SlurmEngine, SlurmOptions
from coadapt.executors.joined import JoinedExecutor
from coadapt.executors.node.keeper_shutdown import Ended
from coadapt.model import Node
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions

#: Seconds beyond the grace of jobs until every batch job must have ended.
_PATIENCE_S = 60.0


class SlurmExecutor(JoinedExecutor):
    """Implements ``runtime.ports.Executor`` over the hub of a home, with units of a Slurm partition."""

    name = "slurm"
    help = "A Slurm partition: agents in batch jobs, submitted as jobs need nodes."

    @classmethod
    def offered_nodes(cls, options: ServeOptions) -> tuple[Node, ...]:
        """Returns the nodes of the partition; InputError if Slurm does not answer or there is no such partition."""
        super().offered_nodes(options)
        engine = SlurmEngine("", slurm_options(options.engine_options), Home(".").hub)
        engine.check()
        return tuple(each.node for each in engine.nodes())

    @classmethod
    def engine(cls, home: Home, options: ServeOptions, cluster: str) -> SlurmEngine:
        """Returns the engine that grants room; ``cluster``: identity of the event log."""
        return SlurmEngine(cluster, slurm_options(options.engine_options), home.hub / "slurm")

    @classmethod
    def end(cls, home: Home, options: ServeOptions) -> Ended:
        """As for joined machines; then gives all batch jobs back, and waits until Slurm says that they have ended."""
        ended = super().end(home, options)
        log = open_store(home.store(options)).log()
        engine = cls.engine(home, options, log.identity)
        log.close()
        until = time.monotonic() + options.grace_s + _PATIENCE_S
        count = 0
        while True:
            left = sorted({unit.name for unit in engine.units() if unit.state != "ended"})
            if not left:
                break
            if not count:
                count = len(left)
                engine.release(left)
            if time.monotonic() > until:
                raise EngineSilentError(f"batch jobs have not ended: {', '.join(left)}; see 'squeue'")
            time.sleep(0.2)
        lines = [f"{count} batch jobs of Slurm have ended."] if count else []
        return Ended([*ended.lines, *lines], ended.unfinished)


def slurm_options(given: Mapping[str, str]) -> SlurmOptions:
    """Returns the options of an engine as typed; InputError names the wrong one."""
    try:
        return msgspec.convert(dict(given), SlurmOptions, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(field.name for field in msgspec.structs.fields(SlurmOptions))
        raise InputError(f"--engine-option: {error}; Slurm takes {names}") from None
