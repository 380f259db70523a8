"""The executor for a cluster of Ray: agents run in detached actors that are asked for as jobs need nodes.

Everything but the room comes from ``joined``; ``engines.ray`` speaks with Ray.
"""

from __future__ import annotations

from contextlib import closing

from coadapt.executors.engines._give_back import give_back_all
from coadapt.executors.engines.ray import RayEngine, ray_options
from coadapt.executors.joined import JoinedExecutor
from coadapt.executors.node.keeper_shutdown import Ended
from coadapt.model import Node
from coadapt.store import open_store
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions

#: Seconds beyond the grace of jobs for an agent to end by itself, and then until every actor must have ended.
_FAREWELL_S, _PATIENCE_S = 30.0, 60.0


class RayExecutor(JoinedExecutor):
    """Implements ``runtime.ports.Executor`` over the hub of a home, with units of a cluster of Ray."""

    name = "ray"
    help = "A cluster of Ray: agents in detached actors, asked for as jobs need nodes."

    @classmethod
    def offered_nodes(cls, options: ServeOptions) -> tuple[Node, ...]:
        """Returns the nodes of the cluster; InputError if there is none at the address, or it cannot be used."""
        super().offered_nodes(options)
        engine = RayEngine("", ray_options(options.engine_options))
        return tuple(each.node for each in engine.check())

    @classmethod
    def engine(cls, home: Home, options: ServeOptions, cluster: str) -> RayEngine:
        """Returns the engine that grants room; ``cluster``: identity of the event log."""
        return RayEngine(cluster, ray_options(options.engine_options), options.grace_s + _FAREWELL_S)

    @classmethod
    def end(cls, home: Home, options: ServeOptions) -> Ended:
        """As for joined machines; then ends all actors, and waits until Ray says that they have ended."""
        ended = super().end(home, options)
        with closing(open_store(home.store(options)).log()) as log:
            engine = cls.engine(home, options, log.identity)
        with closing(engine):
            count = give_back_all(
                engine,
                within_s=options.grace_s + _FAREWELL_S + _PATIENCE_S,
                what="actors of Ray",
                remedy="see 'ray list actors'",
            )
        lines = (
            [f"{count} actor{'s' * (count > 1)} of Ray ha{'ve' if count > 1 else 's'} ended."]
            if count
            else []
        )
        return Ended([*ended.lines, *lines], ended.unfinished)
