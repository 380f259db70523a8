"""What the exits of an attempt's replicas mean, taken together. Pure.

- 0 from all: the job succeeded, even if it had been told to stop a moment before.
- An error from a replica nobody had told to stop: the job failed; the first one gives the exit code.
- 143 (the state is saved), or SIGTERM's and SIGKILL's death after being told: stopped.
- An error after being told counts only if no replica stopped as asked: when one rank leaves, the others
  often fail in their next collective operation, and that is not the job's fault.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Literal

import msgspec

SAVED_AND_LEFT = 143
_OUR_SIGNALS = (-signal.SIGTERM, -signal.SIGKILL)

End = Literal["succeeded", "failed", "stopped"]


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's end: its code (negative: killed by that signal), and whether it had been told to stop."""

    rank: int
    code: int
    told: bool

    @property
    def exit_code(self) -> int:
        """As a shell would show it."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with {self.code}"
        return f"replica {self.rank} {how}"


def judge(exits: Sequence[Exit]) -> tuple[End, Exit | None]:
    """How the attempt ended, and the exit that decided it; ``exits`` in the order they happened."""
    wrong = [e for e in exits if e.code not in (0, SAVED_AND_LEFT)]
    for each in wrong:
        if not each.told:
            return "failed", each
    for each in exits:
        if each.code == SAVED_AND_LEFT or (each.told and each.code in _OUR_SIGNALS):
            return "stopped", each
    return ("failed", wrong[0]) if wrong else ("succeeded", None)
