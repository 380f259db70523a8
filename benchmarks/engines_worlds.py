"""The engines of ``benchmarks.engines``: real ones on this machine, each with what can be killed and frozen in it.

A new engine is one class here. Engines are started by what tests start them by (``tests/engines``), with low time-outs: Slurm
SlurmdTimeout 5 s, KillWait 3 s; Ray health checks every 1 s, dead after 3; Kubernetes' nodes unreachable after 20 s, pods as processes. GPUs are counted, not there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engines import kubernetes_cluster, ray_cluster, slurm_cluster
from tests.engines.hub_bench import HubBench, JoinedBench, KubernetesBench, RayBench, SlurmBench
from tests.engines.kubernetes_kubelet import IMAGE
from tests.engines.machines import Machine, children_of
from tests.engines.unit_processes import guards_in
from tests.waiting import until

from coadapt.executors.engines import kubernetes, ray, slurm
from coadapt.executors.engines.kubernetes_api import KubernetesApi
from coadapt.executors.engines.pod_manifest import KubernetesOptions

#: Every node has so many GPUs, so that all jobs of a round find room anywhere.
GPUS = 20
NAMES = ("n1", "n2", "n3")


class World:
    """Machines that join by themselves: there is no engine."""

    name = "joined"
    #: What can be killed besides controller and agents, and the one of them that can be frozen; empty: there is no engine.
    daemons: tuple[str, ...] = ("machine",)
    head = ""

    def __init__(self) -> None:
        self.cluster: Any = None
        self._machines: Sequence[Machine] = ()

    def why_not(self) -> str:
        """Returns why it cannot run here; empty: it can."""
        return ""

    @contextmanager
    def started(self, directory: Path) -> Iterator[None]:
        """Runs the engine."""
        yield

    def bench(self, directory: Path, *, lease_s: float, grace_s: float, idle_s: float = 600.0) -> HubBench:
        """Returns a hub and an executor on it."""
        bench = JoinedBench(directory, lease_s=lease_s, grace_s=grace_s, names=NAMES, offer=f"{GPUS}:t4")
        self._machines = bench.machines
        return bench

    def agents(self, bench: HubBench) -> list[int]:
        """Returns the process ids of agents."""
        return [
            pid for each in bench.machines if each.guard is not None for pid in children_of(each.guard.pid)
        ]

    def guards(self, bench: HubBench) -> list[int]:
        """Returns the process ids of what keeps agents alive."""
        found = [
            each.guard.pid for each in bench.machines if each.guard is not None and each.guard.poll() is None
        ]
        return found

    def kill(self, what: str) -> None:
        """Kills a daemon of the engine, and starts it again; without an engine a whole machine, as a power cut does."""
        self._machines[0].kill_all()
        self._machines[0].start()

    def signal_head(self, number: signal.Signals) -> None:
        """Freezes or thaws the head."""
        raise NotImplementedError

    def settle(self) -> None:
        """Waits until the engine has nothing left to do for room that was given back."""

    @contextmanager
    def counted(self) -> Iterator[Callable[[], int]]:
        """Yields how many requests the adapter in this process has made."""
        raise NotImplementedError

    def adapter(self) -> Any:
        """Returns an adapter for the engine that runs."""
        raise NotImplementedError


class _EngineWorld(World):
    def agents(self, bench: HubBench) -> list[int]:
        return [pid for guard in self.guards(bench) for pid in children_of(guard)]

    def guards(self, bench: HubBench) -> list[int]:
        return guards_in(f"COADAPT_URL={bench.relay.url}")


class SlurmWorld(_EngineWorld):
    """Owner mode: batch jobs of a partition."""

    name, daemons, head = "slurm", ("slurmd", "slurmctld"), "slurmctld"

    def why_not(self) -> str:
        return slurm_cluster.why_not()

    @contextmanager
    def started(self, directory: Path) -> Iterator[None]:
        with slurm_cluster.slurm(directory, nodes=len(NAMES), gpus=GPUS) as self.cluster:
            before = os.environ.get("SLURM_CONF")
            os.environ["SLURM_CONF"] = self.cluster.environment["SLURM_CONF"]
            try:
                yield
            finally:
                if before is None:
                    del os.environ["SLURM_CONF"]
                else:
                    os.environ["SLURM_CONF"] = before

    def bench(self, directory: Path, *, lease_s: float, grace_s: float, idle_s: float = 600.0) -> HubBench:
        return SlurmBench(directory, self.cluster, lease_s=lease_s, grace_s=grace_s, idle_s=idle_s)

    def kill(self, what: str) -> None:
        if what == "slurmctld":
            self.cluster.kill("slurmctld")
            self.cluster.start_controller()
        else:
            self.cluster.kill("slurmd n1")
            self.cluster.start_node("n1")

    def signal_head(self, number: signal.Signals) -> None:
        self.cluster.kill("slurmctld", number)

    @contextmanager
    def counted(self) -> Iterator[Callable[[], int]]:
        with _counting(slurm, "_run") as count:
            yield count

    def adapter(self) -> Any:
        options = slurm.SlurmOptions(partition="main", virtual=True)
        return slurm.SlurmEngine("benchmark", options, self.cluster.directory / "units")


class RayWorld(_EngineWorld):
    """Actors of a cluster of Ray. Its head is not killed: the cluster would end with it (tests/engines/test_ray_failures.py)."""

    name, daemons, head = "ray", ("raylet",), "gcs_server"

    def why_not(self) -> str:
        return ray_cluster.why_not()

    @contextmanager
    def started(self, directory: Path) -> Iterator[None]:
        # nodes of Ray wait for a head that is frozen
        with ray_cluster.ray_cluster(
            directory, len(NAMES), GPUS, RAY_gcs_rpc_server_reconnect_timeout_s="600"
        ) as self.cluster:
            yield

    def bench(self, directory: Path, *, lease_s: float, grace_s: float, idle_s: float = 600.0) -> HubBench:
        return RayBench(directory, self.cluster, lease_s=lease_s, grace_s=grace_s, idle_s=idle_s)

    def kill(self, what: str) -> None:
        self.cluster.kill("n1", "raylet")
        self.cluster.add_node()

    def signal_head(self, number: signal.Signals) -> None:
        self.cluster.kill("head", "gcs_server", number)

    @contextmanager
    def counted(self) -> Iterator[Callable[[], int]]:
        with _counting(ray.RayEngine, "_ask") as count:
            yield count

    def adapter(self) -> Any:
        return ray.RayEngine("benchmark", ray.RayOptions(address=self.cluster.address, virtual=True), 5.0)


class KubernetesWorld(_EngineWorld):
    """Owner mode: pods of a namespace."""

    name, daemons, head = "kubernetes", ("kubelet", "kube-apiserver"), "kube-apiserver"

    def why_not(self) -> str:
        return kubernetes_cluster.why_not()

    @contextmanager
    def started(self, directory: Path) -> Iterator[None]:
        with kubernetes_cluster.kubernetes(directory, nodes=len(NAMES), gpus=GPUS) as self.cluster:
            yield

    def bench(self, directory: Path, *, lease_s: float, grace_s: float, idle_s: float = 600.0) -> HubBench:
        return KubernetesBench(directory, self.cluster, lease_s=lease_s, grace_s=grace_s, idle_s=idle_s)

    def kill(self, what: str) -> None:
        if what == "kube-apiserver":
            self.cluster.kill("kube-apiserver")
            self.cluster.start_api()
        else:
            self.cluster.kill("kubelet n1")
            self.cluster.start_node("n1")

    def signal_head(self, number: signal.Signals) -> None:
        self.cluster.kill("kube-apiserver", number)

    def settle(self) -> None:
        # a pod that finds its node taken is tried again by the scheduler after a second or two
        until(lambda: not self.cluster.pods())

    @contextmanager
    def counted(self) -> Iterator[Callable[[], int]]:
        with _counting(KubernetesApi, "call") as count:
            yield count

    def adapter(self) -> Any:
        options = KubernetesOptions(
            kubeconfig=str(self.cluster.kubeconfig),
            namespace=kubernetes_cluster.NAMESPACE,
            image=IMAGE,
            virtual=True,
        )
        return kubernetes.KubernetesEngine("benchmark", options, grace_s=1.0)


@contextmanager
def _counting(owner: Any, name: str) -> Iterator[Callable[[], int]]:
    """Counts the calls of a function of a module or class."""
    original, calls = getattr(owner, name), [0]

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return original(*arguments, **named)

    setattr(owner, name, counted)
    try:
        yield lambda: calls[0]
    finally:
        setattr(owner, name, original)


WORLDS: Mapping[str, type[World]] = {
    each.name: each for each in (World, SlurmWorld, KubernetesWorld, RayWorld)
}
