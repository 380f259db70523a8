"""How an attempt ends: what the exits of its replicas mean, taken together. Pure.

- 0 from all: the job succeeded, even if it had been told to stop a moment before.
- An error from a replica nobody had told to stop: the job failed. The first in time is named; but one that died because a
  peer was gone only where no other error explains it: whose end is noticed first is chance.
- 143 (the state is saved), SIGTERM's death (also when somebody else sent it), or SIGKILL's after being told: stopped.
- An error after being told counts only if no replica stopped as asked: when one rank leaves, the others
  often fail in their next collective operation, and that is not the job's fault.

How a replica failed is told by its exit code and its last lines. Words are those that PyTorch, NCCL, Gloo, JAX, TensorFlow and
the kernel use; upper and lower case alike.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Literal

import msgspec

from coadapt.model import JobFinished, JobStopped, Placement, ReplicasReleased
from coadapt.model.events import FailureKind, StopCause
from coadapt.wire.agent import SAVED_AND_LEFT

_OUR_SIGNALS = (-signal.SIGTERM, -signal.SIGKILL)

End = Literal["succeeded", "failed", "stopped"]


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's end: its code (negative: killed by that signal), and whether it had been told to stop."""

    rank: int
    code: int
    told: bool
    #: What its last lines say about how it failed.
    kind: FailureKind = ""
    #: Its last lines say that a peer was gone: an end that follows from another.
    bereft: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code as a shell would show it."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def left(self) -> bool:
        """Whether it ended as a replica that was asked to stop."""
        if self.code in (SAVED_AND_LEFT, -signal.SIGTERM):
            return True
        return self.told and self.code in _OUR_SIGNALS

    def __str__(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with {self.code}"
        return f"replica {self.rank} {how}"


def judge(exits: Sequence[Exit]) -> tuple[End, Exit | None]:
    """Returns how the attempt ended, and the exit that decided it; ``exits`` in the order they happened."""
    wrong = [e for e in exits if e.code != 0 and not e.left]
    untold = [e for e in wrong if not e.told]
    left = [e for e in exits if e.left]
    if untold:
        own = [e for e in untold if not e.bereft]
        preempted = [e for e in left if not e.told]
        if not own and preempted:
            return "stopped", preempted[0]
        # an error of its own may come to light after its peers' were noticed
        own = own or [e for e in wrong if e.told and not e.bereft]
        return "failed", (own or untold)[0]
    if left:
        return "stopped", left[0]
    return ("failed", wrong[0]) if wrong else ("succeeded", None)


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


def kind_of(code: int, last_lines: str, *, oom_killed: bool) -> FailureKind:
    """Returns the kind of failure of a replica that ended with ``code``; empty if it did not fail."""
    if code in (0, SAVED_AND_LEFT, -signal.SIGTERM):
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
    """Returns the kind of failure that ended an attempt: if only lost peers are known, a failed collective operation."""
    return "collective" if why.bereft and why.kind == "exception" else why.kind or "exception"


def _timed_out(last_lines: str) -> bool:
    return any(_TIME_OUT.search(line) and _COLLECTIVE.search(line) for line in last_lines.splitlines())


Why = StopCause | Literal["hang", "time-limit"]
_MORE = {
    "oom": ": out of memory",
    "collective": ": a collective operation timed out or lost its peers",
    "hang": "no step for too long",
    "time-limit": "its time limit has passed",
}


class Verdict:
    """Gathered while the attempt lives. In what a job printed, machines have masked secrets before."""

    def __init__(self, job: str, attempt: int) -> None:
        self._job, self._attempt = job, attempt
        #: Why it was told to end for good; None: it was not.
        self.cause: StopCause | None = None
        #: Replicas that failed while they were resized in place: a restart makes good for it.
        self.excused = False
        #: It ends as failed whatever its exits say.
        self._fatal: FailureKind = ""
        self._exits: list[Exit] = []
        self._last_lines: dict[int, str] = {}
        self._broken = self._broken_lines = ""

    def begin(self) -> None:
        """Starts anew: all replicas start, or start again."""
        self._exits, self.excused = [], False
        self._last_lines.clear()

    def stop(self, why: Why) -> None:
        """Notes that the attempt is asked to end; the first cause counts."""
        if self.cause is not None:
            return
        if why == "hang" or why == "time-limit":
            self.cause, self._fatal = "preempted", why
        else:
            self.cause = why

    def exited(self, rank: int, code: int, lines: str, *, told: bool, oom_killed: bool) -> None:
        """Records the exit of a replica.

        Args:
            rank: rank of the replica.
            code: its exit code.
            lines: its last lines.
            told: whether it had been asked to stop.
            oom_killed: whether the kernel killed it for lack of memory.
        """
        lines = "" if code == 0 else lines
        self._last_lines[rank] = lines
        kind = kind_of(code, lines, oom_killed=oom_killed)
        self._exits.append(Exit(rank=rank, code=code, told=told, kind=kind, bereft=bereft(lines)))

    def cannot(self, reason: str) -> None:
        """Notes that the attempt could not start; the first reason is reported."""
        self._broken = self._broken or reason

    def show(self, lines: str) -> None:
        """Sets the lines to report where no last lines of a replica explain the failure."""
        self._broken_lines = lines

    def told(self, then: Placement | None) -> JobFinished | JobStopped | ReplicasReleased:
        """Returns the event for the end of the last process; ``then``: the placement at which the attempt starts again."""
        if self._broken:
            return self._failed(self._broken, "start", lines=self._broken_lines)
        end, why = judge(self._exits) if self._exits else ("stopped", None)
        if self._fatal and end != "succeeded":
            return self._failed(_MORE[self._fatal], self._fatal, lines=self._broken_lines)
        if then is not None and (end == "stopped" or (end == "failed" and self.excused)):
            return ReplicasReleased(job=self._job, attempt=self._attempt, placement=then)
        if end == "stopped":
            cause = self.cause or ("preempted" if self._exits else "lost")
            return JobStopped(job=self._job, attempt=self._attempt, cause=cause)
        if end == "succeeded":
            return JobFinished(job=self._job, attempt=self._attempt, outcome="succeeded", exit_code=0)
        assert why is not None
        kind = kind_to_tell(why)
        lines = self._last_lines.get(why.rank, "")
        return self._failed(f"{why}{_MORE.get(kind, '')}", kind, why=why, lines=lines)

    def _failed(
        self, reason: str, kind: FailureKind, *, why: Exit | None = None, lines: str = ""
    ) -> JobFinished:
        return JobFinished(
            job=self._job,
            attempt=self._attempt,
            outcome="failed",
            exit_code=why.exit_code if why else None,
            reason=reason,
            kind=kind,
            rank=why.rank if why else None,
            tail=lines,
        )
