"""``coadapt simulate``: what a policy would have done with the jobs of a trace."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coadapt.cli.options import (
    bound_option,
    one_form,
    output_options,
    policy_settings,
    reading_options,
    scenario_of,
    world_options,
)
from coadapt.errors import InputError

if TYPE_CHECKING:
    from coadapt.cli.result import Result
    from coadapt.cli.scenario import Scenario

#: Jobs that did not finish, named with their reasons.
_MOST_NAMED = 3


@click.command("simulate")
@click.argument("trace")
@click.option("--policy", default="coadapt", show_default=True, help="See 'coadapt policies'.")
@click.option(
    "--cluster", default="16x4", show_default=True, help="NODESxGPUS[:TYPE], mixed: 6x4:t4,2x8:a100."
)
@policy_settings
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of everything random."
)
@world_options
@bound_option
@click.option("--save-pool", metavar="FILE", help="Write the past jobs known at the end, for --pool.")
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
    """What a policy would have done with the jobs of TRACE.

    \b
    coadapt simulate examples/small.csv --cluster 2x4
    coadapt simulate trace.csv --policy pollux --set p=-1 --interval 60 -o out/pollux
    """
    one_form(as_json, as_csv)
    scenario = scenario_of(given)
    # what follows imports numpy, which a --help must not wait for
    from coadapt.cli import show
    from coadapt.cli.api import simulate_case
    from coadapt.cli.compose import Case, cluster_of
    from coadapt.cli.output import fresh_directory
    from coadapt.cli.policy_options import assignments
    from coadapt.cli.progress import Bars
    from coadapt.cli.result import event_file
    from coadapt.store.pool import save

    case = Case(
        name=policy,
        policy=policy,
        cluster=cluster_of(cluster),
        scenario=scenario,
        texts=assignments(settings),
        seed=seed,
    )
    with ExitStack() as stack:
        add, staging = None, None
        if output is not None:
            staging = stack.enter_context(fresh_directory(Path(output), force=force))
        learned = None if save_pool is None else stack.enter_context(_pool_file(save_pool, scenario, force))
        with Bars() as bars, ExitStack() as events:
            if staging is not None:
                add = events.enter_context(event_file(staging))
            result = simulate_case(trace, case, bars=bars, on_record=add, bound=bound)
        if staging is not None:
            result.write_files(staging)
        if learned is not None and result.pool is not None:
            save(learned, result.pool)
    for line in result.notes:
        show.note(line)
    _print(result, as_json, as_csv, scenario.every_s, output)


def _pool_file(name: str, scenario: Scenario, force: bool) -> AbstractContextManager[Path]:
    """Where past jobs are written: a new file, the one they came from, or by force."""
    from coadapt.cli.output import fresh_file

    target = Path(name)
    if not target.parent.is_dir():
        raise InputError(f"cannot write {name}: there is no directory {target.parent}")
    known = None if scenario.pool is None else Path(scenario.pool)
    same = known is not None and known.exists() and target.exists() and target.samefile(known)
    return fresh_file(target, force=force or same)


def _unfinished(result: Result) -> list[str]:
    """The first jobs that did not finish, each with what was last said of it."""
    left = [job for job in result.history.jobs.values() if job.jct_s is None]
    lines = []
    for job in left[:_MOST_NAMED]:
        said = job.reason.text if job.reason is not None else "no reason was recorded"
        # what was said of a job while it ran does not explain its end
        lines.append(f"  {job.id}: {job.outcome or said}")
    return lines + ([f"  and {len(left) - _MOST_NAMED:,} more"] if len(left) > _MOST_NAMED else [])


def _print(result: Result, as_json: bool, as_csv: bool, every_s: float | None, output: str | None) -> None:
    from coadapt.cli import show
    from coadapt.cli.result import plain
    from coadapt.model import format_cluster

    if as_json or as_csv:
        # nothing nested in a table
        show.say_rows([result.plain() if as_json else plain(result.summary)], as_json=as_json, single=True)
        return
    gpus, jobs = result.cluster.gpus, result.summary.num_jobs
    rhythm = "decisions on events" if every_s is None else f"decisions every {show.duration(every_s)}"
    show.say(f"{result.name} on {format_cluster(result.cluster)}", bold=True)
    show.say(f"{jobs:,} jobs of {result.source}, {gpus:,} GPUs, {rhythm}", dim=True)
    show.say()
    for line in show.summary_lines(result.summary):
        show.say(line)
    if result.summary.num_unfinished:
        show.say()
        show.say(f"{result.summary.num_unfinished:,} jobs did not finish.", bold=True)
        for line in _unfinished(result):
            show.say(line)
    for sentence in result.bound_sentences:
        show.say()
        show.say(sentence)
    show.say()
    show.say(
        f"Next: open {Path(output) / 'report.html'}" if output else "Next: -o DIR writes a report with charts"
    )
