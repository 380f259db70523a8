"""What the exits of an attempt's replicas mean, taken together. Pure.

- 0 from all: the job succeeded, even if it had been told to stop a moment before.
- An error from a replica nobody had told to stop: the job failed. The first in time is named; but one that died because a
  peer was gone only where no other error explains it: whose end is noticed first is chance.
- 143 (the state is saved), SIGTERM's death (also when somebody else sent it), or SIGKILL's after being told: stopped.
- An error after being told counts only if no replica stopped as asked: when one rank leaves, the others
  often fail in their next collective operation, and that is not the job's fault.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Literal

import msgspec

from coadapt.model.events import FailureKind

SAVED_AND_LEFT = 143
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
        """As a shell would show it."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def left(self) -> bool:
        """Whether it ended as one that was asked to."""
        if self.code in (SAVED_AND_LEFT, -signal.SIGTERM):
            return True
        return self.told and self.code in _OUR_SIGNALS

    def __str__(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with {self.code}"
        return f"replica {self.rank} {how}"


def judge(exits: Sequence[Exit]) -> tuple[End, Exit | None]:
    """How the attempt ended, and the exit that decided it; ``exits`` in the order they happened."""
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
