"""How an attempt ends: what its replicas exited with, why it was stopped, and what is told about that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from coadapt.cluster.exits import Exit, judge
from coadapt.cluster.failures import bereft, kind_of, kind_to_tell
from coadapt.model import JobFinished, JobStopped, Placement, ReplicasReleased
from coadapt.model.events import FailureKind, StopCause

Why = StopCause | Literal["hang", "time-limit"]
_MORE = {
    "oom": ": out of memory",
    "collective": ": a collective operation timed out or lost its peers",
    "hang": "no step for too long",
    "time-limit": "its time limit has passed",
}


class Verdict:
    """Gathered while the attempt lives. ``hide`` masks secrets in what a job printed."""

    def __init__(self, job: str, attempt: int, hide: Callable[[str], str]) -> None:
        self._job, self._attempt, self._hide = job, attempt, hide
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
        """All replicas start, or start again."""
        self._exits, self.excused = [], False
        self._last_lines.clear()

    def stop(self, why: Why) -> None:
        """It is told to end; the first to say why is right."""
        if self.cause is not None:
            return
        if why == "hang" or why == "time-limit":
            self.cause, self._fatal = "preempted", why
        else:
            self.cause = why

    def exited(self, rank: int, code: int, lines: str, *, told: bool, oom_killed: bool) -> None:
        """A replica ended, with these last lines; ``told``: it had been asked to."""
        lines = "" if code == 0 else self._hide(lines)
        self._last_lines[rank] = lines
        kind = kind_of(code, lines, oom_killed=oom_killed)
        self._exits.append(Exit(rank=rank, code=code, told=told, kind=kind, bereft=bereft(lines)))

    def cannot(self, reason: str) -> None:
        """It could not start; the first reason is told."""
        self._broken = self._broken or self._hide(reason)

    def show(self, lines: str) -> None:
        """What is shown of it where no replica's own last lines tell."""
        self._broken_lines = self._hide(lines)

    def told(self, then: Placement | None) -> JobFinished | JobStopped | ReplicasReleased:
        """What the end of the last process means; ``then``: where it is to start again."""
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
