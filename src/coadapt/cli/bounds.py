"""Lower bounds, before anything is run: one per cluster and set of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coadapt.cli.compose import Case, prepare
from coadapt.cli.entrants import Entrant
from coadapt.cli.progress import Bars
from coadapt.cli.scenario import Scenario
from coadapt.cli.workloads import Trace, load_truths, load_workload, only_type
from coadapt.errors import InputError
from coadapt.model import Cluster, format_cluster
from coadapt.report import LowerBound, lower_bound
from coadapt.report.lower_bound import MOST_JOBS
from coadapt.simulate.bound_input import bound_input
from coadapt.simulate.traces import Workload
from coadapt.simulate.truth import Truth

#: By the cluster in shorthand and the number of jobs: of one workload, only jobs that do not fit are left out.
Bounds = Mapping[tuple[str, int], LowerBound]


def bounds_for(
    trace: Trace,
    entrants: Iterable[Entrant],
    clusters: Sequence[Cluster],
    scenario: Scenario,
    bars: Bars | None = None,
) -> Bounds:
    """What no policy can be better than, for all that these entrants will be given."""
    truths, tried = load_truths(scenario), list(entrants)
    found: dict[tuple[str, int], LowerBound] = {}
    for cluster in clusters:
        workload, _ = load_workload(trace, scenario, truths, only_type(cluster))
        for entrant in tried:
            case = Case(
                name=entrant.name,
                policy=entrant.policy,
                cluster=cluster,
                scenario=scenario,
                texts=entrant.texts,
                values=entrant.values,
            )
            fit, _ = prepare(case, workload, truths)
            key = (format_cluster(cluster), len(fit.jobs))
            if key not in found:
                found[key] = bound_of(fit, case, truths, bars)
    return found


def bound_of(
    workload: Workload, case: Case, truths: Mapping[str, Truth], bars: Bars | None = None
) -> LowerBound:
    """What no policy can be better than with these jobs, which all fit the case's cluster."""
    if len(workload.jobs) > MOST_JOBS:
        raise InputError(
            f"a lower bound takes at most {MOST_JOBS:,} jobs, and {workload.source} has {len(workload.jobs):,}; "
            "give it a part of the trace, or do without"
        )
    given = bound_input(
        ((job.at, job.job, job.spec) for job in workload.jobs),
        case.cluster,
        truths,
        case.scenario.setting(case.seed),
    )
    title = f"lower bound on {format_cluster(case.cluster)}"
    return lower_bound(
        *given, on_round=None if bars is None else lambda done, total: bars.update(title, done, total)
    )
