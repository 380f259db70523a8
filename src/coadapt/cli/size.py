"""``coadapt size``: the smallest cluster that holds a goal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli.options import DURATION, policy_settings, reading_options, scenario_of, world_options
from coadapt.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coadapt.cli.sizing import Probe
    from coadapt.model import Node


@click.command("size")
@click.argument("trace")
@click.option("--wait-p90", type=DURATION, help="Nine of ten jobs wait no longer than this.")
@click.option("--wait-avg", "--avg-wait", type=DURATION, help="Jobs wait no longer than this on average.")
@click.option("--jct-p90", type=DURATION, help="Nine of ten jobs are done after this.")
@click.option("--jct-avg", "--avg-jct", type=DURATION, help="Jobs are done after this on average.")
@click.option("--makespan", type=DURATION, help="All jobs are done after this.")
@click.option("--policy", default="coadapt", show_default=True, help="See 'coadapt policies'.")
@click.option(
    "--node", default="8", show_default=True, metavar="GPUS[:TYPE]", help="One node of the cluster."
)
@click.option("--max-nodes", type=int, default=256, show_default=True, help="Give up beyond.")
@policy_settings
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of everything random."
)
@world_options
@reading_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys, and nothing else.")
def command(
    trace: str,
    policy: str,
    node: str,
    max_nodes: int,
    settings: tuple[str, ...],
    seed: int,
    as_json: bool,
    wait_p90: float | None,
    wait_avg: float | None,
    jct_p90: float | None,
    jct_avg: float | None,
    makespan: float | None,
    **given: Any,
) -> None:
    """The smallest cluster on which the jobs of TRACE hold a goal; exit code 3 if there is none.

    \b
    coadapt size trace.csv --wait-p90 1h --node 8:a100
    """
    asked = {
        "wait_p90": wait_p90,
        "wait_avg": wait_avg,
        "jct_p90": jct_p90,
        "jct_avg": jct_avg,
        "makespan": makespan,
    }
    goals = {name: limit for name, limit in asked.items() if limit is not None}
    if not goals:
        raise InputError(
            "name a goal: --wait-p90, --wait-avg, --jct-p90, --jct-avg or --makespan, for example --wait-p90 1h"
        )
    if max_nodes < 1:
        raise InputError(f"--max-nodes {max_nodes}: at least one")
    scenario = scenario_of(given)
    from coadapt.cli import show
    from coadapt.cli.compose import Case, cluster_of
    from coadapt.cli.policy_options import assignments
    from coadapt.cli.progress import Bars
    from coadapt.cli.sizing import size

    if node.partition(":")[0].strip().strip("0") == "" and node.strip()[:1] == "0":
        raise InputError(f"--node {node}: at least 1 GPU, for example 8 or 8:a100")
    try:
        one = cluster_of(f"1x{node}")
    except InputError:
        one = None
    if one is None or len(one.nodes) != 1:
        raise InputError(f"--node takes GPUS[:TYPE], for example 8 or 8:a100, not {node!r}")
    case = Case(
        name=policy, policy=policy, cluster=one, scenario=scenario, texts=assignments(settings), seed=seed
    )
    with Bars() as bars:
        probes = size(
            trace,
            case,
            one.nodes[0],
            goals,
            most=max_nodes,
            on_note=show.note,
            bars=bars,
        )
    answer = next((probe for probe in probes if probe.holds), None)
    if as_json:
        show.say_rows([_plain(probes, answer, goals)], as_json=True, single=True)
    elif answer is not None:
        _say(probes, answer, goals, one.nodes[0], policy, seed)
    if answer is None:
        raise InfeasibleError(_no(probes, goals, one.nodes[0], max_nodes, policy))


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"


def _asked(goals: Mapping[str, float]) -> str:
    from coadapt.cli.sizing import GOALS
    from coadapt.units import format_duration

    return " and ".join(f"{GOALS[name][1]} within {format_duration(limit)}" for name, limit in goals.items())


def _say(
    probes: list[Probe], answer: Probe, goals: Mapping[str, float], node: Node, policy: str, seed: int
) -> None:
    from coadapt.cli import show
    from coadapt.cli.sizing import GOALS

    kind = "" if node.gpu_type == "gpu" else f" {node.gpu_type}"
    enough = "is" if answer.nodes == 1 else "are"
    reached = ", ".join(
        f"{GOALS[name][1]} {show.duration(getattr(answer.summary, GOALS[name][0]))} (goal {show.duration(limit)})"
        for name, limit in goals.items()
    )
    show.say(f"{_nodes(answer.nodes)} of {node.gpus}{kind} GPUs {enough} enough: {reached}", bold=True)
    show.say(f"Under {policy}, with the {answer.summary.num_jobs:,} jobs of one trace and one seed ({seed}).")
    show.say()
    header = ["nodes", "GPUs", *(GOALS[name][1] for name in goals), "utilisation", "enough"]
    rows = [
        [
            show.count(probe.nodes),
            show.count(probe.nodes * node.gpus),
            *(show.shown(getattr(probe.summary, GOALS[name][0]), show.duration) for name in goals),
            show.shown(probe.summary.utilisation, show.share),
            "yes (smallest)" if probe is answer else "yes" if probe.holds else "no",
        ]
        for probe in probes
    ]
    show.say_table(header, rows, left=0)


def _no(probes: list[Probe], goals: Mapping[str, float], node: Node, most: int, policy: str) -> str:
    from coadapt.cli.sizing import GOALS
    from coadapt.units import format_duration

    nearest = min(probes, key=lambda probe: (probe.missed, probe.nodes))
    figures = [
        f"{GOALS[name][1]} {format_duration(value)}"
        for name in goals
        if (value := getattr(nearest.summary, GOALS[name][0])) is not None
    ]
    left = f", {nearest.summary.num_unfinished:,} jobs unfinished" if nearest.summary.num_unfinished else ""
    return (
        f"no cluster of up to {_nodes(most)} of {node.gpus} GPUs holds {_asked(goals)} under {policy}; "
        f"nearest: {', '.join(figures) or 'nothing finished'}{left} with {_nodes(nearest.nodes)}"
    )


def _plain(probes: list[Probe], answer: Probe | None, goals: Mapping[str, float]) -> dict[str, Any]:
    from coadapt.cli.result import plain

    return {
        "nodes": None if answer is None else answer.nodes,
        "goals": dict(goals),
        "tried": [{"nodes": probe.nodes, "holds": probe.holds, **plain(probe.summary)} for probe in probes],
    }
