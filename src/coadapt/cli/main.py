"""The command ``coadapt``: its entry point, and what becomes of errors.

Exit codes: 0 done; 1 our own error; 2 wrong input or usage; 3 a valid question whose answer is no; 130
interrupted. Whatever goes wrong is one line on standard error.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from coadapt.cli.lazy import LazyGroup
from coadapt.errors import CoadaptError

_COMMANDS = {
    "simulate": ("coadapt.cli.simulate", "What a policy would have done with the jobs of a trace."),
    "compare": ("coadapt.cli.compare", "Policies and clusters against each other on one trace."),
    "size": ("coadapt.cli.size", "The smallest cluster that holds a goal."),
    "predict": ("coadapt.cli.predict", "How long a model will train, before anything has run."),
    "profile": ("coadapt.cli.profile", "Measure this machine: layers, a run, its network."),
    "policies": ("coadapt.cli.policies", "The policies and their options."),
    "watch": ("coadapt.cli.watch", "When a training run will be done, by its log."),
    "trace": ("coadapt.cli.trace", "Look at a trace, convert it, make one up."),
}
_INTERRUPTED, _BROKEN_PIPE = 130, 141
#: Set by the shell when it asks for completions.
_COMPLETE = "_COADAPT_COMPLETE"


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


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    # Before numpy is first imported: our arrays are small, and OpenBLAS' threads spin while they wait, which
    # makes runs that share a machine (the processes of ``compare``) up to ten times slower.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if instruction := os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, "coadapt", _COMPLETE, instruction)
    debug = "--debug" in arguments
    try:
        # not ``group.main``, which has its own idea of what a broken pipe means
        with group.make_context("coadapt", [each for each in arguments if each != "--debug"]) as ctx:
            group.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except BaseException as error:
        return _failed(error, debug)
    return 0


def _failed(error: BaseException, debug: bool) -> int:
    """Says what went wrong, in one line, and returns the exit code."""
    if isinstance(error, BrokenPipeError):
        # whoever read our output has seen enough; the interpreter must not complain when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE
    if debug and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    if isinstance(error, CoadaptError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, click.ClickException):
        _say(_usage(error))
        return 2
    if isinstance(error, KeyboardInterrupt | click.Abort):
        _say("interrupted; nothing was written")
        return _INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    _say(f"this is a bug in coadapt: {what}; run with --debug for the traceback")
    return 1


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    ctx = getattr(error, "ctx", None)
    hint = f" (see '{ctx.command_path} --help')" if isinstance(ctx, click.Context) else ""
    return message[:1].lower() + message[1:] + hint


def _say(message: str) -> None:
    click.echo("coadapt: " + " ".join(message.split()), err=True)


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
