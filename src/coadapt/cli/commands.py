"""The group of all commands: what ``coadapt`` alone says, and where each command lives."""

from __future__ import annotations

import click

from coadapt.cli.lazy import LazyGroup

_COMMANDS = {
    "simulate": ("coadapt.cli.simulate", "What a policy would have done with the jobs of a trace."),
    "compare": ("coadapt.cli.compare", "Policies and clusters against each other on one trace."),
    "size": ("coadapt.cli.size", "The smallest cluster that holds a goal."),
    "predict": ("coadapt.cli.predict", "How long a model will train, before anything has run."),
    "profile": ("coadapt.cli.profile", "Measure this machine: layers, a run, its network."),
    "test-resize": ("coadapt.cli.rehearse", "Whether a training script survives resizes and kills."),
    "watch": ("coadapt.cli.watch", "When a training run will be done, by its log."),
    "calibration": ("coadapt.cli.calibration", "What was predicted against what happened."),
    "pool": ("coadapt.cli.pool", "What a file of past jobs knows."),
    "policies": ("coadapt.cli.policies", "The policies and their options."),
    "trace": ("coadapt.cli.trace", "Look at a trace, convert it, make one up."),
}


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"coadapt {version('coadapt')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    members=_COMMANDS,
    invoke_without_command=True,
    epilog="'coadapt COMMAND --help' says more. A first run: coadapt simulate examples/small.csv --cluster 2x4",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks; may stand anywhere.")
@click.pass_context
def group(ctx: click.Context) -> None:
    """Coadapt answers: what would another policy, or a larger cluster, have done with our jobs?"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
