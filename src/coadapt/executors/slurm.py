"""The executor for a Slurm partition of Coadapt's own: agents run in batch jobs that are submitted as jobs need nodes.

Everything but the room comes from ``joined``; ``engines.slurm`` speaks with Slurm.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coadapt.errors import InputError
from coadapt.executors.engines._give_back import give_back_all
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
        count = give_back_all(
            engine,
            within_s=options.grace_s + _PATIENCE_S,
            what="batch jobs",
            remedy="see 'squeue'",
        )
        lines = [f"{count} batch jobs of Slurm have ended."] if count else []
        return Ended([*ended.lines, *lines], ended.unfinished)


def slurm_options(given: Mapping[str, str]) -> SlurmOptions:
    """Returns the options of an engine as typed; InputError names the wrong one."""
    try:
        return msgspec.convert(dict(given), SlurmOptions, strict=False)
    except msgspec.ValidationError as error:
        names = ", ".join(field.name for field in msgspec.structs.fields(SlurmOptions))
        raise InputError(f"--engine-option: {error}; Slurm takes {names}") from None
