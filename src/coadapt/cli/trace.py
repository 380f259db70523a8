"""``coadapt trace``: inspect, convert or generate a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coadapt.cli import terminal
from coadapt.cli.parameter_types import FINITE, json_option, seed_option
from coadapt.cli.simulation_options import reading_options, scenario_values

if TYPE_CHECKING:
    from coadapt.simulation import Workload


@click.group("trace", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Inspect, convert or generate a trace."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        ctx.exit(2)


@command.command("info")
@click.argument("trace")
@reading_options
@json_option
def info(trace: str, as_json: bool, **given: Any) -> None:
    """Show the contents of a trace.

    Number of jobs, time span, job sizes, GPU-hours, and a cluster that fits.
    """
    from coadapt.simulation import describe

    workload = _load(trace, given)
    about = describe(workload)
    if as_json:
        terminal.say_json(about)
        return
    terminal.say(trace, bold=True)
    for line in terminal.facts(_facts(about)):
        terminal.say(line)
    terminal.say()
    cluster = (about["cluster_hint"] or about["peak_cluster"] or "16x4").replace(",", "+")
    command = f"compare {trace} --clusters" if about["recorded"] else f"simulate {trace} --cluster"
    terminal.say(f"Next: coadapt {command} {cluster}")


def _facts(about: dict[str, Any]) -> dict[str, str]:
    from coadapt.units import format_duration

    sizes = ", ".join(f"{gpus} ({count:,})" for gpus, count in list(about["sizes"].items())[:12])
    facts = {
        "jobs": f"{about['jobs']:,}",
        "submitted within": format_duration(about["span_s"]),
        "GPUs per job (jobs)": sizes + (" ..." if len(about["sizes"]) > 12 else ""),
    }
    if about["jobs_with_duration"]:
        facts["GPU-hours"] = f"{about['gpu_hours']:,.0f}"
        facts["median duration"] = format_duration(about["median_duration_s"])
        facts["longest duration"] = format_duration(about["longest_duration_s"])
    if about["gpu_types"]:
        facts["GPU types (jobs)"] = ", ".join(
            f"{name} ({count:,})" for name, count in about["gpu_types"].items()
        )
    if about["profiles"]:
        facts["profiles"] = ", ".join(f"{name} ({count:,})" for name, count in about["profiles"].items())
    for key in ("users", "teams"):
        if about[key]:
            facts[key] = f"{about[key]:,}"
    facts["start times"] = (
        "recorded ('coadapt compare' shows them next to each policy)" if about["recorded"] else "not recorded"
    )
    if about["peak_gpus"]:
        peaks = ", ".join(f"{gpus:,} {name or 'GPUs'}" for name, gpus in about["peak_gpus"].items())
        how = "in the recorded run" if about["recorded"] else "if no job had to wait"
        facts["peak use"] = f"{peaks} {how}, for example {about['peak_cluster']}"
    if about["cluster_hint"]:
        facts["cluster"] = f"{about['cluster_hint']} (from the trace)"
    return facts


@command.command("convert")
@click.argument("trace")
@click.argument("out")
@reading_options
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
def convert(trace: str, out: str, force: bool, **given: Any) -> None:
    """Convert a trace to Coadapt's own format.

    OUT is a .csv, .jsonl, .csv.gz or .jsonl.gz file; "-" is standard output.
    """
    from coadapt.simulation import workload_csv, write_workload

    workload = _load(trace, given)
    if out == "-":
        terminal.echo(workload_csv(workload), nl=False)
        return
    write_workload(workload, out, force=force)
    terminal.echo(f"Wrote {len(workload.jobs):,} jobs to {out}.")


@command.command("generate")
@seed_option
@click.option("--jobs", type=int, default=160, help="Number of jobs.")
@click.option("--hours", type=FINITE, default=8.0, help="Hours within which the jobs are submitted.")
@click.option("--long-jobs/--no-long-jobs", default=True, help="Include a few jobs that run for days.")
@click.option("--load", type=FINITE, default=1.0, help="Factor on the number of jobs.")
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="A .csv, .jsonl, .csv.gz or .jsonl.gz file."
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
def generate(
    seed: int, jobs: int, hours: float, long_jobs: bool, load: float, output: str, force: bool
) -> None:
    """Generate a workload.

    Jobs have the shipped profiles; arrivals and sizes are as in real traces.
    """
    from coadapt.simulation import generate_workload, write_workload

    workload = generate_workload(seed, jobs, hours, long_jobs=long_jobs, load=load, source=output)
    write_workload(workload, output, force=force)
    terminal.echo(f"Wrote {len(workload.jobs):,} jobs to {output}.")
    terminal.echo(f"Next: coadapt simulate {output} --cluster 16x4")


def _load(trace: str, given: dict[str, Any]) -> Workload:
    from coadapt import progress
    from coadapt.simulation import open_workload

    workload, notes = open_workload(trace, **scenario_values(given))
    for line in notes:
        progress.note(line)
    return workload
