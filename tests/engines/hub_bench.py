"""Executors with a hub for the published suite: a real hub, real agents, and a relay in place of the API.

``JoinedBench`` starts agents itself; ``SlurmBench``, ``RayBench`` and ``KubernetesBench`` have an engine start them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from coadapt.executors.job_source import SpecJobSource
from coadapt.executors.joined import JoinedExecutor
from coadapt.executors.kubernetes import KubernetesExecutor
from coadapt.executors.ray import RayExecutor
from coadapt.executors.slurm import SlurmExecutor
from coadapt.model import AnyEvent, JobSpec, NodeDrained, NodeJoined, NodeLost, NodeOpened, Placement, Slot
from coadapt.runtime import Cursor
from coadapt.store import open_store
from coadapt.store.home import Home, write_private
from coadapt.testing.executors import Behaviour
from coadapt.wire.serve_options import ServeOptions
from tests.engines.kubernetes_cluster import NAMESPACE, Kubelets
from tests.engines.kubernetes_kubelet import IMAGE
from tests.engines.machines import Machine, Relay, joined
from tests.engines.namespaces import Place
from tests.engines.ray_cluster import RayCluster
from tests.engines.slurm_cluster import SlurmCluster
from tests.waiting import DEADLINE_S, until


class HubBench:
    """A home with ``options``; its executor is ``kind``, and it uses the nodes ``names``. ``host``: where agents reach it."""

    def __init__(
        self,
        directory: Path,
        kind: type[JoinedExecutor],
        options: ServeOptions,
        names: Sequence[str],
        host: str = "127.0.0.1",
    ) -> None:
        self.home, self.specs, self.names = Home(directory / "home"), dict[str, JobSpec](), tuple(names)
        self._kind, self.options = kind, options
        self.home.make()
        self.home.write_options(self.options)
        self.relay = Relay(self.home, host)
        write_private(self.home.address, self.relay.url.encode())
        self.executor = self._connected()
        self.machines: list[Machine] = []
        self._waiting: deque[AnyEvent] = deque()
        self._taken: deque[tuple[Cursor, AnyEvent]] = deque()
        #: Which nodes came and went.
        self.nodes: list[AnyEvent] = []

    def _connected(self) -> JoinedExecutor:
        log = open_store(self.home.store(self.options)).log()
        identity = log.identity
        log.close()
        return self._kind(
            self.home,
            log=identity,
            jobs=SpecJobSource(self.specs.__getitem__),
            grace_s=self.options.grace_s,
            patience_s=DEADLINE_S,
        )

    def add(self, job: str, behaviour: Behaviour) -> None:
        command = ("true",) if behaviour == "ends" else ("sleep", "600")
        self.specs[job] = JobSpec(name=job, command=command)

    def add_writer(self, job: str, text: str, checkpoint: str) -> None:
        script = f"echo {text}; echo x > $COADAPT_CHECKPOINTS/{checkpoint}"
        self.specs[job] = JobSpec(name=job, command=("sh", "-c", script))

    def placement(self, replicas: int) -> Placement:
        names = self.names[:replicas]
        return Placement(slots=tuple(Slot(node=name, replicas=1, gpu_type="t4") for name in names))

    def next(self) -> AnyEvent:
        def arrived() -> bool:
            if not self._waiting:
                self._take(0.1)
            return bool(self._waiting)

        until(arrived, lambda: f"an event about a job: {[m.log.read_text() for m in self.machines]}")
        return self._waiting.popleft()

    def rest(self) -> list[AnyEvent]:
        self.executor.inventory()
        self._take(0.0)
        found = list(self._waiting)
        self._waiting.clear()
        return found

    def _take(self, timeout_s: float) -> None:
        for cursor, event in (*self._taken, *self.executor.take(timeout_s)):
            self.executor.acknowledge(cursor)
            if isinstance(event, NodeJoined | NodeLost | NodeDrained | NodeOpened):
                self.nodes.append(event)
            else:
                self._waiting.append(event)
        self._taken.clear()

    def take(self) -> tuple[Cursor, AnyEvent]:
        def arrived() -> bool:
            if not self._taken:
                self._taken += self.executor.take(0.1)
            return bool(self._taken)

        until(arrived, "an event")
        return self._taken.popleft()

    def another_controller(self) -> bool:
        self._taken.clear()
        self.executor.close()
        self.executor = self._connected()
        return True

    def close(self) -> None:
        self.executor.shutdown()
        self._end_agents()
        self.relay.close()

    def _end_agents(self) -> None:
        raise NotImplementedError


class JoinedBench(HubBench):
    """``lease_s`` and ``grace_s`` of the hub; one machine for each name, in its own place if there are some, which see ``host``."""

    def __init__(
        self,
        directory: Path,
        *,
        lease_s: float = 60.0,
        grace_s: float = 5.0,
        names: Sequence[str] = ("m1", "m2"),
        host: str = "127.0.0.1",
        places: Sequence[Place] = (),
        offer: str = "2:t4",
    ) -> None:
        options = ServeOptions(executor="joined", lease_s=lease_s, grace_s=grace_s)
        super().__init__(directory, JoinedExecutor, options, names, host)
        inside = {place.name: place.inside for place in places}
        self.machines = [
            Machine(directory / name, self.relay.url, name, offer, inside=inside.get(name, ()))
            for name in names
        ]
        until(lambda: joined(self.home) == set(names), lambda: [m.log.read_text() for m in self.machines])

    def _end_agents(self) -> None:
        for machine in self.machines:
            if machine.guard is not None and machine.guard.poll() is None:
                machine.guard.terminate()
        for machine in self.machines:
            machine.stop()


class EngineBench(HubBench):
    """Agents in units of an engine that runs; it begins when the engine's nodes are known."""

    def __init__(
        self, directory: Path, kind: type[JoinedExecutor], options: ServeOptions, names: Sequence[str]
    ) -> None:
        super().__init__(directory, kind, options, names)
        until(
            lambda: self._announced() >= set(self.names), lambda: (self.home.hub / "keeper.log").read_text()
        )

    def _announced(self) -> set[str]:
        self._taken += self.executor.take(0.1)
        return {event.node.name for _, event in self._taken if isinstance(event, NodeJoined)}

    def _end_agents(self) -> None:
        self._kind.end(self.home, self.options)


class SlurmBench(EngineBench):
    """Agents in batch jobs of a Slurm cluster; SLURM_CONF must be set."""

    def __init__(
        self,
        directory: Path,
        cluster: SlurmCluster,
        *,
        lease_s: float = 60.0,
        grace_s: float = 5.0,
        idle_s: float = 600.0,
    ) -> None:
        options = ServeOptions(
            executor="slurm",
            lease_s=lease_s,
            grace_s=grace_s,
            idle_s=idle_s,
            engine_options={"partition": "main", "virtual": "true"},
        )
        self.cluster = cluster
        super().__init__(directory, SlurmExecutor, options, cluster.names)


class RayBench(EngineBench):
    """Agents in actors of a cluster of Ray."""

    def __init__(
        self,
        directory: Path,
        cluster: RayCluster,
        *,
        lease_s: float = 60.0,
        grace_s: float = 5.0,
        idle_s: float = 600.0,
    ) -> None:
        options = ServeOptions(
            executor="ray",
            lease_s=lease_s,
            grace_s=grace_s,
            idle_s=idle_s,
            engine_options={"address": cluster.address, "virtual": "true"},
        )
        self.cluster = cluster
        super().__init__(directory, RayExecutor, options, cluster.names)


class KubernetesBench(EngineBench):
    """Agents in pods of a Kubernetes cluster, a real or a fake one."""

    def __init__(
        self,
        directory: Path,
        cluster: Kubelets,
        *,
        lease_s: float = 60.0,
        grace_s: float = 5.0,
        idle_s: float = 600.0,
        **engine: str,
    ) -> None:
        options = ServeOptions(
            executor="kubernetes",
            lease_s=lease_s,
            grace_s=grace_s,
            idle_s=idle_s,
            engine_options={
                "kubeconfig": str(cluster.kubeconfig),
                "namespace": NAMESPACE,
                "image": IMAGE,
                "virtual": "true",
                **engine,
            },
        )
        self.cluster = cluster
        super().__init__(directory, KubernetesExecutor, options, cluster.names)
