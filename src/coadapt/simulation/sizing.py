"""The smallest cluster that meets a goal: doubling, bisection, and a check of the sizes just below the answer.

More nodes usually help, but need not: a policy may do worse with one more. The search is exact if they always help. At
its end the two sizes below the answer are tried as well, and it continues from there if one of them meets the goal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coadapt.errors import InputError, UnknownNameError
from coadapt.model import Cluster, Fact, Node, parse_cluster
from coadapt.policies import Policy
from coadapt.progress import Bars
from coadapt.report import Summary
from coadapt.simulation.case import Case, prepare, run_case
from coadapt.simulation.result import plain
from coadapt.simulation.scenario import Scenario
from coadapt.simulation.traces._base import Workload
from coadapt.simulation.workload import Trace, load_pool, load_truths, load_workload, only_type
from coadapt.units import format_duration

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
    """Whether a run meets the goals (option -> seconds). A run with unfinished jobs meets none."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Every size that was tried, and the answer."""

    #: By number of nodes.
    probes: Sequence[Probe]
    #: Seconds by the name of the goal, see ``GOALS``.
    goals: Mapping[str, float]
    node: Node
    policy: str
    seed: int
    #: No more nodes were tried.
    max_nodes: int

    @property
    def answer(self) -> Probe | None:
        """The smallest cluster that meets every goal; None if none does."""
        return next((probe for probe in self.probes if probe.holds), None)

    @property
    def why_not(self) -> str:
        """Where there is no answer: what was asked, and the cluster that came nearest."""
        nearest = min(self.probes, key=lambda probe: (probe.missed, probe.nodes))
        figures = [
            f"{GOALS[name][1]} {format_duration(value)}"
            for name in self.goals
            if (value := getattr(nearest.summary, GOALS[name][0])) is not None
        ]
        unfinished = nearest.summary.num_unfinished
        left = f", {unfinished:,} jobs unfinished" if unfinished else ""
        asked = " and ".join(
            f"{GOALS[name][1]} within {format_duration(limit)}" for name, limit in self.goals.items()
        )
        return (
            f"no cluster of up to {count_nodes(self.max_nodes)} of {self.node.gpus} GPUs meets {asked} under {self.policy}; "
            f"closest: {', '.join(figures) or 'nothing finished'}{left} with {count_nodes(nearest.nodes)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys: ``coadapt size --json``."""
        tried = [{"nodes": each.nodes, "holds": each.holds, **plain(each.summary)} for each in self.probes]
        return {
            "nodes": None if self.answer is None else self.answer.nodes,
            "goals": dict(self.goals),
            "tried": tried,
        }


def count_nodes(count: int) -> str:
    """ "1 node", "2 nodes"."""
    return "1 node" if count == 1 else f"{count:,} nodes"


def size(
    trace: Trace,
    goals: Mapping[str, float],
    *,
    policy: str | Policy = "coadapt",
    node: str = "8",
    max_nodes: int = 256,
    options: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
    seed: int = 0,
    on_note: Callable[[str], None] | None = None,
    bars: Bars | None = None,
    **scenario: Any,
) -> Sizing:
    """The smallest cluster of equal nodes on which the jobs of a trace hold every goal.

    Args:
        trace: The path of a file, or a workload.
        goals: Seconds by the name of a goal: ``wait_p90``, ``wait_avg``, ``jct_p90``, ``jct_avg``, ``makespan``.
        policy: A name, or an instance.
        node: GPUS[:TYPE] of one node, for example ``"8:a100"``.
        max_nodes: Give up beyond.
        options: Of a policy given by name, as values; ``texts``: the same as a command line has them.
        seed: Of everything random.
        on_note: Told what the user should know about the trace.
        bars: Shows how far each run is.
        scenario: See ``Scenario``.
    """
    if not goals:
        raise InputError(
            "no goal: give --wait-p90, --wait-avg, --jct-p90, --jct-avg or --makespan, for example --wait-p90 1h"
        )
    for name in goals:
        if name not in GOALS:
            raise UnknownNameError("goal", name, GOALS)
    if max_nodes < 1:
        raise InputError(f"--max-nodes {max_nodes}: must be at least 1")
    world, one = Scenario.of(scenario), _node(node)
    name = policy if isinstance(policy, str) else type(policy).__name__
    case = Case(
        name=name,
        policy=policy,
        cluster=Cluster(nodes=(one,)),
        scenario=world,
        texts=texts or {},
        values=options or {},
        seed=seed,
    )
    probes = _probes(trace, case, one, goals, most=max_nodes, on_note=on_note, bars=bars)
    return Sizing(probes=probes, goals=goals, node=one, policy=name, seed=seed, max_nodes=max_nodes)


def _node(text: str) -> Node:
    if text.partition(":")[0].strip().strip("0") == "" and text.strip()[:1] == "0":
        raise InputError(f"--node {text}: must have at least 1 GPU, for example 8 or 8:a100")
    try:
        nodes = parse_cluster(f"1x{text}").nodes
    except InputError:
        nodes = ()
    if len(nodes) != 1:
        raise InputError(f"--node takes GPUS[:TYPE], for example 8 or 8:a100, not {text!r}")
    return nodes[0]


def _probes(
    trace: Trace,
    case: Case,
    node: Node,
    goals: Mapping[str, float],
    *,
    most: int,
    on_note: Callable[[str], None] | None,
    bars: Bars | None,
) -> list[Probe]:
    """Clusters of ``node`` that were tried for the goals, by size."""
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
    return parse_cluster(f"{nodes}x{node.gpus}" + ("" if node.gpu_type == "gpu" else f":{node.gpu_type}"))


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
