"""``coadapt simulate``: simulate a policy on the jobs of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli import terminal
from coadapt.cli.parameter_types import seed_option
from coadapt.cli.simulation_options import (
    bound_option,
    next_report,
    one_form,
    output_options,
    policy_options,
    reading_options,
    scenario_values,
    world_options,
)

if TYPE_CHECKING:
    from coadapt.simulation import Result

#: Number of unfinished jobs that are listed with their reasons.
_MOST_NAMED = 3


@click.command("simulate")
@click.argument("trace")
@click.option("--policy", default="coadapt", help="Scheduling policy, see 'coadapt policies'.")
@click.option("--cluster", default="16x4", help="NODESxGPUS[:TYPE]; several types: 6x4:t4,2x8:a100.")
@policy_options
@seed_option
@world_options
@bound_option
@click.option("--save-pool", metavar="FILE", help="Write the finished jobs to FILE, for --pool.")
@reading_options
@output_options
def command(
    trace: str,
    policy: str,
    cluster: str,
    settings: tuple[str, ...],
    seed: int,
    bound: bool,
    save_pool: str | None,
    output: str | None,
    force: bool,
    as_json: bool,
    as_csv: bool,
    **given: Any,
) -> None:
    """Simulate a policy on the jobs of TRACE.

    \b
    coadapt simulate examples/small.csv --cluster 2x4
    coadapt simulate trace.csv --policy pollux --policy-option p=-1 --interval 60 -o out/pollux
    """
    one_form(as_json, as_csv)
    # imports numpy, which --help does not need
    from coadapt import progress
    from coadapt.model import parse_cluster
    from coadapt.plugins import assignments
    from coadapt.progress import Bars
    from coadapt.simulation import Case, Scenario, simulate_into

    scenario = Scenario.of(scenario_values(given))
    case = Case(
        name=policy,
        policy=policy,
        cluster=parse_cluster(cluster),
        scenario=scenario,
        texts=assignments(settings),
        seed=seed,
    )
    with Bars() as bars:
        result = simulate_into(
            trace, case, output=output, save_pool=save_pool, force=force, bound=bound, bars=bars
        )
    for line in result.notes:
        progress.note(line)
    _print(result, as_json, as_csv, scenario.every_s, output)


def _unfinished(result: Result) -> list[str]:
    """The first jobs that did not finish, each with its last recorded reason."""
    left = [job for job in result.history.jobs.values() if job.jct_s is None]
    lines = []
    for job in left[:_MOST_NAMED]:
        reason = job.reason.text if job.reason is not None else "no reason was recorded"
        lines.append(f"  {job.id}: {job.outcome or reason}")
    return lines + ([f"  and {len(left) - _MOST_NAMED:,} more"] if len(left) > _MOST_NAMED else [])


def _print(result: Result, as_json: bool, as_csv: bool, every_s: float | None, output: str | None) -> None:
    from msgspec.structs import asdict

    from coadapt.model import format_cluster

    if as_json:
        terminal.say_json(result.plain())
        return
    if as_csv:
        terminal.say_csv([asdict(result.summary)])
        return
    gpus, jobs = result.cluster.gpus, result.summary.num_jobs
    rhythm = (
        "decisions at every event" if every_s is None else f"decisions every {terminal.duration(every_s)}"
    )
    terminal.say(f"{result.name} on {format_cluster(result.cluster)}", bold=True)
    terminal.say(f"{jobs:,} jobs of {result.source}, {gpus:,} GPUs, {rhythm}", dim=True)
    terminal.say()
    for line in terminal.summary_lines(result.summary):
        terminal.say(line)
    if result.summary.num_unfinished:
        terminal.say()
        terminal.say(f"{result.summary.num_unfinished:,} jobs did not finish.", bold=True)
        for line in _unfinished(result):
            terminal.say(line)
    for sentence in result.bound_sentences:
        terminal.say()
        terminal.say(sentence)
    terminal.say()
    terminal.say(next_report(output))
