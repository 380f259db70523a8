"""The group of all commands and the module of each, imported only when the command is run; ``coadapt completion``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from coadapt.errors import suggestion


class LazyGroup(click.Group):
    """A group of commands whose modules are imported when a command is run.

    ``sections`` maps a title to the commands under it: name -> (module, help line). The command is the attribute
    ``command`` of its module, or ``NAME`` if the module is written "module:NAME".
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Mapping[str, tuple[str, str]]], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._sections = sections
        self._members = {name: found for group in self._sections.values() for name, found in group.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the sections."""
        return list(self._members)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return the command."""
        if name not in self._members:
            return None
        module, _, attribute = self._members[name][0].partition(":")
        command = getattr(import_module(module), attribute or "command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown name is refused with a suggestion."""
        if args and not args[0].startswith("-") and args[0] not in self._members:
            raise click.UsageError(f"unknown command {args[0]!r}; {suggestion(args[0], self._members)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help from the table, without importing a command."""
        for title, members in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in members.items()])


_SECTIONS = {
    "Plan a run": {
        "plan": ("coadapt.cli.plan", "Find the cheapest GPUs and batch size for a deadline and a metric."),
        "predict": ("coadapt.cli.predict", "Predict step time, training time and memory of a model."),
        "profile": ("coadapt.cli.profile", "Measure layers, a training run or the network."),
    },
    "Run a shared cluster": {
        "serve": ("coadapt.cli.cluster.serve:serve", "Run a cluster on this machine."),
        "submit": ("coadapt.cli.jobs.submit", "Submit a job, after a preview of its time and cost."),
        "ps": ("coadapt.cli.jobs.ps:ps", "List jobs: GPUs, batch size, progress, ETA, cost, reason."),
        "why": ("coadapt.cli.jobs.why:why", "Explain why a job waits, runs on its GPUs, or ended."),
        "top": ("coadapt.cli.jobs.top:top", "Show the cluster and its jobs, updated live."),
        "dashboard": ("coadapt.cli.cluster.serve:dashboard", "Print a dashboard link that signs you in."),
        "logs": ("coadapt.cli.jobs.logs:logs", "Show the output of a job."),
        "wait": ("coadapt.cli.jobs.control:wait", "Wait until a job ends."),
        "eta": ("coadapt.cli.jobs.eta:eta", "Forecast when jobs start and end."),
        "cancel": ("coadapt.cli.jobs.control:cancel", "Cancel jobs."),
        "pause": ("coadapt.cli.jobs.control:pause", "Pause jobs: save their state and release their GPUs."),
        "resume": ("coadapt.cli.jobs.control:resume", "Resume paused jobs."),
        "retry": ("coadapt.cli.jobs.control:retry", "Run failed or cancelled jobs again."),
        "update": ("coadapt.cli.jobs.control:update", "Change the priority, deadline or size of a job."),
        "checkpoints": ("coadapt.cli.jobs.logs:checkpoints", "List the checkpoints a job can resume from."),
        "events": ("coadapt.cli.jobs.why:events", "Show the event log as text."),
        "nodes": ("coadapt.cli.cluster.nodes:nodes", "List nodes and the jobs on them."),
        "up": ("coadapt.cli.cluster.up:up", "Turn nodes of Slurm, Ray or Kubernetes into a cluster."),
        "kubernetes": ("coadapt.cli.cluster.kubernetes", "Print files for a controller on Kubernetes."),
        "node": ("coadapt.cli.cluster.node", "Join a controller with this machine; declare a machine gone."),
        "drain": ("coadapt.cli.cluster.nodes:drain", "Drain a node: it accepts no new replicas."),
        "quota": (
            "coadapt.cli.cluster.quota:quota",
            "Show or set the GPU limit and the budgets of a user or team.",
        ),
        "token": ("coadapt.cli.cluster.tokens", "Create, list and revoke access tokens."),
        "audit": ("coadapt.cli.cluster.audit:audit", "Show who changed what, when and from where."),
        "doctor": ("coadapt.cli.cluster.doctor:doctor", "Check the cluster on this machine for problems."),
        "backup": ("coadapt.cli.cluster.backup:backup", "Write a backup of the cluster while it runs."),
        "gc": ("coadapt.cli.cluster.gc:gc", "Remove what no job needs any more; compact the store."),
        "restore": ("coadapt.cli.cluster.backup:restore", "Make a new home directory from a backup."),
        "systemd-unit": ("coadapt.cli.cluster.deployment:systemd_unit", "Print a unit for systemd."),
        "prometheus-rules": (
            "coadapt.cli.cluster.deployment:prometheus_rules",
            "Print alert rules for Prometheus.",
        ),
        "down": ("coadapt.cli.cluster.serve:down", "Stop the jobs, keeper and controller of this machine."),
    },
    "Simulate": {
        "simulate": ("coadapt.cli.simulate", "Simulate a policy on the jobs of a trace."),
        "compare": ("coadapt.cli.compare", "Compare policies and clusters on one trace."),
        "size": ("coadapt.cli.size", "Find the smallest cluster that meets a goal."),
        "policies": ("coadapt.cli.policies", "List the policies and their options."),
        "trace": ("coadapt.cli.trace", "Inspect, convert or generate a trace."),
        "history": ("coadapt.cli.history", "Import finished runs into a pool file of past jobs."),
        "pool": ("coadapt.cli.pool", "Summarise a pool file of past jobs."),
        "calibration": ("coadapt.cli.calibration", "Compare past predictions with the actual times."),
    },
    "Work on training code": {
        "test-resize": (
            "coadapt.cli.test_resize",
            "Test whether a training script survives resizes and kills.",
        ),
        "watch": ("coadapt.cli.watch", "Predict from its log when a training run ends."),
    },
    "Other": {"completion": ("coadapt.cli.commands:completion", "Print the script for shell completion.")},
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
    epilog="Run 'coadapt COMMAND --help' for details. First example: coadapt simulate examples/small.csv --cluster 2x4",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks (accepted at any position).")
@click.pass_context
def group(ctx: click.Context) -> None:
    """Predict how long training takes, choose GPUs and batch size together, and run a shared cluster."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


_HOW = {
    "bash": 'eval "$(_COADAPT_COMPLETE=bash_source coadapt)"',
    "zsh": 'eval "$(_COADAPT_COMPLETE=zsh_source coadapt)"',
    "fish": "_COADAPT_COMPLETE=fish_source coadapt | source",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(shell: str) -> None:
    """Print the line that enables completion of commands and options, for the start-up file of your shell.

    \b
    coadapt completion bash >> ~/.bashrc
    """
    click.echo(_HOW[shell])
