"""How an attempt ends: what the exits of its replicas mean, taken together. Pure.

- 0 from all: the job succeeded, if none was asked to stop while it ran. Many scripts save and exit with 0 on SIGTERM, and
  nothing tells that from an end: such a replica has stopped, unless it said that it is done. To run it again may waste
  time; to call it finished may lose work.
- An error of a replica that was not asked to stop: the job failed. The first error is reported; one that follows from the
  loss of a peer only if no other error explains it, since the order in which exits are noticed is random.
- Exit code 143 (the state is saved), death by SIGTERM (whoever sent it), or by SIGKILL after being asked to stop: stopped.
- An error after being asked to stop counts only if no replica stopped as asked: when one rank leaves, the others
  often fail in their next collective operation, and that is not the job's fault.

The kind of failure follows from the exit code and the last lines of output. The patterns are messages of PyTorch, NCCL, Gloo, JAX,
TensorFlow and the kernel; case is ignored.
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
    """One replica's end: its code (negative: killed by that signal), and whether it had been asked to stop."""

    rank: int
    code: int
    asked: bool
    #: The kind of failure, by its last lines.
    kind: FailureKind = ""
    #: Its last lines report the loss of a peer: its exit follows from another.
    lost_peer: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code as a shell would show it."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def left(self) -> bool:
        """Whether it ended as a replica that was asked to stop."""
        if self.code in (SAVED_AND_LEFT, -signal.SIGTERM):
            return True
        return self.asked and (self.code == 0 or self.code in _OUR_SIGNALS)

    def __str__(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with {self.code}"
        return f"replica {self.rank} {how}"


def judge(exits: Sequence[Exit]) -> tuple[End, Exit | None]:
    """Returns how the attempt ended, and the exit that decided it; ``exits`` in the order they happened."""
    wrong = [e for e in exits if e.code != 0 and not e.left]
    unasked = [e for e in wrong if not e.asked]
    left = [e for e in exits if e.left]
    if unasked:
        own = [e for e in unasked if not e.lost_peer]
        preempted = [e for e in left if not e.asked]
        if not own and preempted:
            return "stopped", preempted[0]
        # the original error may be noticed after those of its peers
        own = own or [e for e in wrong if e.asked and not e.lost_peer]
        return "failed", (own or unasked)[0]
    if left:
        return "stopped", left[0]
    return ("failed", wrong[0]) if wrong else ("succeeded", None)


#: Signals of a program's own faults.
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
_LOST_PEER = re.compile(
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


def lost_peer(last_lines: str) -> bool:
    """Whether the lines report that a peer was lost or did not answer."""
    return bool(_LOST_PEER.search(last_lines) or _timed_out(last_lines))


def reported_kind(why: Exit) -> FailureKind:
    """Returns the kind of failure that ended an attempt: if only lost peers are known, a failed collective operation."""
    return "collective" if why.lost_peer and why.kind == "exception" else why.kind or "exception"


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
    """Collected while the attempt lives. Machines have masked secrets in the output before."""

    def __init__(self, job: str, attempt: int) -> None:
        self._job, self._attempt = job, attempt
        #: Why it was asked to end for good; None: it was not.
        self.cause: StopCause | None = None
        #: Replicas failed while they were resized in place: the attempt is restarted instead of failed.
        self.excused = False
        #: It ends as failed whatever its exit codes are.
        self._fatal: FailureKind = ""
        #: A machine is gone, with replicas whose exits nobody will report.
        self._machine_lost = False
        self._exits: list[Exit] = []
        self._last_lines: dict[int, str] = {}
        self._broken = self._broken_lines = ""

    def begin(self) -> None:
        """Forgets earlier exits: all replicas start, or restart."""
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

    def lose_machine(self) -> None:
        """Notes that a machine is gone: the attempt did not succeed, and peers that failed for want of it are not to blame."""
        self._machine_lost = True

    def exited(self, rank: int, code: int, lines: str, *, asked: bool, oom_killed: bool) -> None:
        """Records the exit of a replica.

        Args:
            rank: rank of the replica.
            code: its exit code.
            lines: its last lines.
            asked: whether it had been asked to stop while it ran, and did not say that it is done.
            oom_killed: whether the kernel killed it for lack of memory.
        """
        lines = "" if code == 0 else lines
        self._last_lines[rank] = lines
        kind = kind_of(code, lines, oom_killed=oom_killed)
        self._exits.append(Exit(rank=rank, code=code, asked=asked, kind=kind, lost_peer=lost_peer(lines)))

    def cannot(self, reason: str) -> None:
        """Notes that the attempt could not start; the first reason is reported."""
        self._broken = self._broken or reason

    def show(self, lines: str) -> None:
        """Sets the lines to report where no last lines of a replica explain the failure."""
        self._broken_lines = lines

    def event(self, then: Placement | None) -> JobFinished | JobStopped | ReplicasReleased:
        """Returns the event for the end of the last process; ``then``: the placement at which the attempt starts again."""
        if self._broken:
            return self._failed(self._broken, "start", lines=self._broken_lines)
        end, why = judge(self._exits) if self._exits else ("stopped", None)
        if self._machine_lost and (end == "succeeded" or (why is not None and why.lost_peer)):
            end = "stopped"
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
        kind = reported_kind(why)
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
