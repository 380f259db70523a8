"""The entry point of the command ``coadapt``, and its error messages.

Exit codes: 0 success; 1 internal error, or standard output cannot be written; 2 invalid input or usage; 3 valid question
whose answer is no; 4 controller not reachable; 130 interrupted; 143 terminated. Every error is one line on standard error.

Only the standard library is imported before ``run``, so that an early Ctrl-C is handled as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_INTERRUPTED, _BROKEN_PIPE, _TERMINATED = 130, 141, 143
#: Set by the shell when it asks for completions.
_COMPLETE = "_COADAPT_COMPLETE"


class Terminated(BaseException):
    """Raised on SIGTERM, so that unfinished work is cleaned up."""


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    # Before numpy is first imported: our arrays are small, and OpenBLAS' threads spin while they wait, which
    # makes runs that share a machine (the processes of ``compare``) up to ten times slower.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    debug = "--debug" in arguments
    try:
        return _run([each for each in arguments if each != "--debug"])
    except BaseException as error:
        return _failed(error, debug)


def _run(arguments: list[str]) -> int:
    import click

    from coadapt.cli.commands import group

    if instruction := os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, "coadapt", _COMPLETE, instruction)
    try:
        # ``group.main`` would handle broken pipes in its own way
        with group.make_context("coadapt", arguments) as ctx:
            group.invoke(ctx)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
    return 0


def _failed(error: BaseException, debug: bool) -> int:
    """Prints the error in one line and returns the exit code."""
    if isinstance(error, BrokenPipeError):
        # the reader has closed the pipe
        _drop_output()
        return _BROKEN_PIPE
    if debug and not isinstance(error, SystemExit):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        # CPython remembers an interrupt that passed through exec() of a string, by which dataclasses are made, and under
        # ``python -m`` then ends the process by the signal whatever its exit code; the next exec() makes it forget
        exec("")
        _say("interrupted; nothing was written")
        return _INTERRUPTED
    if isinstance(error, Terminated):
        _say("terminated; nothing was written")
        return _TERMINATED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return _explained(error)


def _explained(error: BaseException) -> int:
    import click

    from coadapt.errors import CoadaptError

    if isinstance(error, CoadaptError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, click.ClickException):
        _say(_usage(error, getattr(error, "ctx", None)))
        return 2
    if isinstance(error, click.Abort):
        _say("interrupted; nothing was written")
        return _INTERRUPTED
    if isinstance(error, OSError) and error.filename is not None:
        name = str(error.filename)
        _say(f"cannot use {name if len(name) <= 200 else name[:200] + ' ...'}: {error.strerror}")
        return 2
    if isinstance(error, OSError) and error.errno is not None:
        # an error without a file name concerns standard output
        _drop_output()
        _say(f"cannot write to standard output: {error.strerror}")
        return 1
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    _say(f"internal error, please report it: {what}; --debug prints the traceback")
    return 1


def _usage(error: Exception, ctx: object) -> str:
    import click

    assert isinstance(error, click.ClickException)
    message = error.format_message().rstrip(".")
    hint = f" (see '{ctx.command_path} --help')" if isinstance(ctx, click.Context) else ""
    return message[:1].lower() + message[1:] + hint


def _drop_output() -> None:
    """Discards remaining output, so that the interpreter does not report an error when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _say(message: str) -> None:
    if sys.stderr is None:
        return
    try:
        sys.stderr.write("coadapt: " + " ".join(message.split()) + "\n")
        sys.stderr.flush()
    except OSError:
        # standard error is closed as well
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _terminate(signum: int, frame: object) -> None:
    raise Terminated


def _open_closed_streams() -> None:
    """Replaces streams closed by the shell (``>&-``) by the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def main() -> None:
    """The console script."""
    try:
        import signal

        signal.signal(signal.SIGTERM, _terminate)
        # closed terminal; keep ignoring it under nohup
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, _terminate)
        _open_closed_streams()
        code = run(sys.argv[1:])
    except (KeyboardInterrupt, Terminated) as error:  # before or after ``run``
        code = _failed(error, False)
    sys.exit(code)


if __name__ == "__main__":
    main()
