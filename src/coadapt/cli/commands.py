"""The group of all commands: what ``coadapt`` alone says, and where each command lives."""

from __future__ import annotations

import click

from coadapt.cli.lazy import LazyGroup

_SECTIONS = {
    "Before a launch": {
        "plan": ("coadapt.cli.plan", "The cheapest GPUs and batch size for a deadline and a metric."),
        "predict": ("coadapt.cli.predict", "How long a model will train, before anything has run."),
        "profile": ("coadapt.cli.profile", "Measure this machine: layers, a run, its network."),
    },
    "A shared cluster": {
        "serve": ("coadapt.cli.serve", "Run the cluster on this machine."),
        "submit": ("coadapt.cli.submit", "Submit a job; what it will cost is said first."),
        "ps": ("coadapt.cli.ps", "The jobs: GPUs, batch size, progress, ETA, cost, why."),
        "why": ("coadapt.cli.why", "Why a job has what it has."),
        "top": ("coadapt.cli.top", "The cluster and its jobs, live."),
        "dashboard": ("coadapt.cli.dashboard", "A link to the dashboard that signs you in."),
        "logs": ("coadapt.cli.logs", "What a replica wrote."),
        "wait": ("coadapt.cli.wait", "Wait for a job's end."),
        "eta": ("coadapt.cli.eta", "When jobs will start and end, simulated from now on."),
        "cancel": ("coadapt.cli.act:cancel", "End jobs."),
        "pause": ("coadapt.cli.act:pause", "Have jobs hold nothing for a while."),
        "resume": ("coadapt.cli.act:resume", "Let paused jobs run again."),
        "retry": ("coadapt.cli.act:retry", "Run failed or cancelled jobs again."),
        "update": ("coadapt.cli.update", "Another priority, deadline or size for a job."),
        "checkpoints": ("coadapt.cli.checkpoints", "What a job could go on from."),
        "events": ("coadapt.cli.events", "The log, in words."),
        "nodes": ("coadapt.cli.nodes:nodes", "The nodes and who is on them."),
        "drain": ("coadapt.cli.nodes:drain", "Let a node take no new replicas."),
        "quota": ("coadapt.cli.nodes:quota", "Most GPUs of a user or team."),
        "token": ("coadapt.cli.tokens", "Who may use the controller."),
        "doctor": ("coadapt.cli.doctor", "What is wrong with the cluster on this machine."),
        "backup": ("coadapt.cli.backup", "A copy of the controller's store, while it runs."),
        "down": ("coadapt.cli.down", "Stop jobs, keeper and controller of this machine."),
    },
    "What if": {
        "simulate": ("coadapt.cli.simulate", "What a policy would have done with the jobs of a trace."),
        "compare": ("coadapt.cli.compare", "Policies and clusters against each other on one trace."),
        "size": ("coadapt.cli.size", "The smallest cluster that holds a goal."),
        "policies": ("coadapt.cli.policies", "The policies and their options."),
        "trace": ("coadapt.cli.trace", "Look at a trace, convert it, make one up."),
        "pool": ("coadapt.cli.pool", "What a file of past jobs knows."),
        "calibration": ("coadapt.cli.calibration", "What was predicted against what happened."),
    },
    "In your training code": {
        "test-resize": ("coadapt.cli.rehearse", "Whether a training script survives resizes and kills."),
        "watch": ("coadapt.cli.watch", "When a training run will be done, by its log."),
    },
    "Besides": {
        "completion": ("coadapt.cli.completion", "Completion of commands in your shell."),
    },
}


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"coadapt {version('coadapt')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    sections=_SECTIONS,
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
    """Coadapt predicts how long training takes, chooses GPUs and batch size together, and runs a shared cluster."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
