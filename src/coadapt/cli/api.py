"""The Python functions: the same as the commands, with objects where the commands have texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from coadapt.cli.arguments import (
    a_cluster,
    check_flag,
    check_options,
    check_policy,
    check_trace,
    check_whole,
    several,
)
from coadapt.cli.bounds import bound_of, bounds_for
from coadapt.cli.comparison import Comparison
from coadapt.cli.compose import Case, nothing_to_choose, prepare, run_case
from coadapt.cli.entrants import Entrant, compare_entrants
from coadapt.cli.progress import Bars
from coadapt.cli.result import Result
from coadapt.cli.scenario import Scenario
from coadapt.cli.workloads import Trace, load_pool, load_truths, load_workload, only_type
from coadapt.errors import InputError
from coadapt.model import Cluster, Record
from coadapt.policies import Policy
from coadapt.simulate.traces import Workload


def simulate(
    trace: Trace,
    policy: str | Policy = "coadapt",
    cluster: str | Cluster = "16x4",
    *,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    keep_events: bool = True,
    bound: bool = False,
    **scenario: Any,
) -> Result:
    """Runs the jobs of a trace under a policy; ``bound``: also finds what no policy can be better than.

    ``options``: of a policy given by name. ``scenario``: see ``cli.scenario.Scenario`` (``interval_s``,
    ``restart_s``, ``profiles``, ...). Raises a ``CoadaptError`` where the command would say why not.
    """
    check_trace(trace)
    check_policy(policy)
    check_options(options, policy)
    check_whole("seed", seed, 0)
    check_flag("keep_events", keep_events)
    check_flag("bound", bound)
    name = policy if isinstance(policy, str) else type(policy).__name__
    case = Case(
        name=name,
        policy=policy,
        cluster=a_cluster(cluster),
        scenario=Scenario.of(scenario),
        values=options or {},
        seed=seed,
    )
    return simulate_case(trace, case, keep_events=keep_events, bound=bound)


def simulate_case(
    trace: Trace,
    case: Case,
    *,
    bars: Bars | None = None,
    keep_events: bool = False,
    on_record: Callable[[Record], None] | None = None,
    on_ready: Callable[[Workload, list[str]], None] | None = None,
    bound: bool = False,
) -> Result:
    """Reads, checks and runs; ``on_ready`` is told what will be run, once nothing can be wrong with it."""
    case.make_policy()
    pool, truths = load_pool(case.scenario), load_truths(case.scenario)
    workload, notes = load_workload(trace, case.scenario, truths, only_type(case.cluster))
    fit, dropped = prepare(case, workload, truths)
    notes += dropped + nothing_to_choose(fit, [case])
    if on_ready is not None:
        on_ready(fit, notes)
    least = bound_of(fit, case, truths, bars) if bound else None
    seen, total = bars if bars is not None and bars.seen else None, len(fit.jobs)
    result = run_case(
        case,
        fit,
        truths,
        pool=pool,
        on_record=on_record,
        on_finished=None if seen is None else lambda: seen.advance(case.name, total),
        keep_events=keep_events,
        keep_pool=True,
        notes=notes,
    )
    return replace(result, bound=least)


def compare(
    trace: Trace,
    policies: Iterable[str | Policy] = ("coadapt", "fifo", "tiresias", "optimus", "pollux"),
    *,
    clusters: Iterable[str | Cluster] = ("16x4",),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: int = 1,
    reference: str | None = None,
    processes: int = 1,
    recorded_check: bool = True,
    bound: bool = False,
    **scenario: Any,
) -> Comparison:
    """Runs every policy on every cluster, ``seeds`` times; ``bound``: beside what no policy can be better than.

    ``options``: by policy name. ``processes`` > 1 needs the usual ``if __name__ == "__main__"`` around the
    calling script. ``reference``: the policy that ratios are relative to, on the first cluster.
    """
    check_trace(trace)
    check_whole("seeds", seeds, 1)
    check_whole("processes", processes, 1)
    check_flag("recorded_check", recorded_check)
    check_flag("bound", bound)
    entered = several("policies", policies)
    by_name = _options_by_policy(options, entered)
    entrants = [
        Entrant(
            name=policy if isinstance(policy, str) else type(policy).__name__,
            policy=policy,
            texts={},
            values=by_name.get(policy, {}) if isinstance(policy, str) else {},
        )
        for policy in entered
    ]
    made = [a_cluster(cluster) for cluster in several("clusters", clusters)]
    world = Scenario.of(scenario)
    compared = compare_entrants(
        trace,
        entrants,
        made,
        world,
        seeds=seeds,
        reference=reference,
        processes=processes,
        recorded_check=recorded_check,
    )
    return replace(compared, bounds=bounds_for(trace, entrants, made, world)) if bound else compared


def _options_by_policy(options: Any, policies: list[Any]) -> Mapping[str, Mapping[str, Any]]:
    check_options(options, "")
    for policy in policies:
        check_policy(policy)
    for name, of_one in (options or {}).items():
        if name not in [policy for policy in policies if isinstance(policy, str)]:
            raise InputError(f"options name {name!r}, which is not among the policies compared")
        check_options(of_one, name)
    return options or {}
