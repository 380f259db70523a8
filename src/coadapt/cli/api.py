"""The Python functions: the same as the commands, with objects where the commands have texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coadapt.cli.calibration import calibrate
from coadapt.cli.comparison import Comparison
from coadapt.cli.compose import Case, cluster_of, prepare, run_case
from coadapt.cli.parallel import Task, run_all
from coadapt.cli.progress import Bars
from coadapt.cli.result import Result
from coadapt.cli.scenario import Scenario
from coadapt.cli.sizing import Probe, probe_of, smallest
from coadapt.cli.workloads import load_truths, load_workload, only_type
from coadapt.errors import InputError
from coadapt.model import Cluster, Node, Record, format_cluster
from coadapt.policies import Policy
from coadapt.simulate.traces import Workload

Trace = str | Path | Workload


def simulate(
    trace: Trace,
    policy: str | Policy = "tiresias",
    cluster: str | Cluster = "16x4",
    *,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    keep_events: bool = True,
    **scenario: Any,
) -> Result:
    """Runs the jobs of a trace under a policy.

    ``options``: of a policy given by name. ``scenario``: see ``cli.scenario.Scenario`` (``interval_s``,
    ``restart_s``, ``profiles``, ...). Raises a ``CoadaptError`` where the command would say why not.
    """
    name = policy if isinstance(policy, str) else type(policy).__name__
    case = Case(
        name=name,
        policy=policy,
        cluster=cluster_of(cluster) if isinstance(cluster, str) else cluster,
        scenario=Scenario.of(scenario),
        values=options or {},
        seed=seed,
    )
    return simulate_case(trace, case, keep_events=keep_events)


def simulate_case(
    trace: Trace,
    case: Case,
    *,
    bars: Bars | None = None,
    keep_events: bool = False,
    on_record: Callable[[Record], None] | None = None,
    on_ready: Callable[[Workload, list[str]], None] | None = None,
) -> Result:
    """Reads, checks and runs; ``on_ready`` is told what will be run, once nothing can be wrong with it."""
    case.make_policy()
    truths = load_truths(case.scenario)
    workload, notes = load_workload(trace, case.scenario, truths, only_type(case.cluster))
    fit, dropped = prepare(case, workload, truths)
    notes += dropped
    if on_ready is not None:
        on_ready(fit, notes)
    seen, total = bars if bars is not None and bars.seen else None, len(fit.jobs)
    return run_case(
        case,
        fit,
        truths,
        on_record=on_record,
        on_finished=None if seen is None else lambda: seen.advance(case.name, total),
        keep_events=keep_events,
        notes=notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A policy in a comparison, by the name users see."""

    name: str
    policy: str | Policy
    texts: Mapping[str, str]
    values: Mapping[str, Any]


def compare(
    trace: Trace,
    policies: Iterable[str | Policy] = ("fifo", "tiresias", "optimus", "pollux"),
    *,
    clusters: Iterable[str | Cluster] = ("16x4",),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: int = 1,
    reference: str | None = None,
    processes: int = 1,
    calibration: bool = True,
    **scenario: Any,
) -> Comparison:
    """Runs every policy on every cluster, ``seeds`` times.

    ``options``: by policy name. ``processes`` > 1 needs the usual ``if __name__ == "__main__"`` around the
    calling script. ``reference``: the policy that ratios are relative to, on the first cluster.
    """
    entrants = [
        Entrant(
            name=policy if isinstance(policy, str) else type(policy).__name__,
            policy=policy,
            texts={},
            values=(options or {}).get(policy, {}) if isinstance(policy, str) else {},
        )
        for policy in policies
    ]
    made = [cluster_of(cluster) if isinstance(cluster, str) else cluster for cluster in clusters]
    return compare_entrants(
        trace,
        entrants,
        made,
        Scenario.of(scenario),
        seeds=seeds,
        reference=reference,
        processes=processes,
        calibration=calibration,
    )


def compare_entrants(
    trace: Trace,
    entrants: Sequence[Entrant],
    clusters: Sequence[Cluster],
    scenario: Scenario,
    *,
    seeds: int = 1,
    first_seed: int = 0,
    reference: str | None = None,
    processes: int = 1,
    calibration: bool = True,
    bars: Bars | None = None,
    on_ready: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Checks everything, calibrates, tells ``on_ready`` (a comparison without runs), and runs."""
    _check_names(entrants, clusters, seeds, reference)
    truths = load_truths(scenario)
    tasks: list[Task] = []
    workloads: list[Workload] = []
    notes: dict[str, None] = {}
    loaded: dict[str, tuple[Workload, list[str]]] = {}
    for cluster in clusters:
        gpu_type = only_type(cluster)
        if gpu_type not in loaded:
            loaded[gpu_type] = load_workload(trace, scenario, truths, gpu_type)
        workload, read = loaded[gpu_type]
        notes |= dict.fromkeys(read)
        for entrant in entrants:
            name = entrant.name if len(clusters) == 1 else f"{entrant.name} on {format_cluster(cluster)}"
            for seed in range(first_seed, first_seed + seeds):
                case = Case(
                    name=name,
                    policy=entrant.policy,
                    cluster=cluster,
                    scenario=scenario,
                    texts=entrant.texts,
                    values=entrant.values,
                    seed=seed,
                )
                if seed == first_seed:
                    fit, dropped = prepare(case, workload, truths)
                    notes |= dict.fromkeys(dropped)
                    index = next((n for n, known in enumerate(workloads) if known is fit), len(workloads))
                    if index == len(workloads):
                        workloads.append(fit)
                tasks.append(Task(case, index, keep=seed == first_seed))
    first = next(iter(loaded.values()))[0]
    base = next(task.case.name for task in tasks if reference is None or _is(task.case, reference, clusters))
    replay = calibrate(first, clusters[0], scenario, truths) if calibration else None
    about = Comparison(source=first.source, outcomes=(), reference=base, calibration=replay, notes=tuple(notes))
    if on_ready is not None:
        on_ready(about)
    outcomes = run_all(tasks, workloads, truths, scenario, processes=processes, bars=bars or Bars(quiet=True))
    return Comparison(
        source=first.source, outcomes=outcomes, reference=base, calibration=replay, notes=tuple(notes)
    )


def _is(case: Case, reference: str, clusters: Sequence[Cluster]) -> bool:
    return case.name in (reference, f"{reference} on {format_cluster(clusters[0])}")


def _check_names(
    entrants: Sequence[Entrant], clusters: Sequence[Cluster], seeds: int, reference: str | None
) -> None:
    names = [entrant.name for entrant in entrants]
    if not entrants or not clusters or seeds < 1:
        raise InputError("a comparison needs at least one policy, one cluster and one seed")
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"policy {name!r} is named twice; give each other options, as in pollux,pollux:p=0")
    shorthands = [format_cluster(cluster) for cluster in clusters]
    for shorthand in shorthands:
        if shorthands.count(shorthand) > 1:
            raise InputError(f"cluster {shorthand!r} is named twice")
    if reference is not None and reference not in names:
        raise InputError(f"the reference {reference!r} is not among the policies: {', '.join(names)}")


def size(
    trace: Trace,
    case: Case,
    node: Node,
    goals: Mapping[str, float],
    *,
    most: int,
    on_probe: Callable[[Probe], None] | None = None,
    on_ready: Callable[[Workload, list[str]], None] | None = None,
    bars: Bars | None = None,
) -> list[Probe]:
    """Clusters of ``node`` that were tried for the goals, by size; the answer is the first that holds."""
    truths = load_truths(case.scenario)
    everything = _cluster(node, most)
    workload, notes = load_workload(trace, case.scenario, truths, only_type(everything))
    fit, dropped = prepare(_on(case, everything), workload, truths)
    if on_ready is not None:
        on_ready(fit, notes + dropped)

    def probe(nodes: int) -> Probe:
        seen, total = bars if bars is not None and bars.seen else None, len(fit.jobs)
        title = f"{nodes} nodes" if nodes > 1 else "1 node"
        result = run_case(
            _on(case, _cluster(node, nodes)),
            fit,
            truths,
            on_finished=None if seen is None else lambda: seen.advance(title, total),
        )
        found = probe_of(nodes, result.summary, goals)
        if on_probe is not None:
            on_probe(found)
        return found

    return sorted(smallest(probe, _least(case, fit, node, most), most).values(), key=lambda each: each.nodes)


def _cluster(node: Node, nodes: int) -> Cluster:
    return cluster_of(f"{nodes}x{node.gpus}" + ("" if node.gpu_type == "gpu" else f":{node.gpu_type}"))


def _on(case: Case, cluster: Cluster) -> Case:
    from dataclasses import replace

    return replace(case, cluster=cluster)


def _least(case: Case, workload: Workload, node: Node, most: int) -> int:
    """Fewer nodes than this cannot run some job at all."""
    from coadapt.cli.families import chooses_size

    chooses = chooses_size(case.make_policy())
    least = 1
    for job in workload.jobs:
        spec = job.spec
        replicas = spec.worker.min if chooses and spec.elastic else spec.requested
        per_node = node.gpus // spec.gpus_per_replica
        least = max(least, math.ceil(replicas / per_node))
    return min(least, most)
