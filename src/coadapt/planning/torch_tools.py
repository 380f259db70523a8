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
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from coadapt.errors import CoadaptError, InputError
from coadapt.wire.tool_messages import (
    Answer,
    Disturbed,
    LinkMeasured,
    Refused,
    Rehearsed,
    RunProfiled,
    decode,
)

_TAIL_LINES = 30
#: What a tool has after SIGTERM, and what an interpreter has to say that it is one.
_GRACE_S, _PROBE_S = 2.0, 20.0


class ToolError(CoadaptError):
    """A tool ended without an answer."""


def answers(
    tool: str, arguments: Sequence[str], *, python: str | None = None, timeout_s: float | None = None
) -> Generator[Answer]:
    """Run ``python -m coadapt.torch.tools.TOOL`` and yield its answers as they arrive.

    A refusal by the tool is raised as an InputError. When the generator ends, for whatever reason, no process of the tool's
    session is left.

    Args:
        tool: Name of the tool.
        arguments: Its command-line arguments.
        python: Interpreter of the training code; None: the one that runs this.
        timeout_s: Seconds after which the tool is stopped; None: never.
    """
    interpreter = python or sys.executable
    if shutil.which(interpreter) is None:
        raise InputError(f"--python {interpreter}: no such program")
    try:
        yield from _answers(tool, [interpreter, "-m", f"coadapt.torch.tools.{tool}", *arguments], timeout_s)
    except ToolError:
        if python is not None and not _is_python(interpreter):
            raise InputError(f"--python {interpreter}: not a Python interpreter") from None
        raise


def one_answer(
    tool: str, arguments: Sequence[str], *, python: str | None = None, timeout_s: float | None = None
) -> Answer:
    """Run a tool that gives a single answer, and return it.

    Args:
        tool: Name of the tool.
        arguments: Its command-line arguments.
        python: Interpreter of the training code; None: the one that runs this.
        timeout_s: Seconds after which the tool is stopped; None: never.
    """
    # closed at once, not when the garbage is collected: closing ends the tool
    with closing(answers(tool, arguments, python=python, timeout_s=timeout_s)) as said:
        for answer in said:
            return answer
    raise ToolError(f"coadapt.torch.tools.{tool} ended without an answer")


def check_script(words: Sequence[str]) -> None:
    """Raise an InputError unless ``words`` are ``python SCRIPT ...`` and the script exists."""
    if len(words) < 2 or not Path(words[0]).name.startswith("python") or not words[1].endswith(".py"):
        raise InputError(f"{' '.join(words)!r} is not a Python script; write: -- python train.py ...")
    if not Path(words[1]).is_file():
        raise InputError(f"file not found: {words[1]}")


def profile_script(words: Sequence[str], *, seconds: float = 60.0) -> RunProfiled:
    """Profile a training script, ``["python", "train.py", ...]``, for at most ``seconds``: its time by type of operation."""
    check_script(words)
    # a bare ``python`` is the one that runs us, which has coadapt
    python = None if words[0] in ("python", "python3") else words[0]
    found = one_answer("profile_operations", ["--seconds", str(seconds), *words[1:]], python=python)
    assert isinstance(found, RunProfiled)
    if not sum(each.seconds for each in found.operations) > 0:
        raise InputError(
            f"{words[1]} ran for {found.wall_s:.1f} s without a PyTorch operation; there is nothing to report"
        )
    return found


def profile_network(backend: str = "gloo", *, python: str | None = None) -> LinkMeasured:
    """Latency and bandwidth of gradients between two processes on this machine, by ``"gloo"`` or ``"nccl"``."""
    found = one_answer("profile_network", ["--backend", backend], python=python)
    assert isinstance(found, LinkMeasured)
    return found


def rehearse(
    words: Sequence[str],
    *,
    replicas: int = 3,
    disturbances: int = 6,
    seed: int = 0,
    tolerance: float = 1e-5,
    on_disturbed: Callable[[Disturbed], None] | None = None,
) -> Rehearsed:
    """Runs a script undisturbed, and stopped, killed and resized at random steps, and compares the two.

    Args:
        words: ``["python", "train.py", ...]``; the script must use ``coadapt.torch``.
        replicas: Most replicas at once.
        disturbances: Stops, kills and resizes.
        seed: Of the random moments and sizes.
        tolerance: Largest relative difference of the parameters that counts as equal.
        on_disturbed: Told of every disturbance as it happens.
    """
    if not 0 <= tolerance < float("inf"):
        raise InputError(f"--tolerance {tolerance:g} must be 0 or more")
    check_script(words)
    interpreter = sys.executable if words[0] in ("python", "python3") else shutil.which(words[0])
    if interpreter is None:
        raise InputError(f"program not found: {words[0]}")
    arguments = [
        *("--replicas", str(replicas), "--disturbances", str(disturbances), "--seed", str(seed)),
        *("--tolerance", str(tolerance), interpreter, *words[1:]),
    ]
    found = None
    for answer in answers("rehearse", arguments, python=interpreter):
        if isinstance(answer, Disturbed) and on_disturbed is not None:
            on_disturbed(answer)
        elif isinstance(answer, Rehearsed):
            found = answer
    assert found is not None
    return found


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
                f"no answer within {timeout_s:g} s: the model is too slow, or never returns; a larger --timeout allows more time"
            )
        if process.returncode != 0:
            text = b"".join(said[-_TAIL_LINES:]).decode(errors="replace")
            raise _failure(tool, command[0], process.returncode, text)
        if not answered:
            raise ToolError(f"coadapt.torch.tools.{tool} ended without an answer")


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
        raise ToolError(f"coadapt.torch.tools.{tool} wrote a message that cannot be read: {error}") from error


def _failure(tool: str, interpreter: str, code: int, said: str) -> CoadaptError:
    lines = [line for line in said.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it printed nothing"
    if "No module named 'torch'" in last:
        return InputError(
            f"{interpreter} has no PyTorch; install it (pip install 'coadapt[torch]') or name the interpreter "
            "of your training code by --python"
        )
    if "No module named" in last and "coadapt" in last:
        return InputError(f"{interpreter} has no coadapt; install it there too (pip install coadapt)")
    how = f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    return ToolError(f"coadapt.torch.tools.{tool} {how} before it answered: {last}")


def _signal(number: int) -> str:
    """Its name, and what it commonly means here."""
    known = {each.value: each.name for each in signal.Signals}
    hint = " (out of memory?)" if number == signal.SIGKILL else ""
    return known.get(number, f"signal {number}") + hint
