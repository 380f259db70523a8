"""The composition root: names, options and a workload become objects, the objects a finished run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coadapt.cli.alone import AloneTimes
from coadapt.cli.checks import check_profiles, fitting
from coadapt.cli.families import PLACERS
from coadapt.cli.policy_options import make_policy
from coadapt.cli.result import Result
from coadapt.cli.scenario import Scenario
from coadapt.errors import InputError
from coadapt.model import Cluster, JobFinished, Record, parse_cluster
from coadapt.placement import Placer
from coadapt.policies import Policy
from coadapt.predict.history import Pool
from coadapt.report import History, finish_time_fairness, summarise
from coadapt.simulate.oracle import TruthCurves
from coadapt.simulate.run import simulate
from coadapt.simulate.traces import Workload
from coadapt.simulate.truth import Truth
from coadapt.store import MemoryLog

#: Above this, a run keeps sums of its jobs, not every stay and report of each.
DETAILED_JOBS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run to be made: may cross into another process. ``name`` is what users see."""

    name: str
    policy: str | Policy
    cluster: Cluster
    scenario: Scenario
    #: Options of a policy given by name: texts from a command line, or values from Python.
    texts: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"seed {self.seed} is not possible; it must be 0 or more")

    def make_policy(self) -> Policy:
        """The policy itself."""
        if not isinstance(self.policy, str):
            return self.policy
        made: Policy = make_policy(self.policy, self.texts, self.values)
        return made

    def make_placer(self, policy: Policy) -> Placer:
        """The placer the user chose; else, in the published setting, the one used there; else the policy's."""
        name = self.scenario.placement
        if name is None and self.scenario.published:
            name = getattr(policy, "published_placer", None)
        placer: Placer = PLACERS.load(name or policy.placer)()
        return placer


def cluster_of(text: str) -> Cluster:
    """A cluster in shorthand; ``+`` joins groups where ``,`` separates clusters."""
    return parse_cluster(text.replace("+", ","))


def prepare(case: Case, workload: Workload, truths: Mapping[str, Truth]) -> tuple[Workload, list[str]]:
    """Checks a case and drops what cannot run, before anything is computed or written."""
    policy = case.make_policy()
    case.make_placer(policy)
    fit, notes = fitting(
        workload, case.cluster, chooses_size=policy.chooses_size, skip_bad=case.scenario.skip_bad
    )
    check_profiles(fit, case.cluster, truths)
    return fit, notes


def nothing_to_choose(workload: Workload, cases: Sequence[Case]) -> list[str]:
    """A note if policies that choose GPUs or batch sizes meet jobs that leave nothing to choose."""
    if any(job.spec.profile or job.spec.elastic or job.spec.batch for job in workload.jobs):
        return []
    names: dict[str, None] = {}
    for case in cases:
        policy = case.make_policy()
        if policy.chooses_size or policy.adapts_batch:
            names[case.policy if isinstance(case.policy, str) else case.name] = None
    if not names:
        return []
    *rest, last = names
    who = f"{', '.join(rest)} and {last}" if rest else last
    return [f"no job has a profile: {who} cannot change GPUs or batch sizes here; see --map profiles"]


def run_case(
    case: Case,
    workload: Workload,
    truths: Mapping[str, Truth],
    *,
    pool: Pool | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_finished: Callable[[], None] | None = None,
    keep_events: bool = False,
    keep_pool: bool = False,
    notes: list[str] | None = None,
) -> Result:
    """Runs a prepared case to its end; ``pool``: past jobs that it knows from the start."""
    policy = case.make_policy()
    history = History(detail=len(workload.jobs) <= DETAILED_JOBS)
    log = MemoryLog(keep=keep_events)
    simulation = simulate(
        ((job.at, job.job, job.spec) for job in workload.jobs),
        case.cluster,
        policy,
        log,
        placer=case.make_placer(policy),
        truths=truths,
        curves=TruthCurves(truths) if getattr(policy, "wants_truth", False) else None,
        setting=case.scenario.setting(case.seed),
        pool=pool,
        on_record=_listener(history, on_record, on_finished),
    )
    alone = AloneTimes(
        truths, case.cluster, chooses_size=policy.chooses_size, restart_s=case.scenario.restart_s
    )
    rho = finish_time_fairness(history, alone.of(history))
    return Result(
        name=case.name,
        source=workload.source,
        cluster=case.cluster,
        seed=case.seed,
        summary=summarise(history, rho=rho, decision_cpu_s=simulation.decision_cpu_s, cpu_s=simulation.cpu_s),
        history=history,
        rho=rho,
        notes=tuple(notes or ()),
        records=list(log.read()) if keep_events else None,
        pool=simulation.state.pool if keep_pool else None,
    )


def _listener(
    history: History, on_record: Callable[[Record], None] | None, on_finished: Callable[[], None] | None
) -> Callable[[Record], None]:
    """One function that tells all who listen; no more than the history's where nobody else does."""
    if on_record is None and on_finished is None:
        return history.add

    def listen(record: Record) -> None:
        history.add(record)
        if on_record is not None:
            on_record(record)
        if on_finished is not None and type(record.event) is JobFinished:
            on_finished()

    return listen
