"""Starts the tools of ``coadapt.torch`` in the user's interpreter and reads their JSON lines.

User code never runs inside this process, and this process needs no PyTorch.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.wire.trace import Answer, Refused, decode

_TAIL_LINES = 30


class ToolError(CoadaptError):
    """A tool ended without an answer."""


def answers(tool: str, arguments: Sequence[str], *, python: str | None = None) -> Iterator[Answer]:
    """Runs ``python -m coadapt.torch.TOOL`` and yields its answers as they come; a refusal is an InputError."""
    interpreter = python or sys.executable
    if shutil.which(interpreter) is None:
        raise InputError(f"--python {interpreter}: there is no such program")
    command = [interpreter, "-m", f"coadapt.torch.{tool}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        import threading

        said: list[bytes] = []
        # read aside, so that a talkative script cannot block on a full pipe
        reader = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
        reader.start()
        try:
            for line in process.stdout:
                answer = _decoded(line, tool)
                if isinstance(answer, Refused):
                    raise InputError(answer.reason)
                yield answer
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.terminate()
        reader.join()
        if process.wait() != 0:
            text = b"".join(said[-_TAIL_LINES:]).decode(errors="replace")
            raise _failure(tool, interpreter, process.returncode, text)


def one_answer(tool: str, arguments: Sequence[str], *, python: str | None = None) -> Answer:
    """The only answer of a tool."""
    for answer in answers(tool, arguments, python=python):
        return answer
    raise ToolError(f"coadapt.torch.{tool} ended without an answer")


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
    import signal

    known = {each.value: each.name for each in signal.Signals}
    hint = " (out of memory?)" if number == signal.SIGKILL else ""
    return known.get(number, f"signal {number}") + hint
