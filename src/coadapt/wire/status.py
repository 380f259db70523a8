"""What the controller says of itself beside the log: nothing here is a fact that anything is decided by."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

#: Upper ends of the classes in which decisions are counted by how long they took, in seconds; beyond the last: the rest.
DECISION_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class ControllerStatus(msgspec.Struct, kw_only=True):
    """Counts since the store was made, as far as controllers came to write them down."""

    #: Decisions by class of ``DECISION_S``, the rest last; and the seconds of all together.
    decisions: list[int] = msgspec.field(default_factory=lambda: [0] * (len(DECISION_S) + 1))
    decision_s: float = 0.0

    def decided(self, seconds: float) -> None:
        """A decision took so long."""
        self.decisions[bisect_left(DECISION_S, seconds)] += 1
        self.decision_s += seconds


def read_status(data: str | None) -> ControllerStatus:
    """What was written; a new one where that is nothing, or of another version: counters may begin anew."""
    try:
        found = msgspec.json.decode(data or "{}", type=ControllerStatus)
    except msgspec.MsgspecError:
        return ControllerStatus()
    return found if len(found.decisions) == len(DECISION_S) + 1 else ControllerStatus()
