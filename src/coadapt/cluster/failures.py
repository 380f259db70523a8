"""How a replica failed, by its exit code and its last lines. Pure.

Words are those that PyTorch, NCCL, Gloo, JAX, TensorFlow and the kernel use; upper and lower case alike.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from coadapt.cluster.exits import Exit
from coadapt.model.events import FailureKind

TAIL_LINES, TAIL_BYTES = 20, 8192
#: Signals a program brings upon itself.
_CRASHES = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSYS,
    signal.SIGTRAP,
)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|\bMemoryError\b|bad_alloc|RESOURCE_EXHAUSTED|Cannot allocate memory", re.I
)
_TIME_OUT = re.compile(r"timed out|time-?out|watchdog", re.I)
_COLLECTIVE = re.compile(
    r"nccl|gloo|collective|all_?reduce|broadcast|barrier|all_?gather|rendezvous|store|process ?group", re.I
)
_BEREFT = re.compile(
    r"connection (?:closed|reset|refused) by (?:remote )?peer|connection reset|connection refused|broken pipe|ncclRemoteError|"
    r"ncclSystemError|remote process exited|socket (?:closed|is not connected)|DistNetworkError|DistBackendError|NCCL communicator was aborted|"
    r"other replicas did not answer",
    re.I,
)
_SECRET = re.compile(r"token|secret|passw|pwd|key|credential|auth|cookie|private", re.I)
_LOGIN = re.compile(r"(\w{1,20}://[^\s/:@]{0,200}:)[^\s/@]{1,500}@")
_HIDDEN = "***"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")


def kind_of(code: int, last_lines: str, *, oom_killed: bool) -> FailureKind:
    """How a replica that ended with ``code`` failed; empty if it did not."""
    if code in (0, 143, -signal.SIGTERM):
        return ""
    if _OUT_OF_MEMORY.search(last_lines):
        return "oom"
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return "oom" if oom_killed else "killed"
    if _timed_out(last_lines):
        return "collective"
    if code < 0:
        return "exception" if -code in _CRASHES else "killed"
    return "exception"


def bereft(last_lines: str) -> bool:
    """Whether the lines say that a peer was gone, or did not answer any more."""
    return bool(_BEREFT.search(last_lines) or _timed_out(last_lines))


def kind_to_tell(why: Exit) -> FailureKind:
    """The kind of the failure that ended an attempt: where only lost peers are known, the collective failed."""
    return "collective" if why.bereft and why.kind == "exception" else why.kind or "exception"


def masked(text: str, envs: Mapping[str, str], *secrets: str) -> str:
    """``text`` without values of variables that are named like secrets, and without passwords in addresses."""
    hidden = [value for name, value in envs.items() if _SECRET.search(name)]
    for value in sorted({*hidden, *secrets}, key=len, reverse=True):
        if len(value) >= 4:
            text = text.replace(value, _HIDDEN)
    return _LOGIN.sub(rf"\1{_HIDDEN}@", text)


def tail(data: bytes, lines: int = TAIL_LINES) -> str:
    """The last lines of ``data`` as text, without what a terminal would not show."""
    text = _ESCAPE.sub("", data[-TAIL_BYTES:].decode("utf-8", "replace"))
    # a progress bar overwrites itself: what was last shown counts
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    clean = ("".join(c for c in line if c.isprintable() or c == "\t").rstrip() for line in shown)
    return "\n".join([line for line in clean if line][-lines:])


def _timed_out(last_lines: str) -> bool:
    return any(_TIME_OUT.search(line) and _COLLECTIVE.search(line) for line in last_lines.splitlines())
