"""``coadapt.simulate(...)`` and ``coadapt.compare(...)``: the commands of the same names as Python functions.

They take objects where the commands take texts. Arguments are checked by type: a mistake raises an InputError that
names the parameter. ``simulate_into`` and ``compare_into``, which the commands call, also write files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn

from coadapt.errors import InputError
from coadapt.model import Cluster, Record, parse_cluster
from coadapt.policies import Policy
from coadapt.progress import Bars
from coadapt.report.output_files import fresh_directory, fresh_file
from coadapt.simulation.bounds import Bounds, bound_of, bounds_for
from coadapt.simulation.case import Case, nothing_to_choose, prepare, run_case
from coadapt.simulation.comparison import Comparison, Entrant, compare_entrants
from coadapt.simulation.result import Result, event_file
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.traces._base import Workload
from coadapt.simulation.workload import Trace, load_pool, load_truths, load_workload, only_type
from coadapt.store.pool_file import write_pool


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
    """Runs the jobs of a trace under a policy.

    Args:
        trace: Path of a trace, or a workload.
        policy: Name of a policy, or an instance of one.
        cluster: A cluster, or its shorthand.
        options: Options of a policy given by name.
        seed: Seed of the simulation.
        keep_events: Keep the event log in the result.
        bound: Also compute the lower bound that no policy can beat.
        **scenario: Options of ``simulation.scenario.Scenario`` (``interval_s``, ``restart_s``, ``profiles``, ...).

    Raises:
        CoadaptError: An argument or the trace is not valid; the message is the one of the command.
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
    """Reads the trace, checks the case and runs it.

    Args:
        trace: Path of a trace, or a workload.
        case: Policy, cluster, scenario and seed.
        bars: Progress bars; None: no progress is shown.
        keep_events: Keep the event log in the result.
        on_record: Called with every record of the event log.
        on_ready: Called with the workload and the notes after all checks have passed, before the run.
        bound: Also compute the lower bound that no policy can beat.
    """
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


def simulate_into(
    trace: Trace,
    case: Case,
    *,
    output: str | Path | None = None,
    save_pool: str | None = None,
    force: bool = False,
    bound: bool = False,
    bars: Bars | None = None,
) -> Result:
    """Runs ``simulate_case`` and writes files.

    A file that cannot be written is reported before the run. All files appear together at its end.

    Args:
        trace: Path of a trace, or a workload.
        case: Policy, cluster, scenario and seed.
        output: Directory for the results and a report. Events are written there during the run, not kept in memory.
        save_pool: File for the past jobs known at the end.
        force: Write into a directory that holds other files, which stay, and replace the file of past jobs.
        bound: Also compute the lower bound that no policy can beat.
        bars: Progress bars; None: no progress is shown.
    """
    with ExitStack() as stack:
        add, staging = None, None
        if output is not None:
            staging = stack.enter_context(fresh_directory(Path(output), force=force))
        learned = (
            None if save_pool is None else stack.enter_context(_pool_file(save_pool, case.scenario, force))
        )
        with ExitStack() as events:
            if staging is not None:
                add = events.enter_context(event_file(staging))
            result = simulate_case(trace, case, bars=bars, on_record=add, bound=bound)
        if staging is not None:
            result.write_files(staging)
        if learned is not None and result.pool is not None:
            write_pool(learned, result.pool)
    return result


def _pool_file(name: str, scenario: Scenario, force: bool) -> AbstractContextManager[Path]:
    """Where past jobs are written: a new file, the one they came from, or by force."""
    target = Path(name)
    if not target.parent.is_dir():
        raise InputError(f"cannot write {name}: directory {target.parent} does not exist")
    known = None if scenario.pool is None else Path(scenario.pool)
    same = known is not None and known.exists() and target.exists() and target.samefile(known)
    return fresh_file(target, force=force or same)


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
    """Runs every policy on every cluster.

    Args:
        trace: Path of a trace, or a workload.
        policies: Names or instances of policies.
        clusters: Clusters, or their shorthands.
        options: Options of policies given by name, by that name.
        seeds: Runs per policy and cluster.
        reference: Name of the policy that ratios are relative to, on the first cluster; None: the first one.
        processes: Number of processes. More than one needs ``if __name__ == "__main__"`` around the calling script.
        recorded_check: Replay the run that the trace recorded, as a check of the cluster.
        bound: Also compute the lower bound that no policy can beat.
        **scenario: Options of ``simulation.scenario.Scenario``.
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


def compare_into(
    trace: Trace,
    entrants: Sequence[Entrant],
    clusters: Sequence[Cluster],
    scenario: Scenario,
    *,
    output: str | Path | None = None,
    force: bool = False,
    bound: bool = False,
    bars: Bars | None = None,
    on_ready: Callable[[Comparison], None] | None = None,
    **others: Any,
) -> Comparison:
    """Runs ``compare_entrants``, computes lower bounds and writes files.

    Args:
        trace: Path of a trace, or a workload.
        entrants: Policies with their options.
        clusters: Clusters to run on.
        scenario: How to read the trace, and the simulated world.
        output: Directory for the results and a report; None: no files.
        force: Write into a directory that holds other files.
        bound: Also compute the lower bounds that no policy can beat.
        bars: Progress bars; None: no progress is shown.
        on_ready: Called before the first run, with a comparison that has no runs yet.
        **others: Further arguments of ``compare_entrants``.
    """
    bounds: Bounds = {}

    def ready(about: Comparison) -> None:
        nonlocal bounds
        if on_ready is not None:
            on_ready(about)
        if bound:
            bounds = bounds_for(trace, entrants, clusters, scenario, bars)

    with ExitStack() as stack:
        staging = (
            stack.enter_context(fresh_directory(Path(output), force=force)) if output is not None else None
        )
        compared = compare_entrants(trace, entrants, clusters, scenario, bars=bars, on_ready=ready, **others)
        compared = replace(compared, bounds=bounds)
        if staging is not None:
            compared.write_files(staging)
    return compared


def _options_by_policy(options: Any, policies: list[Any]) -> Mapping[str, Mapping[str, Any]]:
    check_options(options, "")
    for policy in policies:
        check_policy(policy)
    for name, of_one in (options or {}).items():
        if name not in [policy for policy in policies if isinstance(policy, str)]:
            raise InputError(f"options are given for {name!r}, which is not one of the compared policies")
        check_options(of_one, name)
    return options or {}


def check_trace(trace: Any) -> None:
    """Raises InputError unless ``trace`` is a path or a workload."""
    if not isinstance(trace, str | Path | Workload):
        _refuse("trace", "the path of a file or a Workload", trace)


def check_policy(policy: Any) -> None:
    """Raises InputError unless ``policy`` is a name or an instance with a ``decide`` method."""
    if not isinstance(policy, str) and (
        isinstance(policy, type) or not callable(getattr(policy, "decide", None))
    ):
        _refuse("policy", "a name, as 'coadapt policies' lists them, or an instance of a policy", policy)


def check_options(options: Any, policy: Any) -> None:
    """Raises InputError unless ``options`` is None or a mapping.

    An instance as ``policy`` has its options already, so options need the name of a policy.
    """
    if options is not None and not isinstance(options, Mapping):
        _refuse("options", "a mapping of names to values, for example {'p': -1}", options)
    for name in options or ():
        if not isinstance(name, str):
            _refuse("the name of an option", "a text", name)
    if options and not isinstance(policy, str):
        raise InputError(
            "options apply to a policy given by name; set the options of an instance in its constructor"
        )


def check_flag(name: str, value: Any) -> None:
    """Raises InputError unless ``value`` is a bool: a text such as "no" would count as true."""
    if not isinstance(value, bool):
        _refuse(name, "True or False", value)


def check_whole(name: str, value: Any, least: int) -> None:
    """Raises InputError unless ``value`` is a whole number of at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        _refuse(name, "a whole number", value)
    if int(value) < least:
        raise InputError(f"{name} {value} is invalid; it must be {least} or more")


def a_cluster(cluster: Any) -> Cluster:
    """Returns the cluster, made from its shorthand if it is a text."""
    if isinstance(cluster, str):
        return parse_cluster(cluster)
    if not isinstance(cluster, Cluster):
        _refuse("cluster", "a Cluster or its shorthand, for example '16x4'", cluster)
    return cluster


def several(name: str, values: Any) -> list[Any]:
    """Returns ``values`` as a list; a single text raises InputError."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        _refuse(name, "a list", values)
    return list(values)


def _refuse(name: str, expected: str, value: object) -> NoReturn:
    shown = repr(value)
    raise InputError(f"{name} must be {expected}, not {shown if len(shown) <= 60 else shown[:57] + '...'}")
