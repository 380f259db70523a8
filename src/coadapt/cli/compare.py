"""``coadapt compare``: compare policies and clusters on one trace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from coadapt.cli import terminal
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
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.simulation import Comparison


@click.command("compare")
@click.argument("trace")
@click.option(
    "--policies",
    default="coadapt,fifo,tiresias,optimus,pollux",
    help="Comma-separated; with options: pollux:p=0.",
)
@click.option(
    "--clusters", default="16x4", help="Comma-separated; several GPU types in one: 6x4:t4+2x8:a100."
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, help="Runs of each policy, with different seeds."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="First seed.")
@click.option("--reference", metavar="POLICY", help="Policy that ratios are relative to. Default: the first.")
@click.option("--processes", type=int, metavar="N", help="Number of runs in parallel. Default: one per CPU.")
@bound_option
@policy_options
@world_options
@reading_options
@output_options
def command(
    trace: str,
    policies: str,
    clusters: str,
    seeds: int,
    seed: int,
    reference: str | None,
    processes: int | None,
    bound: bool,
    settings: tuple[str, ...],
    output: str | None,
    force: bool,
    as_json: bool,
    as_csv: bool,
    **given: Any,
) -> None:
    """Compare policies and clusters on the jobs of TRACE.

    If the trace contains start times, the recorded run is replayed first, to check the trace and the size of the
    cluster, and is shown in the table as "recorded". --policy-option p=0 applies to every policy that has the
    option, --policy-option pollux.p=0 to one policy.

    \b
    coadapt compare trace.csv --policies fifo,tiresias --clusters 16x4,18x4 -o out/compare
    """
    one_form(as_json, as_csv)
    if processes is not None and processes < 1:
        raise InputError(f"--processes {processes} is not possible; at least one is needed")
    from coadapt import progress
    from coadapt.model import parse_cluster
    from coadapt.progress import Bars
    from coadapt.simulation import Scenario, compare_into, parse_entrants

    scenario = Scenario.of(scenario_values(given))
    entrants = parse_entrants(policies, settings)
    chosen = [parse_cluster(text) for text in clusters.split(",") if text.strip()]

    def ready(about: Comparison) -> None:
        for line in about.notes:
            progress.note(line)

    with Bars() as bars:
        comparison = compare_into(
            trace,
            entrants,
            chosen,
            scenario,
            output=output,
            force=force,
            bound=bound,
            seeds=seeds,
            first_seed=seed,
            reference=reference,
            processes=processes or os.cpu_count() or 1,
            bars=bars,
            on_ready=ready,
        )
    if as_json:
        terminal.say_json(comparison.plain())
    elif as_csv:
        terminal.say_csv(comparison.runs)
    else:
        _say(comparison, seeds)
        if comparison.recorded_check is not None:
            _say_recorded_check(comparison)
        terminal.say()
        terminal.say(next_report(output))


def _say_recorded_check(about: Comparison) -> None:
    found = about.recorded_check
    assert found is not None
    terminal.say()
    terminal.say(f"Replay of the recorded run on {found.cluster}", bold=True)
    lines = {
        "starts": found.verdict,
        "error of waits": f"{terminal.duration(found.wait_error_p50_s)} median, "
        f"{terminal.duration(found.wait_error_p90_s)} 90th percentile",
    }
    if found.jct_error_p50_s is not None and found.jct_error_p90_s is not None:
        lines["error of JCTs"] = (
            f"{terminal.duration(found.jct_error_p50_s)} median, "
            f"{terminal.duration(found.jct_error_p90_s)} 90th percentile"
        )
    if found.avg_jct_error is not None:
        lines["error of average JCT"] = f"{found.avg_jct_error:+.1%}"
    for line in terminal.facts(lines):
        terminal.say(line)


#: Columns after the ratio: key of the summary, title, format.
_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("vs_bound", "vs bound", "decimal"),
    ("avg_wait_s", "avg wait", "duration"),
    ("p90_wait_s", "p90 wait", "duration"),
    ("p50_jct_s", "p50 JCT", "duration"),
    ("p90_jct_s", "p90 JCT", "duration"),
    ("p99_jct_s", "p99 JCT", "duration"),
    ("makespan_s", "makespan", "duration"),
    ("utilisation", "util.", "share"),
    ("num_restarts", "restarts", "count"),
    ("rho_mean", "rho", "decimal"),
    ("num_deadlines_missed", "deadlines missed", "count"),
)


def _say(comparison: Comparison, seeds: int) -> None:
    ratios = comparison.ratios
    idle = set() if comparison.bounds else {"vs_bound"}
    if not any(outcome.summary.num_deadlines for outcome in comparison.outcomes):
        idle.add("num_deadlines_missed")
    columns = [column for column in _COLUMNS if column[0] not in idle]
    header = ["", "avg JCT", "ratio", "95% interval", *(title for _, title, _ in columns)]
    found = {column.name: column.numbers for column in comparison.columns}
    recorded = [comparison.recorded_name] if comparison.recorded is not None else []
    rows = []
    for name in (*recorded, *comparison.names):
        versus = None if name == comparison.reference else ratios.get(name)
        rows.append(
            [
                name,
                terminal.shown(found[name]["avg_jct_s"], terminal.duration),
                "" if versus is None else f"{versus.ratio:.2f}",
                "" if versus is None else f"{versus.low:.2f} to {versus.high:.2f}",
                *(terminal.shown(found[name].get(key), getattr(terminal, form)) for key, _, form in columns),
            ]
        )
    jobs = comparison.outcomes[0].summary.num_jobs
    several = f", mean of {seeds} seeds" if seeds > 1 else ""
    terminal.say(
        f"{jobs:,} jobs of {comparison.source}{several}; ratio = average JCT / average JCT of {comparison.reference}",
        bold=True,
    )
    terminal.say()
    terminal.say_table(header, rows)
    if comparison.recorded is not None and comparison.recorded.num_jobs < jobs:
        terminal.say(
            f"  {recorded[0]}: only the {comparison.recorded.num_jobs:,} jobs with a recorded start time"
        )
    for sentence in comparison.bound_sentences:
        terminal.say()
        terminal.say(sentence)
    for name in comparison.names:
        unfinished = comparison.mean(name).num_unfinished
        if unfinished:
            terminal.say(f"  {name}: {unfinished:,.0f} jobs did not finish")
