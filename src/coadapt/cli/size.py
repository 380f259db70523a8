"""``coadapt size``: find the smallest cluster that meets a goal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli import terminal
from coadapt.cli.parameter_types import DURATION, json_option, seed_option
from coadapt.cli.simulation_options import policy_options, reading_options, scenario_values, world_options
from coadapt.errors import InfeasibleError

if TYPE_CHECKING:
    from coadapt.simulation import Probe, Sizing


@click.command("size")
@click.argument("trace")
@click.option("--wait-p90", type=DURATION, help="Goal: 90th percentile of the waiting time.")
@click.option("--wait-avg", type=DURATION, help="Goal: average waiting time.")
@click.option("--jct-p90", type=DURATION, help="Goal: 90th percentile of the job completion time.")
@click.option("--jct-avg", type=DURATION, help="Goal: average job completion time.")
@click.option("--makespan", type=DURATION, help="Goal: time until all jobs are finished.")
@click.option("--policy", default="coadapt", help="Scheduling policy, see 'coadapt policies'.")
@click.option("--node", default="8", metavar="GPUS[:TYPE]", help="GPUs of one node, and their type.")
@click.option("--max-nodes", type=int, default=256, help="Largest cluster to try.")
@policy_options
@seed_option
@world_options
@reading_options
@json_option
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
    """Find the smallest cluster on which the jobs of TRACE meet all given goals. Exit code 3: there is none.

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
    from coadapt import progress
    from coadapt.plugins import assignments
    from coadapt.progress import Bars
    from coadapt.simulation import size

    with Bars() as bars:
        found = size(
            trace,
            goals,
            policy=policy,
            node=node,
            max_nodes=max_nodes,
            texts=assignments(settings),
            seed=seed,
            on_note=progress.note,
            bars=bars,
            **scenario_values(given),
        )
    if as_json:
        terminal.say_json(found.to_dict())
    elif found.answer is not None:
        _say(found, found.answer)
    if found.answer is None:
        raise InfeasibleError(found.why_not)


def _say(found: Sizing, answer: Probe) -> None:
    from coadapt.simulation import GOALS, count_nodes

    node, goals = found.node, found.goals
    kind = "" if node.gpu_type == "gpu" else f" {node.gpu_type}"
    enough = "is" if answer.nodes == 1 else "are"
    reached = ", ".join(
        f"{GOALS[name][1]} {terminal.duration(getattr(answer.summary, GOALS[name][0]))} (goal {terminal.duration(limit)})"
        for name, limit in goals.items()
    )
    terminal.say(
        f"{count_nodes(answer.nodes)} of {node.gpus}{kind} GPUs {enough} enough: {reached}", bold=True
    )
    terminal.say(
        f"Policy {found.policy}, {answer.summary.num_jobs:,} jobs of one trace, one seed ({found.seed})."
    )
    terminal.say()
    header = ["nodes", "GPUs", *(GOALS[name][1] for name in goals), "utilisation", "enough"]
    rows = [
        [
            terminal.count(probe.nodes),
            terminal.count(probe.nodes * node.gpus),
            *(terminal.shown(getattr(probe.summary, GOALS[name][0]), terminal.duration) for name in goals),
            terminal.shown(probe.summary.utilisation, terminal.share),
            "yes (smallest)" if probe is answer else "yes" if probe.holds else "no",
        ]
        for probe in found.probes
    ]
    terminal.say_table(header, rows, left=0)
