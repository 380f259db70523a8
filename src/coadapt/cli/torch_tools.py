"""Starts the tools of ``coadapt.torch`` in the user's interpreter and reads their JSON lines.

User code never runs inside this process, and this process needs no PyTorch.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.wire.trace import Answer, Refused, decode

_TAIL_LINES = 30
#: What a tool has after SIGTERM, and what an interpreter has to say that it is one.
_GRACE_S, _PROBE_S = 2.0, 20.0


class ToolError(CoadaptError):
    """A tool ended without an answer."""


def answers(
    tool: str, arguments: Sequence[str], *, python: str | None = None, timeout_s: float | None = None
) -> Generator[Answer]:
    """Runs ``python -m coadapt.torch.TOOL`` and yields its answers as they come; a refusal is an InputError.

    When this ends, however it ends, nothing that the tool started in its session is left.
    """
    interpreter = python or sys.executable
    if shutil.which(interpreter) is None:
        raise InputError(f"--python {interpreter}: there is no such program")
    try:
        yield from _answers(tool, [interpreter, "-m", f"coadapt.torch.{tool}", *arguments], timeout_s)
    except ToolError:
        if python is not None and not _is_python(interpreter):
            raise InputError(f"--python {interpreter}: this is no Python interpreter") from None
        raise


def one_answer(
    tool: str, arguments: Sequence[str], *, python: str | None = None, timeout_s: float | None = None
) -> Answer:
    """The only answer of a tool."""
    # closed at once, not when the garbage is collected: closing ends the tool
    with closing(answers(tool, arguments, python=python, timeout_s=timeout_s)) as said:
        for answer in said:
            return answer
    raise ToolError(f"coadapt.torch.{tool} ended without an answer")


def _answers(tool: str, command: list[str], timeout_s: float | None) -> Iterator[Answer]:
    answered = False
    # a session of its own: what user code starts there can be ended with it
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        said: list[bytes] = []
        # read aside, so that a talkative script cannot block on a full pipe
        reader = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
        late = threading.Event()

        def too_late() -> None:
            late.set()
            _signal_all(process, signal.SIGKILL)

        timer = threading.Timer(timeout_s or 0.0, too_late)
        reader.start()
        try:
            if timeout_s is not None:
                timer.start()
            for line in process.stdout:
                answer = _decoded(line, tool)
                if isinstance(answer, Refused):
                    raise InputError(answer.reason)
                answered = True
                yield answer
            process.wait()
        finally:
            timer.cancel()
            _end(process)
            reader.join()
        if late.is_set():
            raise InputError(
                f"no answer within {timeout_s:g} s: the model is too slow, or never returns; --timeout gives it longer"
            )
        if process.returncode != 0:
            text = b"".join(said[-_TAIL_LINES:]).decode(errors="replace")
            raise _failure(tool, command[0], process.returncode, text)
        if not answered:
            raise ToolError(f"coadapt.torch.{tool} ended without an answer")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the tool, kindly first, and whatever it has left in its session."""
    if process.poll() is None:
        _signal_all(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    _signal_all(process, signal.SIGKILL)


def _signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    # the group keeps its number as long as anybody is in it
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _is_python(interpreter: str) -> bool:
    """True if the program does what Python does."""
    try:
        probe = subprocess.run(
            [interpreter, "-c", "print(6 * 7)"],
            capture_output=True,
            timeout=_PROBE_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.stdout.strip() == b"42"


def _decoded(line: bytes, tool: str) -> Answer:
    try:
        return decode(line)
    except msgspec.DecodeError as error:
        raise ToolError(f"coadapt.torch.{tool} said something that is not ours: {error}") from error


def _failure(tool: str, interpreter: str, code: int, said: str) -> CoadaptError:
    lines = [line for line in said.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it said nothing"
    if "No module named 'torch'" in last:
        return InputError(
            f"{interpreter} has no PyTorch; install it (pip install 'coadapt[torch]') or name the interpreter "
            "of your training code by --python"
        )
    if "No module named" in last and "coadapt" in last:
        return InputError(f"{interpreter} has no coadapt; install it there too (pip install coadapt)")
    how = f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    return ToolError(f"coadapt.torch.{tool} {how} before it answered: {last}")


def _signal(number: int) -> str:
    """Its name, and what it commonly means here."""
    known = {each.value: each.name for each in signal.Signals}
    hint = " (out of memory?)" if number == signal.SIGKILL else ""
    return known.get(number, f"signal {number}") + hint
