"""The executor for a namespace of Kubernetes: agents run in pods that are created as jobs need nodes.

Everything but the room comes from ``joined``; ``engines.kubernetes`` speaks with Kubernetes.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from coadapt.errors import InputError
from coadapt.executors.engines._give_back import give_back_all
from coadapt.executors.engines.kubernetes import KubernetesEngine
from coadapt.executors.engines.pod_manifest import kubernetes_options
from coadapt.executors.joined import JoinedExecutor
from coadapt.executors.node.keeper_shutdown import Ended
from coadapt.model import Node
from coadapt.store import open_store
from coadapt.store.home import Home, write_private
from coadapt.wire.serve_options import ServeOptions

#: Seconds beyond the grace of jobs until every pod must be gone.
_PATIENCE_S = 90.0


class UsedCluster(msgspec.Struct, frozen=True):
    """Where the pods of a home are: ``HOME/hub/kubernetes.json``, from the first start until ``coadapt down``."""

    server: str
    namespace: str


class KubernetesExecutor(JoinedExecutor):
    """Implements ``runtime.ports.Executor`` over the hub of a home, with units of a namespace."""

    name = "kubernetes"
    help = "A namespace of Kubernetes: agents in pods, created as jobs need nodes."

    @classmethod
    def offered_nodes(cls, options: ServeOptions) -> tuple[Node, ...]:
        """Returns the nodes; InputError if the API does not answer, is too old, or refuses what is needed."""
        super().offered_nodes(options)
        engine = KubernetesEngine("", kubernetes_options(options.engine_options), grace_s=options.grace_s)
        engine.check()
        return tuple(each.node for each in engine.nodes())

    @classmethod
    def engine(cls, home: Home, options: ServeOptions, cluster: str) -> KubernetesEngine:
        """Returns the engine that grants room; ``cluster``: identity of the event log."""
        engine = KubernetesEngine(
            cluster, kubernetes_options(options.engine_options), grace_s=options.grace_s
        )
        remember_cluster(home, engine)
        return engine

    @classmethod
    def end(cls, home: Home, options: ServeOptions) -> Ended:
        """As for joined machines; then deletes all pods, and waits until Kubernetes says that they have ended."""
        ended = super().end(home, options)
        if not _used_file(home).exists():
            return ended  # no hub has asked for a pod since the last time
        with closing(open_store(home.store(options)).log()) as log:
            engine = cls.engine(home, options, log.identity)
        count = len(engine.units())
        give_back_all(
            engine,
            within_s=options.grace_s + _PATIENCE_S,
            what="pods",
            remedy=f"see 'kubectl get pods -n {engine.namespace}'",
        )
        engine.clear()
        _used_file(home).unlink(missing_ok=True)
        lines = [f"Deleted {count} pod{'s' * (count > 1)} in namespace {engine.namespace}."] if count else []
        return Ended([*ended.lines, *lines], ended.unfinished)


def remember_cluster(home: Home, engine: KubernetesEngine) -> None:
    """Notes where the pods of a home are; InputError if they are elsewhere.

    A shell with another current context would find no pods there, and conclude that all have ended.
    """
    now = UsedCluster(engine.api.access.server, engine.namespace)
    file = _used_file(home)
    if file.exists():
        known = msgspec.json.decode(file.read_bytes(), type=UsedCluster)
        if known != now:
            raise InputError(
                f"the pods of the cluster in {home.path} are in namespace {known.namespace} at {known.server}, but {engine.api.access.found} "
                f"leads to namespace {now.namespace} at {now.server}; use that context (KUBECONFIG, or --engine-option context=NAME), or "
                f"'coadapt down' there first"
            )
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(file, msgspec.json.encode(now))


def _used_file(home: Home) -> Path:
    return home.hub / "kubernetes.json"
