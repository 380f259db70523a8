"""Builders for tests: the caller names what matters, everything else has the simplest value that works."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from coadapt import plugins
from coadapt.model import (
    SERVER,
    AnyEvent,
    Batch,
    Cluster,
    JobSpec,
    Node,
    Placement,
    Record,
    Resources,
    Role,
    Slot,
    parse_cluster,
)
from coadapt.placement import Placer
from coadapt.policies import Policy
from coadapt.simulation.run import Setting, Simulation, simulate
from coadapt.store import MemoryLog

#: Every placer, by name.
PLACERS: dict[str, Callable[[], Placer]] = {member.name: member.cls for member in plugins.PLACERS.members()}


def a_cluster(shape: str = "1x4", **limits: Any) -> Cluster:
    """Nodes n0, n1, ... as in the shorthand, all with the same limits."""
    nodes = parse_cluster(shape).nodes
    return Cluster(nodes=tuple(Node(name=n.name, gpus=n.gpus, gpu_type=n.gpu_type, **limits) for n in nodes))


def a_job(
    gpus: int = 1,
    *,
    duration_s: float | None = 100.0,
    per_replica: int = 1,
    cpus: float = 0.0,
    memory_bytes: float = 0.0,
    at_most: int | None = None,
    servers: int = 0,
    **fields: Any,
) -> JobSpec:
    """A rigid job of ``gpus`` replicas that takes ``duration_s``; with ``at_most`` an elastic one."""
    demand = Resources(gpus=per_replica, cpus=cpus, memory_bytes=memory_bytes)
    roles = [
        Role(min=gpus if at_most is None else 1, max=gpus if at_most is None else at_most, demand=demand)
    ]
    if servers:
        roles.append(Role(name=SERVER, min=servers, max=servers, demand=Resources(gpus=0, cpus=cpus)))
    return JobSpec(
        **{"name": "job", "roles": tuple(roles), "requested": gpus, "duration_s": duration_s, **fields}
    )


def a_trained_job(gpus: int = 1, *, at_most: int | None = None, **fields: Any) -> JobSpec:
    """A job that behaves like ``SteadyTruth``."""
    limits = SteadyTruth().limits("")
    fields = {
        "profile": "steady",
        "requested_batch": limits.initial,
        "epochs": 2.0,
        "data_size": 3200,
        **fields,
    }
    return a_job(gpus, duration_s=None, at_most=at_most, batch=limits, **fields)


def on(*shares: tuple[str, int] | str, role: str = "worker", gpu_type: str = "gpu") -> Placement:
    """``on("n0", ("n1", 2))``: one replica on n0, two on n1."""
    pairs = [(share, 1) if isinstance(share, str) else share for share in shares]
    slots = (Slot(node=node, replicas=count, role=role, gpu_type=gpu_type) for node, count in pairs)
    return Placement(slots=tuple(slots))


class SteadyTruth:
    """A task whose every figure can be worked out in the head: two epochs of 100 steps at M0 = 32."""

    epochs = 2
    gpu_types = ("gpu",)
    max_workers = 16
    data_size = 3200

    def limits(self, gpu_type: str) -> Batch:
        return Batch(initial=32, max=256, per_gpu_min=4, per_gpu_max=64)

    def epoch_marks(self) -> tuple[float, ...]:
        return (100.0, 200.0)

    def step(self, shape: tuple[int, ...], atomic_batch: int, gpu_type: str) -> tuple[float, float]:
        """1/32 s per example; synchronisation 0.25 s on one node, 1 s over several."""
        sync_s = 0.0 if sum(shape) == 1 else 0.25 if len(shape) == 1 else 1.0
        return atomic_batch / 32 + sync_s, sync_s

    def gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        return 1.0, 1.0

    def steps_until(self, batch: int, epoch: int) -> float:
        scale = batch / 32
        return 100.0 * (epoch + 1) * (1 / scale + 1) / 2

    def metric(self, batch: int, epoch: int) -> float | None:
        return None


def records_of(*timed: tuple[float, AnyEvent], first: int = 0) -> list[Record]:
    """Events with their times, numbered."""
    return [Record(seq=first + i, at=at, event=event) for i, (at, event) in enumerate(timed)]


def simulated(
    submissions: Iterable[tuple[float, str, JobSpec]],
    cluster: Cluster,
    policy: Policy,
    *,
    placer: Placer | None = None,
    start: Any = None,
    **setting: Any,
) -> tuple[list[Record], Simulation]:
    """A simulation with its log."""
    log = MemoryLog()
    result = simulate(
        submissions,
        cluster,
        policy,
        log,
        placer=placer if placer is not None else PLACERS[policy.placer](),
        truths={"steady": SteadyTruth()},
        setting=Setting(**setting),
        start=start,
    )
    return list(log.read()), result


#: Options under which small workloads make a policy do all it can; others run with their defaults.
_SMALL: dict[str, dict[str, Any]] = {
    "tiresias": {"thresholds": (40.0, 120.0)},
    "pollux": {"population": 8, "generations": 6},
    "coadapt": {"change_s": 1.0, "least_wait_s": 30.0},
    "gavel": {"round_s": 20.0, "recompute_s": 0.0},
}
#: Further settings worth running: a policy's name and options.
_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fifo-strict": ("fifo", {"backfill": False}),
    "tiresias-gittins": ("gittins", {"thresholds": (60.0,), "quantum_gpu_s": 20.0}),
    "gavel-fifo": ("gavel", {"objective": "fifo", "aware": False, "round_s": 20.0, "recompute_s": 0.0}),
    # without shares between users
    "coadapt-fair": (
        "coadapt",
        {"objective": "fairness", "weights": {"u": 2.0}, "quotas": {"v": 2}, "floor": 0.0},
    ),
    "coadapt-shares": (
        "coadapt",
        {"change_s": 1.0, "least_wait_s": 30.0, "floor": 0.8, "reserve_after": 5.0},
    ),
}


def every_policy() -> dict[str, Callable[[], Policy]]:
    """A maker for every policy that is registered, and for some in another setting."""
    named = [member.name for member in plugins.POLICIES.members() if not member.preset]
    makers: dict[str, Callable[[], Policy]] = {
        name: partial(plugins.POLICIES.make, name, **_SMALL.get(name, {})) for name in named
    }
    for name, (policy, options) in _VARIANTS.items():
        makers[name] = partial(plugins.POLICIES.make, policy, **options)
    return makers


#: Policies that know GPUs and nothing else (as published): no servers, no CPU or memory limits.
GPUS_ONLY = frozenset({"pollux", "sia"})
