"""The smallest cluster that holds a goal: doubling, bisection, and a second look below the answer.

More nodes usually help and need not: a policy may do worse with one more. The search is exact if they
always help; at its end the two sizes below are tried as well, and it goes on from there if one of them holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from coadapt.cli.compose import Case, cluster_of, prepare, run_case
from coadapt.cli.progress import Bars
from coadapt.cli.workloads import Trace, load_pool, load_truths, load_workload, only_type
from coadapt.model import Cluster, Fact, Node
from coadapt.report import Summary
from coadapt.simulate.traces import Workload

#: Goals by option: the summary's key, and what it is called.
GOALS = {
    "wait_p90": ("p90_wait_s", "p90 wait"),
    "wait_avg": ("avg_wait_s", "average wait"),
    "jct_p90": ("p90_jct_s", "p90 JCT"),
    "jct_avg": ("avg_jct_s", "average JCT"),
    "makespan": ("makespan_s", "makespan"),
}
_BELOW = 2


class Probe(Fact, frozen=True):
    """One size that was tried."""

    nodes: int
    summary: Summary
    holds: bool
    #: The largest share by which a goal is missed; 0 where all hold.
    missed: float


def probe_of(nodes: int, summary: Summary, goals: Mapping[str, float]) -> Probe:
    """What a run says about the goals (option -> seconds). A run with unfinished jobs holds none."""
    missed = 0.0
    for goal, limit_s in goals.items():
        value = getattr(summary, GOALS[goal][0])
        if value is None or summary.num_unfinished:
            missed = float("inf")
        elif value > limit_s:
            missed = max(missed, value / limit_s - 1 if limit_s else value)
    return Probe(nodes=nodes, summary=summary, holds=missed == 0.0, missed=missed)


def smallest(probe: Callable[[int], Probe], least: int, most: int) -> dict[int, Probe]:
    """Every size tried, by nodes; the answer is the smallest that holds. None holds: none was found."""
    tried: dict[int, Probe] = {}

    def holds(nodes: int) -> bool:
        if nodes not in tried:
            tried[nodes] = probe(nodes)
        return tried[nodes].holds

    failed, nodes = least - 1, least
    while not holds(nodes):
        if nodes >= most:
            return tried
        failed, nodes = nodes, min(2 * nodes, most)
    while True:
        while nodes - failed > 1:
            middle = (nodes + failed) // 2
            if holds(middle):
                nodes = middle
            else:
                failed = middle
        below = next((n for n in range(nodes - 1, max(nodes - 1 - _BELOW, least - 1), -1) if holds(n)), None)
        if below is None:
            return tried
        nodes = below
        failed = max((n for n in tried if n < nodes and not tried[n].holds), default=least - 1)


def size(
    trace: Trace,
    case: Case,
    node: Node,
    goals: Mapping[str, float],
    *,
    most: int,
    on_note: Callable[[str], None] | None = None,
    bars: Bars | None = None,
) -> list[Probe]:
    """Clusters of ``node`` that were tried for the goals, by size; the answer is the first that holds."""
    pool, truths = load_pool(case.scenario), load_truths(case.scenario)
    everything = _cluster(node, most)
    workload, notes = load_workload(trace, case.scenario, truths, only_type(everything))
    fit, dropped = prepare(_on(case, everything), workload, truths)
    if on_note is not None:
        for line in notes + dropped:
            on_note(line)

    def probe(nodes: int) -> Probe:
        seen, total = bars if bars is not None and bars.seen else None, len(fit.jobs)
        title = f"{nodes} nodes" if nodes > 1 else "1 node"
        result = run_case(
            _on(case, _cluster(node, nodes)),
            fit,
            truths,
            pool=pool,
            on_finished=None if seen is None else lambda: seen.advance(title, total),
        )
        return probe_of(nodes, result.summary, goals)

    return sorted(smallest(probe, _least(case, fit, node, most), most).values(), key=lambda each: each.nodes)


def _cluster(node: Node, nodes: int) -> Cluster:
    return cluster_of(f"{nodes}x{node.gpus}" + ("" if node.gpu_type == "gpu" else f":{node.gpu_type}"))


def _on(case: Case, cluster: Cluster) -> Case:
    return replace(case, cluster=cluster)


def _least(case: Case, workload: Workload, node: Node, most: int) -> int:
    """Fewer nodes than this cannot run some job at all."""
    chooses = case.make_policy().chooses_size
    least = 1
    for job in workload.jobs:
        spec = job.spec
        replicas = spec.worker.min if chooses and spec.elastic else spec.requested
        per_node = node.gpus // spec.gpus_per_replica
        least = max(least, math.ceil(replicas / per_node))
    return min(least, most)
