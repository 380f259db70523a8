"""A few jobs on a small cluster, run to their end under a policy; no change costs unless asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from coadapt.model import AnyEvent, DecisionMade, JobSpec, Role, parse_cluster
from coadapt.model.snapshot import Snapshot
from coadapt.placement import PackedPlacer, Placer
from coadapt.policies import Curves, Memory, Policy, Proposal, Rng
from coadapt.scheduler import CurveSource, SchedulerState
from coadapt.simulation.engine.simulated_executor import constant
from coadapt.simulation.run import Setting, simulate
from coadapt.store import MemoryLog
from tests.builders import a_job

Submission = tuple[float, str, JobSpec]


class Run(NamedTuple):
    """What a simulation left behind."""

    state: SchedulerState
    log: MemoryLog


def a_submission(
    name: str, at: float = 0.0, gpus: int = 1, duration_s: float = 100.0, **fields: Any
) -> Submission:
    """A rigid job of known duration, when it comes and its name."""
    per_replica = fields.pop("gpus_per_replica", 1)
    workers = gpus // per_replica
    if "demand" in fields:
        fields["roles"] = (Role(min=workers, max=workers, demand=fields.pop("demand")),)
    spec = a_job(workers, name=name, per_replica=per_replica, duration_s=duration_s, **fields)
    return at, name, spec


def run(
    policy: Policy,
    jobs: Sequence[Submission],
    cluster: str = "1x4",
    *,
    placer: Placer | None = None,
    curves: CurveSource | None = None,
    cost_s: float = 0.0,
    interval_s: float | None = None,
    events: Sequence[tuple[float, AnyEvent]] = (),
) -> Run:
    """The whole simulation, its state validated at every decision."""
    log = MemoryLog()
    setting = Setting(interval_s=interval_s, change_cost=constant(cost_s), events=events)
    result = simulate(
        jobs,
        parse_cluster(cluster),
        Watched(policy),
        log=log,
        placer=placer or PackedPlacer(),
        curves=curves,
        setting=setting,
    )
    return Run(result.state, log)


def finished(result: Run) -> dict[str, float | None]:
    """When each job ended."""
    return {job.id: job.finished_at for job in result.state.jobs.values()}


def started(result: Run) -> dict[str, float | None]:
    """When each job first got GPUs."""
    return {job.id: job.started_at for job in result.state.jobs.values()}


def decisions(result: Run) -> list[tuple[float, DecisionMade]]:
    """All decisions with their times."""
    return [(r.at, r.event) for r in result.log.read() if isinstance(r.event, DecisionMade)]


def reasons(result: Run, job: str) -> list[tuple[float, str]]:
    """(time, code) of the reasons a job was given."""
    return [(at, d.reasons[job].code) for at, d in decisions(result) if job in d.reasons]


class Watched:
    """Passes everything to a policy; checks that the state is sound and that a cold decision is the same."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.placer = policy, policy.placer
        self.adapts_batch, self.chooses_size = policy.adapts_batch, policy.chooses_size

    def decide(self, snapshot: Snapshot, curves: Curves, memory: Memory, rng: Rng) -> Proposal:
        """See ``Policy``."""
        snapshot.validate()  # type: ignore[attr-defined]
        cold = self.policy.decide(snapshot, curves, Memory(kept=dict(memory.kept)), rng)
        warm = self.policy.decide(snapshot, curves, memory, rng)
        assert list(warm.allocations.items()) == list(cold.allocations.items())
        assert warm.placements == cold.placements
        assert warm.memory == cold.memory
        assert warm.wake_at == cold.wake_at
        assert warm.reasons == cold.reasons
        for name in warm.allocations:
            job = snapshot.active[name]
            assert job.spec.preemptible or not job.target, f"{name} may not be preempted"
        return warm
