"""Event logs of every policy on small workloads, each of which asks for something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from coadapt.model import SERVER, Batch, Cluster, JobSpec, Record, Resources, Role, parse_cluster
from coadapt.policies import Policy
from coadapt.simulation.run import Setting, simulate
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for
from coadapt.simulation.workload import load_workload
from coadapt.store import MemoryLog
from tests.builders import GPUS_ONLY, PLACERS, every_policy
from tests.properties.log_of import workload as faulty_workload
from tests.properties.world import live

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Submission = tuple[float, str, JobSpec]
#: Policies that know one GPU type only, as published.
ONE_TYPE = frozenset({"pollux"})
#: Published without parameter servers.
NO_SERVERS = GPUS_ONLY


def _trace(name: str, jobs: int) -> list[Submission]:
    workload, _ = load_workload(EXAMPLES / name, Scenario(), shipped_profiles())
    return [(job.at, job.job, job.spec) for job in islice(workload.jobs, jobs)]


def _simulated(
    submissions: list[Submission], cluster: Cluster, policy: Policy, interval_s: float | None
) -> list[Record]:
    log = MemoryLog()
    simulate(
        submissions,
        cluster,
        policy,
        log,
        placer=PLACERS[policy.placer](),
        truths=shipped_profiles(),
        setting=Setting(interval_s=interval_s, seed=3),
    )
    return list(log.read())


def plain(name: str, policy: Policy) -> list[Record]:
    """Elastic jobs of shipped profiles on nodes that are all alike."""
    return _simulated(_trace("workload.csv", 8), parse_cluster("3x4"), policy, 90.0)


def recorded(name: str, policy: Policy) -> list[Record]:
    """Rigid jobs with recorded times, priorities and dependencies; decisions on events."""
    return _simulated(_trace("small.csv", 100), parse_cluster("2x4"), policy, None)


def faults(name: str, policy: Policy) -> list[Record]:
    """Rigid and elastic jobs, while a node is lost, a job crashes and another one is cancelled."""
    return live(faulty_workload(name), policy)[0]


def mixed(name: str, policy: Policy) -> list[Record]:
    """Nodes of three GPU types; some jobs may use only one of them."""
    submissions: list[Submission] = []
    sizes = (("cifar10", 2, 512), ("ncf", 1, 2048), ("deepspeech2", 4, 80), ("cifar10", 8, 2048))
    for i in range(12):
        task, replicas, batch = sizes[i % len(sizes)]
        spec = spec_for(
            f"{task}-{i}", shipped_profiles()[task], task, replicas=replicas, batch=batch, user=f"u{i % 3}"
        )
        only = ("a100",) if i % 5 == 4 else ()
        submissions.append(
            (
                120.0 * i,
                spec.name,
                msgspec.structs.replace(
                    spec, gpu_types=only, epochs=spec.epochs and max(spec.epochs / 5, 1.0)
                ),
            )
        )
    return _simulated(submissions, parse_cluster("2x4:t4,1x8:a100,1x4:rtx2080ti"), policy, 120.0)


def servers(name: str, policy: Policy) -> list[Record]:
    """Jobs with parameter servers, synchronous and asynchronous, beside one that reduces among its workers."""
    submissions: list[Submission] = []
    models = ("resnet-50", "vgg-16", "seq2seq", "alexnet", "inception-bn")
    for i in range(8):
        roles = (
            Role(min=1, max=4, demand=Resources(gpus=1, cpus=2.0)),
            Role(name=SERVER, min=1, max=3, demand=Resources(gpus=0, cpus=1.0)),
        )
        spec = JobSpec(
            name=f"ps-{i}",
            user=f"u{i % 2}",
            roles=roles,
            requested=1 + i % 3,
            requested_batch=64,
            batch=Batch(initial=64, max=256, per_gpu_min=8, per_gpu_max=64),
            epochs=2.0,
            data_size=20_000 + 3_000 * i,
            profile=models[i % len(models)],
            sync="ps-async" if i % 3 == 2 else "ps",
        )
        submissions.append((60.0 * i, spec.name, spec))
    ring = spec_for("ring", shipped_profiles()["cifar10"], "cifar10", replicas=2, batch=256)
    submissions.append((300.0, "ring", ring))
    nodes = tuple(msgspec.structs.replace(node, cpus=12.0) for node in parse_cluster("2x4").nodes)
    return _simulated(sorted(submissions, key=lambda each: each[0]), Cluster(nodes=nodes), policy, 60.0)


Workload = Callable[[str, Policy], list[Record]]
#: Each with the policies that cannot be asked about it.
WORKLOADS: dict[str, tuple[Workload, frozenset[str]]] = {
    "plain": (plain, frozenset()),
    "recorded": (recorded, frozenset()),
    "faults": (faults, frozenset()),
    "mixed": (mixed, ONE_TYPE),
    "servers": (servers, NO_SERVERS),
}


def logs() -> Iterator[tuple[str, list[Record]]]:
    """Name and log of every simulation."""
    for workload, (run, unable) in WORKLOADS.items():
        for name, make in every_policy().items():
            if name not in unable:
                yield f"{workload}/{name}", run(name, make())
